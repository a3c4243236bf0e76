"""Tests that faults made on purpose (`mutations.py`) had once passed all others without."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import (
    CASES,
    Case,
    attend,
    clear_module,
    direction,
    kept,
    qkv,
    select,
    select_directions,
    through,
)
from .oracles import ORACLES, dense

EXACT = {"rtol": 1e-8, "atol": 1e-9}


@select_directions()
def test_a_sample_of_large_keys_does_not_vanish_beside_small_ones(case: Case, causal: bool) -> None:
    """A maximum over the batch cancels in the quotient until the exponent of one sample, seen from
    that of another, is below every number there is."""
    q, k, v = qkv(case.length or 20)
    k[0] *= 100
    k[1] /= 1e3
    module = clear_module(case)
    alone = through(module, *(x[:1] for x in (q, k, v)), causal=causal)
    assert_close(through(module, q, k, v, causal=causal)[:1], alone, **EXACT)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_a_normaliser_of_performer_that_vanishes_in_float32(causal: bool) -> None:
    """Queries and keys that point apart by far: no feature is large for both."""
    case = Case("performer", {"num_features": 16})
    q, _, v = qkv(12, spread=20.0, dtype=torch.float32)
    module = clear_module(case, dtype=torch.float32)
    want, _ = dense(case.variant, case.options, q, -q, v, causal=causal, core=module.core)
    assert_close(through(module, q, -q, v, causal=causal).double(), want, rtol=1e-3, atol=1e-3)


@select_directions(where=lambda c: c.variant in ORACLES)
def test_queries_far_larger_than_keys(case: Case, causal: bool) -> None:
    """Their exponents alone pass what fp32 holds, whatever the keys take from them."""
    q, k, v = qkv(case.length or 20, dtype=torch.float32)
    q *= 40
    module = clear_module(case, dtype=torch.float32)
    want, _ = dense(case.variant, case.options, q, k, v, causal=causal, core=module.core)
    assert_close(through(module, q, k, v, causal=causal).double(), want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("added", ["soft", "soft_and_never"])
@select("pairwise_mask", "key_padding", "noncausal_self")
def test_a_float_padding_mask_is_added_to_the_scores(case: Case, added: str) -> None:
    N = case.length or 7
    q, k, v = qkv(N)
    mask = torch.randn(2, N, dtype=torch.float64)
    if added == "soft_and_never":
        mask[1, N - 2 :] = -torch.inf
    module = clear_module(case)
    want, _ = dense(
        case.variant, case.options, q, k, v, attn_mask=mask[:, None, None, :], core=module.core
    )
    x = torch.cat([y.transpose(1, 2).flatten(2) for y in (q, k, v)], -1)
    out, _ = module(x, key_padding_mask=mask)
    assert_close(out[..., : v.shape[1] * v.shape[3]], want.transpose(1, 2).flatten(2), **EXACT)


@pytest.mark.parametrize(("N", "M"), [(1100, 1100), (700, 1100), (1100, 700)], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["bare", "padded"])
def test_long_causal_attention_of_full_equals_the_formula(N: int, M: int, padded: bool) -> None:
    """Long enough for several chunks of queries, the last of them not full."""
    q, k, v = qkv(N, M, heads=1, width=4)
    present = kept([M, M - 300], M, side="left") if padded else None
    fused, naive = (
        ea.attention(q, k, v, is_causal=True, key_padding_mask=present, implementation=name)
        for name in ("fused", "naive")
    )
    assert_close(fused, naive, **EXACT)


@select_directions()
def test_scores_that_float16_cannot_hold(case: Case, causal: bool) -> None:
    """The product of queries and keys passes 65504, the output does not."""
    q, k, v = qkv(case.length or 20, dtype=torch.float16, spread=250.0)
    out = attend(case, q, k, v, is_causal=causal)
    want = attend(case, *(x.float() for x in (q, k, v)), is_causal=causal)
    assert_close(out.float(), want, rtol=0.01, atol=0.01)
    if case.can("weights"):
        _, weights = attend(case, q, k, v, is_causal=causal, need_weights=True)
        assert torch.isfinite(weights).all()


@select_directions()
def test_autocast_does_not_reach_the_sums(case: Case, causal: bool) -> None:
    """Of tensors that are in half precision already, autocast has nothing left to take."""
    q, k, v = qkv(case.length or 40, dtype=torch.bfloat16, spread=4.0)
    want = attend(case, q, k, v, is_causal=causal)
    with torch.autocast("cpu", torch.bfloat16):
        got = attend(case, q, k, v, is_causal=causal)
    assert_close(got, want, rtol=0, atol=0)


@select("noncausal_cross", where=lambda c: not c.can("equal_lengths"))
@pytest.mark.parametrize("widths", [{}, {"kdim": 12, "vdim": 20}], ids=["packed", "apart"])
def test_every_parameter_gets_a_gradient_in_cross_attention(
    case: Case, widths: dict[str, int]
) -> None:
    module = ea.MultiHeadAttention(16, 2, case.variant, **widths, **case.options)
    key, value = torch.randn(2, 9, module.kdim), torch.randn(2, 9, module.vdim)
    out, _ = module(torch.randn(2, 5, 16), key, value)
    out.square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, f"{name} gets no gradient"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_history_leaves_no_trace_in_long_sequences(case: Case) -> None:
    """As for short ones, where blocks and chunks are many."""
    N = case.length or 200
    longest = {"max_len": 200} if "max_len" in case.options else {}
    module = ea.MultiHeadAttention(16, 2, case.variant, **{**case.options, **longest}).eval()
    x = torch.randn(2, N, 16)
    first, _ = module(x, is_causal=direction(case))
    for length in [1, 150] if case.length is None else [N]:
        module(torch.randn(1, length, 16) * 10, is_causal=direction(case))
    assert torch.equal(module(x, is_causal=direction(case))[0], first)


def test_a_float_mask_beyond_half_precision() -> None:
    """A mask of fp32 whose numbers fp16 does not hold once made a row NaN."""
    q, k, v = qkv(4, dtype=torch.float16)
    mask = torch.zeros(4, 4)
    mask[2] = 1e6
    mask[3] = -1e9
    out = ea.attention(q, k, v, attn_mask=mask)
    want = ea.attention(q.float(), k.float(), v.float(), attn_mask=mask.clamp(-1e4, 1e4))
    assert_close(out.float(), want, rtol=0, atol=5e-3)
