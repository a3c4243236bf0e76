"""A grid named by the call: the same answers as from a module built for that grid."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shipped import shipped

from efficient_attn.attention import MultiHeadAttention, OptionError

E, H = 8, 2
SIDE = st.integers(1, 9)


def pair(built_for: tuple[int, int], grid: tuple[int, int], **options):
    made = [
        MultiHeadAttention(
            E, H, "shifted_window", grid=each, window=(3, 2), shift=(1, 1), relative_bias=True,
            **options,
        ).double()
        for each in (built_for, grid)
    ]  # fmt: skip
    torch.nn.init.normal_(made[0].core.relative_bias)
    made[1].load_state_dict(made[0].state_dict())
    return made


def tokens(grid: tuple[int, int], B: int = 2) -> torch.Tensor:
    N = grid[0] * grid[1]
    return torch.randn(B, N, E, generator=torch.Generator().manual_seed(N), dtype=torch.float64)


@given(
    grid=st.tuples(SIDE, SIDE),
    padded=st.booleans(),
    implementation=st.sampled_from(["eager", "formula"]),
)
@settings(max_examples=60, deadline=None)
def test_any_grid_and_padding(grid, padded, implementation):
    module, expected = pair((4, 5), grid, implementation=implementation)
    x = tokens(grid).requires_grad_()
    hidden = None
    if padded:
        hidden = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(1)) < 0.4
    outs = module(x, None, None, hidden, grid=grid)[0], expected(x, None, None, hidden)[0]
    torch.testing.assert_close(*outs)
    gradients = [
        torch.autograd.grad(out.sin().sum(), [x, *m.parameters()])
        for out, m in zip(outs, (module, expected), strict=True)
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("grid", [(6, 4), (5, 7), (2, 9)], ids=str)
def test_weights_are_those_of_the_output(grid):
    module, expected = pair((4, 5), grid)
    x = tokens(grid)
    out, weights = module(x, need_weights=True, grid=grid)
    torch.testing.assert_close(weights, expected(x, need_weights=True)[1])
    torch.testing.assert_close(out, module(x, grid=grid)[0])


def test_a_call_leaves_no_trace():
    module, _ = pair((4, 6), (4, 6))
    x = tokens((4, 6))
    before = module(x)[0]
    module(x, grid=(2, 12))
    module(tokens((3, 3)), grid=(3, 3))
    assert torch.equal(module(x)[0], before)
    assert not torch.allclose(module(x, grid=(2, 12))[0], before)


def test_compiled_in_one_piece():
    module, _ = pair((4, 6), (4, 6))
    compiled = torch.compile(module, backend="eager", fullgraph=True, dynamic=True)
    for grid in ((6, 4), (5, 7), (4, 6)):
        x = tokens(grid)
        torch.testing.assert_close(compiled(x, grid=grid)[0], module(x, grid=grid)[0])


@pytest.mark.parametrize("variant", [name for name in shipped() if name != "shifted_window"])
def test_variants_without_a_grid_are_as_before(variant):
    options = {"max_len": 12, "k": 4} if variant == "linformer" else {}
    module = MultiHeadAttention(E, H, variant, **options).eval().double()
    x = tokens((3, 4))
    assert torch.equal(module(x, grid=(3, 4))[0], module(x)[0])


@pytest.mark.parametrize("variant", ["full", "shifted_window"])
@pytest.mark.parametrize(
    ("grid", "message"),
    [((3, 5), "holds 15 tokens, the input has 12"), ((3, 4, 1), "pair"), ((0, 12), "at least 1")],
    ids=str,
)
def test_a_grid_that_is_none(variant, grid, message):
    options = {"grid": (3, 4)} if variant == "shifted_window" else {}
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(E, H, variant, **options)(torch.zeros(1, 12, E), grid=grid)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_sequence_stays_one(need_weights):
    module = MultiHeadAttention(E, H, "shifted_window", window=4)
    with pytest.raises(OptionError, match=r"grid=\(3, 4\).*built for sequences"):
        module(torch.zeros(1, 12, E), need_weights=need_weights, grid=(3, 4))
