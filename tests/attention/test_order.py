"""Modules that put their input into the order of the core before they project it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.attention import MultiHeadAttention, UnsupportedAttention
from efficient_attn.attention.masks import AttentionMask
from efficient_attn.attention.variants import shifted_window

E, H = 16, 2


@pytest.fixture(autouse=True, scope="module")
def kernels_at_every_length():
    """Where they would be left for what is faster on few tokens too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shifted_window, "SHORT", 0)
        patch.setattr(shifted_window, "SHORT_WITH_BIAS", 0)
        yield


def pair(**options: object) -> tuple[MultiHeadAttention, MultiHeadAttention]:
    """A module, and one of the same weights that runs the formula on tokens as they come."""
    options = {"grid": (6, 8), "window": (3, 4), "shift": (1, 2), "relative_bias": True} | options
    made = []
    for implementation in ("eager", "formula"):
        module = MultiHeadAttention(
            E, H, "shifted_window", implementation=implementation, **options
        ).double()
        made.append(module)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made[0].parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    made[1].load_state_dict(made[0].state_dict())
    return made[0], made[1]


def inputs(B: int, N: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(B, N, E, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the inputs that were put into an order."""
    seen: list[int] = []
    original = MultiHeadAttention._forward_in_order

    def counted(self, x, *given):
        seen.append(x.shape[1])
        return original(self, x, *given)

    monkeypatch.setattr(MultiHeadAttention, "_forward_in_order", counted)
    return seen


@given(
    B=st.integers(1, 3),
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    shift=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    padded=st.booleans(),
    bias=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_grid_of_whole_windows(B, grid, window, shift, padded, bias):
    grid = tuple(count * size for count, size in zip(grid, window, strict=True))
    shift = tuple(by % size for by, size in zip(shift, window, strict=True))
    module, formula = pair(grid=grid, window=window, shift=shift, relative_bias=bias)
    N = grid[0] * grid[1]
    x = inputs(B, N)
    order, place = module.core.order(N, AttentionMask())
    assert torch.equal(order[place], torch.arange(N))
    hidden = None
    if padded:
        hidden = torch.rand(B, N, generator=torch.Generator().manual_seed(N)) < 0.4
    found, expected = (m(x, key_padding_mask=hidden)[0] for m in (module, formula))
    torch.testing.assert_close(found, expected)
    gradient = torch.sin(torch.arange(found.numel(), dtype=torch.float64)).view_as(found)
    of_x = [
        torch.autograd.grad(out, [x, *m.parameters()], gradient)
        for out, m in ((found, module), (expected, formula))
    ]
    for a, b in zip(*of_x, strict=True):
        torch.testing.assert_close(a, b)


def test_it_is_what_runs(calls):
    module, _ = pair()
    module(inputs(2, 48))
    with torch.no_grad():
        module.eval()(inputs(2, 48))
    assert calls == [48, 48]


@pytest.mark.parametrize(
    "how", ["weights", "mask", "dropout", "other keys", "partial windows", "grouped", "compiled"]
)
def test_where_it_does_not_apply_tokens_stay(calls, how):
    if how == "partial windows":
        pair(grid=(5, 7))[0](inputs(1, 35))
    elif how == "dropout":
        pair(dropout=0.5)[0](inputs(1, 48))
    elif how == "grouped":
        pair(num_kv_heads=1)[0](inputs(1, 48))
    elif how == "compiled":
        module, formula = pair()
        compiled = torch.compile(module, backend="eager")
        x = inputs(1, 48)
        torch.testing.assert_close(compiled(x)[0], formula(x)[0])
    else:
        module, _ = pair()
        x = inputs(1, 48)
        with (
            pytest.raises(UnsupportedAttention) if how in ("mask", "other keys") else nullcontext()
        ):
            module(
                x,
                x.clone() if how == "other keys" else None,
                attn_mask=torch.ones(48, 48).tril() if how == "mask" else None,
                need_weights=how == "weights",
            )
    assert calls == []


def test_gradients_of_gradients():
    module, _ = pair(grid=(2, 4), window=(2, 2), shift=(0, 1))
    torch.autograd.gradgradcheck(lambda x: module(x)[0], [inputs(1, 8)])


def test_autocast():
    module, formula = pair()
    module, formula = module.float(), formula.float()
    x = inputs(2, 48).detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = (m(x)[0] for m in (module, formula))
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03)
    (gradient,) = torch.autograd.grad(found.float().square().sum(), x)
    (right,) = torch.autograd.grad(formula(x)[0].square().sum(), x)
    assert (gradient - right).norm() < 0.03 * right.norm()
