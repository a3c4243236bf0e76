"""Rotary and ALiBi positions equal their formulas, and mean what positions mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import (
    CASES,
    ONE_EACH,
    TRANSLATION_INVARIANT,
    Case,
    clear_module,
    kept,
    qkv,
    through,
)
from .position_formulas import KINDS, carrying, definition, positioned, slopes

EXACT = {"rtol": 1e-7, "atol": 1e-8}
LENGTHS = (1, 2, 23, 95)


@pytest.mark.parametrize("N", LENGTHS)
@carrying()
def test_positions_equal_their_formula(case: Case, kind: str, causal: bool, N: int) -> None:
    module = clear_module(positioned(case, kind))
    q, k, v = qkv(N)
    want, _ = definition(case, kind, q, k, v, causal=causal, core=module.core)
    assert_close(through(module, q, k, v, causal=causal), want, **EXACT)


@pytest.mark.parametrize("N", [23, 95])
@carrying()
def test_positions_with_padding(case: Case, kind: str, causal: bool, N: int) -> None:
    module = clear_module(positioned(case, kind))
    q, k, v = qkv(N, batch=3)
    padding = kept([N, N - 9, 0], N)
    want, _ = definition(case, kind, q, k, v, causal=causal, key_padding=padding, core=module.core)
    got = through(module, q, k, v, causal=causal, key_padding=padding)
    assert_close(got, want, **EXACT)


@carrying()
def test_weights_with_positions(case: Case, kind: str, causal: bool) -> None:
    if not case.can("weights"):
        pytest.skip(f"{case.variant} has no capability weights")
    module = clear_module(positioned(case, kind))
    q, k, v = qkv(11)
    _, want = definition(case, kind, q, k, v, causal=causal, core=module.core)
    out, weights = through(module, q, k, v, causal=causal, need_weights=True)
    assert_close(weights, want, **EXACT)
    assert_close(out, weights @ v, **EXACT)


@carrying()
def test_gradients_with_positions(case: Case, kind: str, causal: bool) -> None:
    module = clear_module(positioned(case, kind))
    ours = [x.requires_grad_() for x in qkv(90, batch=1)]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    through(module, *ours, causal=causal).square().sum().backward()
    want, _ = definition(case, kind, *theirs, causal=causal, core=module.core)
    want.square().sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine.grad, other.grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mask", ["bool", "float"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [c for c in CASES if c.can("pairwise_mask")], ids=str)
def test_positions_with_a_pairwise_mask(case: Case, kind: str, causal: bool, mask: str) -> None:
    module = clear_module(positioned(case, kind))
    q, k, v = qkv(11)
    drawn = torch.randn(11, 11, dtype=torch.float64)
    attn_mask = drawn > -0.5 if mask == "bool" else drawn
    want, _ = definition(case, kind, q, k, v, causal=causal, attn_mask=attn_mask)
    assert_close(through(module, q, k, v, causal=causal, attn_mask=attn_mask), want, **EXACT)


@pytest.mark.parametrize("base", [100.0, 500000.0])
@carrying("rotary", directions=(False,))
def test_the_base_of_rotary(case: Case, kind: str, causal: bool, base: float) -> None:
    module = clear_module(positioned(case, kind, rotary_base=base))
    q, k, v = qkv(23)
    want, _ = definition(case, kind, q, k, v, base, causal=causal, core=module.core)
    assert_close(through(module, q, k, v, causal=causal), want, **EXACT)


@pytest.mark.parametrize("H", [1, 2, 3, 4, 6, 8, 12])
@carrying("alibi")
def test_slopes_of_any_number_of_heads(case: Case, kind: str, causal: bool, H: int) -> None:
    module = clear_module(positioned(case, kind), heads=H, width=2)
    q, k, v = qkv(12, heads=H, width=2)
    want, _ = definition(case, kind, q, k, v, causal=causal, core=module.core)
    assert_close(through(module, q, k, v, causal=causal), want, **EXACT)


@pytest.mark.parametrize(
    ("H", "printed"),
    [
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (3, [2**-4, 2**-8, 2**-2]),
    ],
    ids=str,
)
def test_the_slopes_here_are_those_the_paper_prints(H: int, printed: list[float]) -> None:
    assert slopes(H) == printed


@carrying()
def test_grouped_heads_equal_repeated_ones(case: Case, kind: str, causal: bool) -> None:
    """Slopes belong to query heads, of which two share a key head."""
    build: dict[str, Any] = {"positions": kind, "dtype": torch.float64, **case.options}
    grouped = ea.MultiHeadAttention(24, 6, case.variant, num_kv_heads=3, **build).eval()
    repeated = ea.MultiHeadAttention(24, 6, case.variant, **build).eval()
    weights = grouped.state_dict()
    q, k, v = weights["in_proj_weight"].split([24, 12, 12])
    k, v = (x.unflatten(0, (3, 4)).repeat_interleave(2, 0).flatten(0, 1) for x in (k, v))
    weights["in_proj_weight"] = torch.cat([q, k, v])
    weights["in_proj_bias"] = torch.zeros(72, dtype=torch.float64)
    repeated.load_state_dict(weights)
    x = torch.randn(2, 70, 24, dtype=torch.float64)
    assert_close(grouped(x, is_causal=causal)[0], repeated(x, is_causal=causal)[0], **EXACT)


def test_rotary_equals_transformers_llama() -> None:
    """The pairing of Llama: the first half of a head's width with the second."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    N, D = 23, 8
    q, k, v = qkv(N, width=D)
    frequencies = 10000.0 ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = torch.outer(torch.arange(N, dtype=torch.float64), frequencies)
    cos, sin = (f(torch.cat([angles, angles], -1))[None] for f in (torch.cos, torch.sin))
    turned_q, turned_k = llama.apply_rotary_pos_emb(q, k, cos, sin)
    module = clear_module(positioned(Case("full", {}), "rotary"), width=D)
    for causal in (False, True):
        want = F.scaled_dot_product_attention(turned_q, turned_k, v, is_causal=causal)
        assert_close(through(module, q, k, v, causal=causal), want, **EXACT)


