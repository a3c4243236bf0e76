"""A mask is honoured exactly or refused loudly, and padding never changes what is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import (
    CASES,
    ONE_EACH,
    TRANSLATION_INVARIANT,
    Case,
    attend,
    clear_module,
    kept,
    pack,
    qkv,
    select,
    select_directions,
    suggests_an_alternative,
    through,
    unpack,
)
from .oracles import local_pairs, shifted_pairs

EXACT = {"rtol": 1e-8, "atol": 1e-9}

# What is asked -> the capability that decides whether it is honoured or refused.
REQUESTS = [
    "causal_self",
    "causal_cross",
    "noncausal_self",
    "noncausal_cross",
    "key_padding",
    "pairwise_bool",
    "pairwise_float",
]


def ask(case: Case, request_: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """The output with the request and without it, through the module."""
    # Cross attention shows in unequal lengths, except where equal ones are all that is offered.
    cross = request_.endswith("cross")
    if cross and case.can(request_):
        cross = not case.can("equal_lengths")
    N = case.length or 9
    q, k, v = qkv(N, N + 2 if cross else N, dtype=dtype)
    module = clear_module(case, dtype=dtype)
    masks: dict[str, Any] = {}
    if request_.startswith("causal"):
        masks["causal"] = True
    elif request_ == "key_padding":
        masks["key_padding"] = kept([N - 2, N - 1], N)
    elif request_ == "pairwise_bool":
        masks["attn_mask"] = torch.ones(N, N, dtype=torch.bool).tril(1)
    elif request_ == "pairwise_float":
        masks["attn_mask"] = torch.randn(N, N, dtype=dtype)
    with_mask = through(module, q, k, v, **masks)
    if request_.startswith("noncausal") or not case.can("noncausal_self"):
        return with_mask, torch.full_like(with_mask, torch.nan)
    return with_mask, through(module, q, k, v)


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_honoured_or_refused(case: Case, request_: str) -> None:
    """Every kind of mask either changes the output or raises, naming variants that would do."""
    capability = "pairwise_mask" if request_.startswith("pairwise") else request_
    if case.can(capability):
        masked, bare = ask(case, request_)
        assert torch.isfinite(masked).all()
        assert not torch.allclose(masked, bare), f"{request_} was accepted and dropped"
    else:
        with pytest.raises(ea.UnsupportedAttention) as caught:
            ask(case, request_)
        assert case.variant in str(caught.value)
        assert suggests_an_alternative(caught.value, capability), str(caught.value)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_are_given_or_refused(case: Case) -> None:
    x = pack(*qkv(case.length or 5))
    module = clear_module(case)
    causal = not case.can("noncausal_self")
    if case.can("weights"):
        _, weights = module(x, need_weights=True, is_causal=causal)
        assert weights.shape == (2, x.shape[1], x.shape[1])
    else:
        with pytest.raises(ea.UnsupportedAttention) as caught:
            module(x, need_weights=True, is_causal=causal)
        assert suggests_an_alternative(caught.value, "weights")


@pytest.mark.parametrize("case", [c for c in CASES if c.can("equal_lengths")], ids=str)
def test_unequal_lengths_are_refused_where_positions_must_match(case: Case) -> None:
    N = case.length or 6
    q, k, v = qkv(N, N + 1)
    with pytest.raises((ea.UnsupportedAttention, ValueError)):
        through(clear_module(case), q, k, v)


@select("key_padding", "noncausal_self", where=lambda c: c.functional)
def test_the_two_conventions(case: Case) -> None:
    """Functional: True = take part, as F.sdpa. Module: True = ignore, as nn.MultiheadAttention."""
    N = case.length or 6
    q, k, v = qkv(N)
    present = kept([N - 2, N], N)
    module = clear_module(case)
    by_module, _ = module(pack(q, k, v), key_padding_mask=~present)
    if case.variant != "performer":  # a functional call draws features of its own
        by_function = attend(case, q, k, v, key_padding_mask=present)
        assert_close(by_function, unpack(by_module), **EXACT)
    moved = torch.where(present[:, None, :, None], v, 100.0)
    by_module_moved, _ = module(pack(q, k, moved), key_padding_mask=~present)
    assert_close(by_module_moved, by_module, **EXACT)
    assert_close(
        attend(case, q, k, moved, key_padding_mask=present),
        attend(case, q, k, v, key_padding_mask=present),
        **EXACT,
    )


@select("pairwise_mask", "noncausal_self")
def test_the_two_conventions_of_pairwise_masks(case: Case) -> None:
    N = case.length or 6
    q, k, v = qkv(N)
    module = clear_module(case)
    lower = torch.ones(N, N, dtype=torch.bool).tril()
    by_module, _ = module(pack(q, k, v), attn_mask=~lower)
    assert_close(attend(case, q, k, v, attn_mask=lower), unpack(by_module), **EXACT)
    if case.can("causal_self"):
        assert_close(attend(case, q, k, v, is_causal=True), unpack(by_module), **EXACT)
        both, _ = module(pack(q, k, v), attn_mask=~lower, is_causal=True)
        assert_close(both, by_module, **EXACT)


@select_directions("key_padding", where=lambda c: c.length is None)
def test_right_padding_equals_the_sequences_alone(case: Case, causal: bool) -> None:
    M, lengths = 13, [13, 9, 4, 1]
    q, k, v = qkv(M, batch=4)
    module = clear_module(case)
    together = through(module, q, k, v, key_padding=kept(lengths, M), causal=causal)
    for b, n in enumerate(lengths):
        alone = through(module, *(x[b : b + 1, :, :n] for x in (q, k, v)), causal=causal)
        assert_close(together[b : b + 1, :, :n], alone, **EXACT)


@select_directions(
    "key_padding",
    where=lambda c: c.variant in TRANSLATION_INVARIANT and not c.options.get("global_tokens"),
)
def test_left_padding_equals_the_sequences_alone(case: Case, causal: bool) -> None:
    M, lengths = 13, [13, 9, 4, 1]
    q, k, v = qkv(M, batch=4)
    module = clear_module(case)
    together = through(module, q, k, v, key_padding=kept(lengths, M, side="left"), causal=causal)
    for b, n in enumerate(lengths):
        alone = through(module, *(x[b : b + 1, :, M - n :] for x in (q, k, v)), causal=causal)
        assert_close(together[b : b + 1, :, M - n :], alone, **EXACT)


@pytest.mark.parametrize("content", [0.0, 1e3, 1e18], ids=str)
@select_directions("key_padding")
def test_content_of_padded_tokens_moves_nothing(case: Case, content: float, causal: bool) -> None:
    N = case.length or 11
    present = kept([N, N // 2], N)
    q, k, v = qkv(N)
    module = clear_module(case)
    want = through(module, q, k, v, key_padding=present, causal=causal)
    dirty_k = torch.where(present[:, None, :, None], k, content)
    dirty_v = torch.where(present[:, None, :, None], v, content)
    got = through(module, q, dirty_k, dirty_v, key_padding=present, causal=causal)
    assert_close(got, want, **EXACT)


@select("key_padding", "noncausal_self")
def test_padding_mask_is_read_anew_at_every_call(case: Case) -> None:
    """Neither the first mask nor the first length stays behind; batch 1 is masked like any."""
    module = clear_module(case)
    for N in case.lengths(5, 9, 3, 9):
        q, k, v = qkv(N, batch=1)
        bare = through(module, q, k, v)
        first = through(module, q, k, v, key_padding=kept([N - 1], N))
        last = through(module, q, k, v, key_padding=kept([N - 1], N, side="left"))
        assert not torch.allclose(first, bare)
        assert not torch.allclose(last, first)
        assert_close(through(module, q, k, v), bare, **EXACT)
        everyone = torch.ones(1, N, dtype=torch.bool)
        assert_close(through(module, q, k, v, key_padding=everyone), bare, **EXACT)


@select("key_padding", "noncausal_self", where=lambda c: c.length is None)
def test_padding_masks_keys_not_queries(case: Case) -> None:
    """A padded query still attends to the real keys in its reach."""
    q, k, v = qkv(4, batch=1)
    out = through(clear_module(case), q, k, v, key_padding=kept([3], 4))
    assert (out[:, :, 3].abs() > 1e-6).any()


@pytest.mark.parametrize("wrong", ["length", "batch", "int", "rank"])
@pytest.mark.parametrize("case", [c for c in ONE_EACH if c.can("key_padding")], ids=str)
def test_a_malformed_padding_mask_is_an_error(case: Case, wrong: str) -> None:
    N = case.length or 6
    mask = {
        "length": torch.zeros(2, N + 1, dtype=torch.bool),
        "batch": torch.zeros(3, N, dtype=torch.bool),
        "int": torch.zeros(2, N, dtype=torch.long),
        "rank": torch.zeros(N, dtype=torch.bool),
    }[wrong]
    with pytest.raises((ValueError, TypeError), match="key_padding_mask"):
        clear_module(case)(pack(*qkv(N)), key_padding_mask=mask)


@pytest.mark.parametrize("wrong", ["shape", "int", "rank"])
def test_a_malformed_pairwise_mask_is_an_error(wrong: str) -> None:
    mask = {
        "shape": torch.zeros(5, 6, dtype=torch.bool),
        "int": torch.zeros(6, 6, dtype=torch.long),
        "rank": torch.zeros(6, dtype=torch.bool),
    }[wrong]
    with pytest.raises((ValueError, TypeError), match="attn_mask"):
        ea.MultiHeadAttention(16, 2, variant="full")(torch.randn(2, 6, 16), attn_mask=mask)


# --- what each window sees, counted ------------------------------------------------------------


def visible_counts(case: Case, N: int, causal: bool) -> list[int]:
    """How many keys reach each query: one value at a time is moved, and the outputs that move
    are counted, so weights need not be offered."""
    q, k, v = qkv(N, batch=1)
    module = clear_module(case)
    base = through(module, q, k, v, causal=causal)
    counts = torch.zeros(N, dtype=torch.long)
    for j in range(N):
        moved = v.clone()
        moved[:, :, j] += 1.0
        counts += ((through(module, q, k, moved, causal=causal) - base).abs() > 1e-12)[0, 0].any(-1)
    return counts.tolist()


@pytest.mark.parametrize(
    ("options", "causal", "want"),
    [
        ({"window": 2}, False, [3, 4, 5, 5, 5, 4, 3]),
        ({"window": 2}, True, [1, 2, 3, 3, 3, 3, 3]),
        ({"window": 1}, False, [2, 3, 3, 3, 3, 3, 2]),
        ({"window": (2, 1)}, False, [2, 3, 4, 4, 4, 4, 3]),
        ({"window": (1, 2)}, True, [1, 2, 2, 2, 2, 2, 2]),
        ({"window": (0, 0)}, False, [1, 1, 1, 1, 1, 1, 1]),
        ({"window": 1, "global_tokens": 1}, False, [7, 3, 4, 4, 4, 4, 3]),
        ({"window": 1, "global_tokens": 1}, True, [1, 2, 3, 3, 3, 3, 3]),
    ],
    ids=str,
)
def test_local_window_counts(options: dict[str, Any], causal: bool, want: list[int]) -> None:
    assert visible_counts(Case("local_window", options), 7, causal) == want
    pairs = local_pairs(7, options["window"], options.get("global_tokens", 0), causal)
    assert pairs.sum(-1).tolist() == want, "the oracle itself"


@pytest.mark.parametrize(
    ("options", "N", "causal", "want"),
    [
        ({"window": 3, "shift": 0}, 7, False, [3, 3, 3, 3, 3, 3, 1]),
        ({"window": 3, "shift": 1}, 7, False, [1, 3, 3, 3, 3, 3, 3]),
        ({"window": 3, "shift": 1}, 6, False, [1, 3, 3, 3, 2, 2]),
        ({"window": 3, "shift": 1}, 7, True, [1, 1, 2, 3, 1, 2, 3]),
        # Shorter than its window, and still shifted: what comes later must not undo the shift.
        ({"window": 4, "shift": 2}, 3, False, [2, 2, 1]),
        # No shift along an axis that fits its window.
        ({"window": 2, "shift": 1, "grid": (2, 3)}, 6, False, [2, 4, 4, 2, 4, 4]),
        # 3×3, window 2, shift 1: groups of 1 and 2 along each axis.
        ({"window": 2, "shift": 1, "grid": (3, 3)}, 9, False, [1, 2, 2, 2, 4, 4, 2, 4, 4]),
    ],
    ids=str,
)
def test_shifted_window_counts(
    options: dict[str, Any], N: int, causal: bool, want: list[int]
) -> None:
    assert visible_counts(Case("shifted_window", options), N, causal) == want
    pairs = shifted_pairs(N, options["window"], options["shift"], options.get("grid"), causal)
    assert pairs.sum(-1).tolist() == want, "the oracle itself"


def test_five_by_five_grid_does_not_join_far_corners() -> None:
    """Padding after the cyclic shift would put both ends of an axis into one window; on 5×5 with
    window 4 and shift 2 each axis parts into 2 and 3, so counts are products of those."""
    case = Case("shifted_window", {"window": 4, "shift": 2, "grid": (5, 5)})
    axis = [2, 2, 3, 3, 3]
    assert visible_counts(case, 25, False) == [y * x for y in axis for x in axis]
