"""Every variant equals its dense float64 definition: outputs, weights and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from .conftest import (
    Case,
    H,
    attend,
    clear_module,
    kept,
    qkv,
    select,
    select_directions,
    select_lengths,
    through,
)
from .oracles import ORACLES, dense

# Windows of the cases are 3 and 4, linformer's k is 4: one, below, at and above each, and a prime.
LENGTHS = (1, 2, 3, 4, 5, 13)
TOLERANCE = {
    torch.float64: {"rtol": 1e-8, "atol": 1e-9},
    torch.float32: {"rtol": 2e-4, "atol": 2e-5},
}
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def known(case: Case) -> bool:
    return case.variant in ORACLES


def compare_with_gradients(
    case: Case, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, **masks: Any
) -> None:
    """Module output and gradients of q, k, v against the oracle's, computed in float64."""
    module = clear_module(case, heads=q.shape[1], width=q.shape[-1], dtype=dtype)
    mine = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    theirs = [x.detach().double().requires_grad_() for x in mine]
    out = through(module, *mine, **masks)
    want, _ = dense(case.variant, case.options, *theirs, core=module.core, **masks)
    assert_close(out.double(), want, **TOLERANCE[dtype])

    toward = torch.randn(want.shape, dtype=torch.float64)
    out.backward(toward.to(dtype))
    want.backward(toward.to(dtype).double())
    for name, a, b in zip("qkv", mine, theirs, strict=True):
        assert a.grad is not None, name
        assert_close(
            a.grad.double(), b.grad, msg=lambda m, n=name: f"d{n}: {m}", **TOLERANCE[dtype]
        )


@DTYPES
@select_lengths(*LENGTHS, needs=("noncausal_self",), where=known)
def test_self_attention(case: Case, N: int, dtype: torch.dtype) -> None:
    compare_with_gradients(case, *qkv(N), dtype)


@DTYPES
@select_lengths(*LENGTHS, needs=("causal_self",), where=known)
def test_causal_self_attention(case: Case, N: int, dtype: torch.dtype) -> None:
    compare_with_gradients(case, *qkv(N), dtype, causal=True)


LONG_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "full": [{}],
    "local_window": [
        {"window": 40},
        {"window": (70, 3)},
        {"window": 5, "global_tokens": 67},
        {"window": 1000},
    ],
    "linformer": [{"k": 33, "max_len": 200}],
    "performer": [{"num_features": 40}],
    "shifted_window": [{"window": 33, "shift": 16}, {"window": 1000, "shift": 3}],
}


@pytest.mark.parametrize("padded", [False, True], ids=["bare", "padded"])
@select_directions(
    cases=[Case(name, options) for name, all_ in LONG_OPTIONS.items() for options in all_]
)
def test_lengths_of_many_blocks(case: Case, causal: bool, padded: bool) -> None:
    """Long enough for every blocking to have a middle, and not a multiple of any."""
    N = 197
    present = None
    if padded:
        present = torch.rand(2, N, generator=torch.Generator().manual_seed(1)) > 0.3
        present[0, :90] = False
    compare_with_gradients(case, *qkv(N), torch.float64, causal=causal, key_padding=present)


@pytest.mark.parametrize(("N", "M"), [(1, 7), (5, 3), (4, 13), (7, 1)], ids=lambda n: str(n))
@select("noncausal_cross", where=lambda c: known(c) and not c.can("equal_lengths"))
def test_cross_attention(case: Case, N: int, M: int) -> None:
    compare_with_gradients(case, *qkv(N, M), torch.float64)


@pytest.mark.parametrize(("N", "M"), [(1, 7), (3, 5), (4, 13), (5, 2), (13, 12)], ids=str)
@select("causal_cross", where=lambda c: known(c) and not c.can("equal_lengths"))
def test_causal_cross_attention_aligns_bottom_right(case: Case, N: int, M: int) -> None:
    """With N > M the first N - M queries see nothing; with N < M the first sees M - N + 1."""
    compare_with_gradients(case, *qkv(N, M), torch.float64, causal=True)


@pytest.mark.parametrize("N", [1, 5, 13], ids="N{}".format)
@select_directions("key_padding", where=known)
def test_key_padding(case: Case, causal: bool, N: int) -> None:
    N = case.length or N
    generator = torch.Generator().manual_seed(1)
    present = torch.rand(3, N, generator=generator) > 0.4
    compare_with_gradients(
        case, *qkv(N, batch=3), torch.float64, key_padding=present, causal=causal
    )


@pytest.mark.parametrize("kind", ["bool", "float", "float_with_inf", "per_head"])
@select_directions("pairwise_mask", where=known)
def test_pairwise_mask(case: Case, causal: bool, kind: str) -> None:
    N = case.length or 7
    q, k, v = qkv(N)
    generator = torch.Generator().manual_seed(2)
    mask: Tensor = torch.randn(2, H, N, N, generator=generator, dtype=torch.float64)
    if kind != "per_head":
        mask = mask[0, 0]
    if kind in ("bool", "per_head"):
        mask = mask > 0
    if kind == "float_with_inf":
        mask = mask.masked_fill(mask < -0.5, -torch.inf)
    want, _ = dense(
        case.variant,
        case.options,
        q,
        k,
        v,
        attn_mask=mask,
        causal=causal,
        core=clear_module(case).core,
    )
    assert_close(attend(case, q, k, v, attn_mask=mask, is_causal=causal), want)


@pytest.mark.parametrize("N", [2, 7], ids="N{}".format)
@select_directions("weights", where=known)
def test_weights(case: Case, causal: bool, N: int) -> None:
    """Weights equal the definition's, and times the values they are the output."""
    N = case.length or N
    q, k, v = qkv(N)
    present = kept([N, max(1, N - 3)], N) if case.can("key_padding") else None
    module = clear_module(case)
    out, weights = through(module, q, k, v, key_padding=present, causal=causal, need_weights=True)
    _, want = dense(
        case.variant,
        case.options,
        q,
        k,
        v,
        key_padding=present,
        causal=causal,
        core=module.core,
    )
    assert_close(weights, want, rtol=1e-8, atol=1e-10)
    assert_close(out, weights @ v, rtol=1e-8, atol=1e-10)


@select_directions(where=lambda c: c.variant == "performer")
def test_large_scores_in_float32(case: Case, causal: bool) -> None:
    """q and k six times the usual: exponents of ±100 that no unstabilised sum survives."""
    q, k, v = qkv(150, spread=6.0, dtype=torch.float32)
    module = clear_module(case, dtype=torch.float32)
    mine = [x.requires_grad_() for x in (q, k, v)]
    out = through(module, *mine, causal=causal)
    want, _ = dense(case.variant, case.options, q, k, v, causal=causal, core=module.core)
    assert_close(out.double(), want, rtol=2e-3, atol=2e-3)
    out.square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in mine if x.grad is not None)


@select("noncausal_self", where=lambda c: c.functional and known(c) and c.variant != "performer")
def test_functional_equals_the_definition_with_wider_values(case: Case) -> None:
    q, k, v = qkv(case.length or 11, value_width=5)
    want, _ = dense(case.variant, case.options, q, k, v)
    assert_close(attend(case, q, k, v), want)