# --- what positions mean -------------------------------------------------------------------------


@carrying()
def test_only_differences_of_positions_matter(case: Case, kind: str, causal: bool) -> None:
    """Left padding moves every position by the same amount and changes nothing.

    Not so for random features, which see the turned vectors themselves, nor for windows that are
    counted from the start.
    """
    fixed = case.options.get("global_tokens") or case.variant == "performer"
    if case.variant not in TRANSLATION_INVARIANT or fixed:
        pytest.skip(f"{case} has no capability to move: it depends on where the sequence starts")
    module = clear_module(positioned(case, kind))
    q, k, v = qkv(100, batch=1)
    alone = through(module, q, k, v, causal=causal)
    for shift in (1, 30):
        moved = [F.pad(x, (0, 0, shift, 0), value=3.0) for x in (q, k, v)]
        out = through(
            module, *moved, causal=causal, key_padding=kept([100], 100 + shift, side="left")
        )
        assert_close(out[:, :, shift:], alone, **EXACT)


@carrying(directions=(True,))
def test_a_prefix_does_not_know_what_follows(case: Case, kind: str, causal: bool) -> None:
    module = clear_module(positioned(case, kind))
    q, k, v = qkv(150)
    for x in (q, k, v):
        x[:, :, 100:] *= 30
    whole = through(module, q, k, v, causal=causal)
    for n in (1, 60, 100):
        prefix = through(module, *(x[:, :, :n] for x in (q, k, v)), causal=causal)
        assert_close(whole[:, :, :n], prefix, **EXACT)


@carrying()
def test_order_matters_with_positions(case: Case, kind: str, causal: bool) -> None:
    """An option that is accepted and dropped would leave the output as it is without."""
    q, k, v = qkv(23)
    plain = through(clear_module(case), q, k, v, causal=causal)
    with_positions = through(clear_module(positioned(case, kind)), q, k, v, causal=causal)
    assert (with_positions - plain).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@carrying(cases=ONE_EACH)
def test_far_positions_in_half_precision(
    case: Case, kind: str, causal: bool, dtype: torch.dtype
) -> None:
    """bfloat16 has no whole numbers above 256 but even ones: angles and distances need fp32."""
    module = clear_module(positioned(case, kind), dtype=dtype)
    q, k, v = qkv(520, batch=1, dtype=dtype, spread=0.5)
    want, _ = definition(case, kind, q, k, v, causal=causal, core=module.core)
    got = through(module, q, k, v, causal=causal)
    assert got.dtype == dtype
    assert_close(got.double(), want, rtol=0.05, atol=0.05)


@carrying(cases=ONE_EACH)
def test_float32_is_close_to_float64(case: Case, kind: str, causal: bool) -> None:
    module = clear_module(positioned(case, kind), dtype=torch.float32)
    q, k, v = qkv(520, batch=1, dtype=torch.float32, spread=0.5)
    want, _ = definition(case, kind, q, k, v, causal=causal, core=module.core)
    assert_close(through(module, q, k, v, causal=causal).double(), want, rtol=1e-3, atol=2e-4)
