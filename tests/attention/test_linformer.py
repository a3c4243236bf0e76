"""Linformer's shortcuts: inputs mixed before they are projected, and heads mixed side by side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import efficient_attn as ea
from efficient_attn.attention.errors import OptionError
from efficient_attn.attention.kernels.mixing import mix, mix_formula

B, N, M, E, HEADS, K = 3, 7, 20, 16, 2, 4
EXISTS = torch.arange(M) < torch.tensor([M, 5, 0])[:, None]
RAGGED = torch.rand(B, M, generator=torch.Generator().manual_seed(0)) < 0.6


def module(**kwargs: Any) -> ea.MultiHeadAttention:
    torch.manual_seed(0)
    made = ea.MultiHeadAttention(E, HEADS, "linformer", k=K, max_len=M + 3, **kwargs).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def results(made: ea.MultiHeadAttention, inputs: list[Tensor], **kwargs: Any) -> list[Tensor]:
    """Output, and gradients of inputs and parameters."""
    leaves = [*(x.detach().requires_grad_() for x in inputs)]
    out = made(*leaves, **kwargs)[0]
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out, *torch.autograd.grad((out * weight).sum(), [*leaves, *made.parameters()])]


@pytest.mark.parametrize("exists", [None, EXISTS, RAGGED], ids=["whole", "padded", "ragged"])
@pytest.mark.parametrize("inputs", ["self", "cross", "all apart"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"share": "kv"},
        {"share": "layers", "bias": False},
        {"num_kv_heads": 1},
        {"kdim": 12, "vdim": 10},
    ],
    ids=str,
)
def test_inputs_mixed_before_their_projections_give_the_same(
    options: dict[str, Any], inputs: str, exists: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = module(**options)
    kdim, vdim = made.kdim, made.vdim
    if inputs != "all apart" and kdim != vdim:
        pytest.skip("one input has one width")
    tokens = [torch.randn(B, M, E), torch.randn(B, M, kdim), torch.randn(B, M, vdim)]
    if inputs != "self":
        tokens[0] = torch.randn(B, N, E)
    given = [x.double() for x in tokens[: {"self": 1, "cross": 2, "all apart": 3}[inputs]]]
    masks = {} if exists is None else {"key_padding_mask": ~exists}
    calls = []
    shorten = type(made.core).shorten
    monkeypatch.setattr(type(made.core), "shorten", lambda *args: calls.append(1) or shorten(*args))
    found = results(made, given, **masks)
    assert calls
    plain = results(made, given, **masks, need_weights=True)
    assert len(calls) == 1
    for mine, theirs in zip(found, plain, strict=True):
        assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_what_padding_holds_is_never_read() -> None:
    made, x = module(), torch.randn(B, M, E, dtype=torch.float64)
    poisoned = x.masked_fill(~RAGGED[:, :, None], float("nan"))
    query = torch.randn(B, N, E, dtype=torch.float64)
    clean = results(made, [query, x], key_padding_mask=~RAGGED)
    dirty = results(made, [query, poisoned], key_padding_mask=~RAGGED)
    for mine, theirs in zip(dirty, clean, strict=True):
        assert_close(mine, theirs)


def test_what_does_not_fit_is_refused_as_on_the_plain_path() -> None:
    made = module()
    x = torch.randn(B, M, E, dtype=torch.float64)
    with pytest.raises(OptionError, match="max_len"):
        made(torch.randn(B, M + 4, E, dtype=torch.float64))
    with pytest.raises(ea.UnsupportedAttention, match="causal"):
        made(x, is_causal=True)
    with pytest.raises(ea.UnsupportedAttention, match="pairwise"):
        made(x, attn_mask=torch.zeros(M, M, dtype=torch.bool))
    with pytest.raises(ea.UnsupportedAttention, match="pairwise"):
        made(x, key_padding_mask=torch.full((B, M), 0.5))
    with pytest.raises(ValueError, match="shapes do not fit"):
        made(x, x[:2], x[:2])
    with pytest.raises(ValueError, match="shapes do not fit"):
        made(x, x, x[:, 1:])


LAYOUTS = {
    "tokens": lambda: torch.randn(B, M, 6),
    "tokens, every second": lambda: torch.randn(B, 2 * M, 6)[:, ::2],
    "heads beside each other": lambda: torch.randn(B, M, 2, 3),
    "heads apart": lambda: torch.randn(B, 2, M, 3).transpose(1, 2),
}


@pytest.mark.parametrize("exists", [None, RAGGED], ids=["whole", "ragged"])
@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_mixing_and_its_gradients_of_both_orders(
    layout: str, ones: bool, exists: Tensor | None
) -> None:
    torch.manual_seed(0)
    x = LAYOUTS[layout]().double().requires_grad_()
    matrices = [torch.randn(1, 2, M + k, dtype=torch.float64).requires_grad_() for k in (0, 2)]

    def mixed(x: Tensor, *matrices: Tensor) -> Tensor:
        return mix(matrices, x, exists, ones=ones)

    assert_close(mixed(x, *matrices), mix_formula(matrices, x, exists, ones=ones))
    with torch.no_grad():
        assert_close(mixed(x, *matrices), mix_formula(matrices, x, exists, ones=ones))
    fast = {"fast_mode": True}
    assert torch.autograd.gradcheck(mixed, (x, *matrices), **fast)
    assert torch.autograd.gradgradcheck(mixed, (x, *matrices), **fast)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_many_samples_are_summed_in_fp32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, M, 6).to(dtype)
    E = torch.randn(1, K, M).to(dtype).requires_grad_()
    mixed = mix([E], x, ones=True)
    (found,) = torch.autograd.grad(mixed, E, torch.ones_like(mixed))
    wide = x.double().sum((0, 2)) + len(x)
    assert_close(found[0, 0].double(), wide, rtol=3 * torch.finfo(dtype).eps, atol=0.1)


def test_autocast_mixes_in_half_precision() -> None:
    made, x = module().float(), torch.randn(B, M, E)
    want = made(x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        got = made(x)[0]
    assert got.dtype == torch.bfloat16
    assert_close(got.float(), want, rtol=0.05, atol=0.05)
    got.float().sum().backward()
    assert made.core.E.grad is not None
    assert made.core.E.grad.dtype == torch.float32
