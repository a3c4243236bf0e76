"""Positions cost no matrix, and are refused by name where they cannot be carried."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import efficient_attn as ea
from efficient_attn.attention.errors import OptionError

from .conftest import CASES, Case, clear_module, kept, qkv, suggests_an_alternative, through
from .position_formulas import KINDS, definition, positioned
from .test_memory import LONG_OPTIONS, Largest

EXACT = {"rtol": 1e-7, "atol": 1e-8}
CARRIERS = {
    "rotary": {"full", "local_window", "performer", "shifted_window"},
    "alibi": {"full", "local_window", "shifted_window"},
}


# --- what it costs -------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True], ids=["bare", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(LONG_OPTIONS))
def test_linear_variants_stay_linear(name: str, kind: str, causal: bool, padded: bool) -> None:
    """Forward and backward at N = 2048 hold nothing near N² elements in one piece."""
    N = 2048
    case = Case(name, LONG_OPTIONS[name])
    if not case.can(kind):
        pytest.skip(f"{name} has no capability {kind}")
    module = ea.MultiHeadAttention(8, 1, name, positions=kind, **case.options)
    mask = ~kept([N - 5], N) if padded else None
    with Largest() as largest:
        out, _ = module(torch.randn(1, N, 8), is_causal=causal, key_padding_mask=mask)
        out.sum().backward()
    assert largest.numel < N * N / 8, f"{largest.by} made {largest.numel} elements"


@pytest.mark.parametrize("padded", [False, True], ids=["bare", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_full_attention_keeps_no_square(kind: str, causal: bool, padded: bool) -> None:
    """ALiBi's bias exists for 512 queries at a time."""
    N, H = 2048, 2
    module = ea.MultiHeadAttention(8, H, "full", positions=kind)
    mask = ~kept([N - 5], N) if padded else None
    with Largest() as largest:
        out, _ = module(torch.randn(1, N, 8), is_causal=causal, key_padding_mask=mask)
        out.sum().backward()
    assert largest.numel <= H * 512 * N, f"{largest.by} made {largest.numel} elements"


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_who_carries_positions(kind: str) -> None:
    known = {"full", "linformer", "local_window", "performer", "shifted_window"}
    able = {name for name in known if getattr(ea.describe(name).capabilities, kind)}
    assert able == CARRIERS[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_refused_at_construction_where_it_cannot_be(case: Case, kind: str) -> None:
    if case.can(kind):
        pytest.skip(f"{case.variant} has {kind}")
    with pytest.raises(ea.UnsupportedAttention) as caught:
        ea.MultiHeadAttention(16, 2, case.variant, positions=kind, **case.options)
    assert suggests_an_alternative(caught.value, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [c for c in CASES if c.length is not None], ids=str)
def test_on_a_grid_honoured_exactly_or_refused(case: Case, kind: str) -> None:
    """A place on a grid is no number; whoever takes it for one takes the row-major one."""
    try:
        module = clear_module(positioned(case, kind))
    except ea.UnsupportedAttention:
        return  # the refusal itself is tested above
    assert kind == "rotary", "ALiBi's distance has no meaning on a grid"
    q, k, v = qkv(case.length or 0)
    want, _ = definition(case, kind, q, k, v, causal=False, core=module.core)
    assert_close(through(module, q, k, v), want, **EXACT)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.can("rotary") and c.can("noncausal_cross")], ids=str
)
def test_rotary_is_refused_across_sequences(case: Case) -> None:
    module = ea.MultiHeadAttention(16, 2, case.variant, positions="rotary", **case.options)
    x, other = torch.randn(2, 2, 9, 16)
    with pytest.raises(ea.UnsupportedAttention, match="rotary"):
        module(x, other)


def test_rotary_needs_an_even_width() -> None:
    with pytest.raises(OptionError, match="head_dim") as caught:
        ea.MultiHeadAttention(9, 3, positions="rotary")
    assert "3" in str(caught.value)
    ea.MultiHeadAttention(9, 3, positions="alibi")
    ea.MultiHeadAttention(9, 3, positions="rotary", head_dim=4)


@pytest.mark.parametrize("value", ["rotray", "sinusoidal", "", True, 1, ["rotary"]], ids=repr)
def test_positions_of_another_name(value: Any) -> None:
    with pytest.raises(OptionError, match="positions") as caught:
        ea.MultiHeadAttention(16, 2, positions=value)
    assert repr(value) in str(caught.value)
    assert "rotary" in str(caught.value)
    assert "alibi" in str(caught.value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "10000", True], ids=repr)
def test_a_base_out_of_range(value: Any) -> None:
    with pytest.raises(OptionError, match="rotary_base") as caught:
        ea.MultiHeadAttention(16, 2, positions="rotary", rotary_base=value)
    assert str(value) in str(caught.value)


def test_no_positions_is_the_default() -> None:
    x = torch.randn(2, 9, 16)
    plain = ea.MultiHeadAttention(16, 2).eval()
    none = ea.MultiHeadAttention(16, 2, positions=None).eval()
    none.load_state_dict(plain.state_dict())
    assert torch.equal(none(x)[0], plain(x)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_positions_add_nothing_to_a_checkpoint(kind: str) -> None:
    """Weights trained without positions, or by another library, load as they are."""
    plain = ea.MultiHeadAttention(16, 2).state_dict()
    ea.MultiHeadAttention(16, 2, positions=kind).load_state_dict(plain, strict=True)
