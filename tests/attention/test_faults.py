"""Kinds of faults that public implementations have, each impossible here, for every variant."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import (
    CASES,
    NOT_AVERAGES,
    ONE_EACH,
    TRANSLATION_INVARIANT,
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

EXACT = {"rtol": 1e-8, "atol": 1e-9}


# --- rows that see nothing ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
@select_directions("key_padding")
def test_a_sample_without_keys_gives_zeros(case: Case, causal: bool, dtype: torch.dtype) -> None:
    N = case.length or 6
    q, k, v = (x.requires_grad_() for x in qkv(N, dtype=dtype))
    out = through(
        clear_module(case, dtype=dtype), q, k, v, key_padding=kept([0, N], N), causal=causal
    )
    assert (out[0] == 0).all()
    assert torch.isfinite(out).all()
    out.float().square().sum().backward()
    for x in (q, k, v):
        assert torch.isfinite(x.grad).all()
        assert (x.grad[0] == 0).all()


@pytest.mark.parametrize("kind", ["bool", "-inf", "finfo.min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@select("pairwise_mask", "noncausal_self")
def test_a_row_masked_whole_gives_zeros(case: Case, dtype: torch.dtype, kind: str) -> None:
    """Whichever way "never" is spelled, not the mean of what was masked."""
    N = case.length or 6
    q, k, v = (x.requires_grad_() for x in qkv(N, dtype=dtype))
    if kind == "bool":
        mask = torch.ones(N, N, dtype=torch.bool)
        mask[2] = False
    else:
        mask = torch.zeros(N, N, dtype=dtype)
        mask[2] = float("-inf") if kind == "-inf" else torch.finfo(dtype).min
    out = attend(case, q, k, v, attn_mask=mask)
    assert (out[:, :, 2] == 0).all()
    out.float().square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@select("pairwise_mask", "key_padding", "noncausal_self")
def test_masks_on_masks_do_not_overflow(case: Case, dtype: torch.dtype) -> None:
    """finfo.min plus finfo.min is -inf, and -inf minus -inf is NaN."""
    N = case.length or 6
    q, k, v = (x.requires_grad_() for x in qkv(N, dtype=dtype))
    mask = torch.full((N, N), torch.finfo(dtype).min, dtype=dtype).triu(1)
    causal = case.can("causal_self")
    out = attend(
        case, q, k, v, attn_mask=mask, key_padding_mask=kept([N - 2, 0], N), is_causal=causal
    )
    assert torch.isfinite(out).all()
    out.float().square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


@select("key_padding", "causal_self")
def test_two_stacked_layers_with_left_padding(case: Case) -> None:
    """Causal rows before the first real token see nothing; one NaN there would fill layer two."""
    N, lengths = 9, [9, 4]
    torch.manual_seed(3)
    layers = [ea.MultiHeadAttention(16, 2, case.variant, **case.options) for _ in range(2)]
    x = torch.randn(2, N, 16, requires_grad=True)
    hidden: Tensor = x
    for layer in layers:
        hidden, _ = layer(hidden, key_padding_mask=~kept(lengths, N, side="left"), is_causal=True)
    assert torch.isfinite(hidden).all()
    hidden.square().sum().backward()
    assert torch.isfinite(x.grad).all()
    for layer in layers:
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)
    if case.variant in TRANSLATION_INVARIANT and not case.options.get("global_tokens"):
        alone = x[1:, N - 4 :].detach()
        for layer in layers:
            alone, _ = layer(alone, is_causal=True)
        assert_close(hidden[1:, N - 4 :], alone, rtol=1e-4, atol=1e-5)


@select("key_padding", "noncausal_self")
def test_the_module_gives_its_output_bias_where_nothing_is_seen(case: Case) -> None:
    module = ea.MultiHeadAttention(16, 2, case.variant, **case.options).eval()
    with torch.no_grad():
        module.out_proj.bias.normal_()
    N = case.length or 5
    out, _ = module(torch.randn(2, N, 16), key_padding_mask=~kept([0, N], N))
    assert_close(out[0], module.out_proj.bias.expand(N, 16))


# --- leakage and coupling ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, EXACT), (torch.float32, {"rtol": 1e-4, "atol": 1e-5})],
    ids=["f64", "f32"],
)
@pytest.mark.parametrize("late", [1, 40, 149])
@select("causal_self")
def test_a_large_late_token_moves_nothing_earlier(
    case: Case, late: int, dtype: torch.dtype, tolerance: dict[str, float]
) -> None:
    """Small nudges miss a stabiliser taken over the whole sequence; a token thirty times the
    usual does not. 150 tokens span several chunks of a prefix sum."""
    N = 150
    options = {**case.options, **({"max_len": N} if "max_len" in case.options else {})}
    module = clear_module(Case(case.variant, options), dtype=dtype)
    q, k, v = qkv(N, dtype=dtype)
    before = through(module, q, k, v, causal=True)
    for x in (q, k, v):
        x[:, :, late] *= 30
    after = through(module, q, k, v, causal=True)
    assert_close(after[:, :, :late], before[:, :, :late], **tolerance)


@select("causal_self")
def test_causal_output_equals_the_prefix_alone(case: Case) -> None:
    N = 40
    module = clear_module(case)
    q, k, v = qkv(N)
    whole = through(module, q, k, v, causal=True)
    for n in (1, 2, 3, 4, 5, 13, 32, 33, 39):
        prefix = through(module, *(x[:, :, :n] for x in (q, k, v)), causal=True)
        assert_close(whole[:, :, :n], prefix, **EXACT)


@select("causal_self")
def test_causal_gradients_do_not_come_from_the_future(case: Case) -> None:
    N, t = 20, 11
    q, k, v = (x.requires_grad_() for x in qkv(N))
    through(clear_module(case), q, k, v, causal=True)[:, :, :t].sum().backward()
    for x in (q, k, v):
        assert (x.grad[:, :, t:] == 0).all()


@pytest.mark.parametrize("size", [30.0, 1e3])
@select_directions()
def test_a_sample_does_not_depend_on_its_neighbours(case: Case, causal: bool, size: float) -> None:
    q, k, v = qkv(case.length or 20, batch=3)
    module = clear_module(case)
    alone = through(module, *(x[:1] for x in (q, k, v)), causal=causal)
    for x in (q, k, v):
        x[1] *= size
        x[2] /= size
    assert_close(through(module, q, k, v, causal=causal)[:1], alone, **EXACT)


# --- normalisers and half precision ------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
@select_directions(where=lambda c: c.variant not in NOT_AVERAGES)
def test_values_of_one_give_one(case: Case, causal: bool, spread: float) -> None:
    q, k, v = qkv(case.length or 30, dtype=torch.float32, spread=spread)
    out = through(clear_module(case, dtype=torch.float32), q, k, torch.ones_like(v), causal=causal)
    assert_close(out, torch.ones_like(out), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@select_directions(
    cases=[c for c in ONE_EACH if c.variant not in NOT_AVERAGES and c.length is None]
)
def test_long_sums_do_not_saturate_in_half_precision(
    case: Case, causal: bool, dtype: torch.dtype
) -> None:
    """bf16 counts to 256 and fp16 to 65504: normalisers must be summed in fp32."""
    q, k, v = qkv(1200, batch=1, heads=1, dtype=dtype)
    out = attend(case, q, k, torch.ones_like(v), is_causal=causal)
    assert_close(out.float(), torch.ones_like(out).float(), rtol=0, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@select_directions()
def test_half_precision_is_near_float32(case: Case, causal: bool, dtype: torch.dtype) -> None:
    q, k, v = qkv(case.length or 40, dtype=dtype)
    half = [x.requires_grad_() for x in (q, k, v)]
    out = attend(case, *half, is_causal=causal)
    assert out.dtype == dtype
    want = attend(case, *(x.detach().float() for x in half), is_causal=causal)
    assert_close(out.float(), want, rtol=0.05, atol=0.05)
    out.float().square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in half)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@select_directions()
def test_half_precision_of_large_scores_is_finite(
    case: Case, causal: bool, dtype: torch.dtype
) -> None:
    q, k, v = (x.requires_grad_() for x in qkv(case.length or 40, dtype=dtype, spread=10.0))
    out = attend(case, q, k, v, is_causal=causal)
    assert torch.isfinite(out).all()
    out.float().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_autocast_is_near_float32(case: Case) -> None:
    torch.manual_seed(1)
    module = ea.MultiHeadAttention(16, 2, case.variant, **case.options)
    x = torch.randn(2, case.length or 20, 16)
    want, _ = module(x, is_causal=direction(case))
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = module(x, is_causal=direction(case))
    assert_close(out.float(), want, rtol=0.05, atol=0.05)
    out.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_module_in_half_precision_runs(case: Case, dtype: torch.dtype) -> None:
    module = ea.MultiHeadAttention(16, 2, case.variant, dtype=dtype, **case.options)
    assert all(p.dtype == dtype for p in module.parameters())
    out, _ = module(torch.randn(2, case.length or 9, 16, dtype=dtype), is_causal=direction(case))
    assert out.dtype == dtype
    assert torch.isfinite(out).all()
