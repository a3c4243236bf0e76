"""Every request there is: variant × pattern × mask × length × number format × mode.

Each is honoured with the result of the dense float64 definition, or refused with the variants
named that would do. Cells of the table are tests; lengths, formats and modes are looped inside.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import efficient_attn as ea

from .conftest import CASES, Case, clear_module, kept, qkv, suggests_an_alternative, through
from .oracles import dense

PATTERNS = ("noncausal_self", "causal_self", "noncausal_cross", "causal_cross")
MASKS = (
    "none",
    "right_padding",
    "left_padding",
    "ragged",
    "one_row_all_padded",
    "bool_pairwise",
    "float_pairwise",
    "padding_and_pairwise",
)
# Largest error relative to the largest value: a few roundings of the format.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}


def window_of(case: Case) -> int:
    window = case.options.get("window", 4)
    return max(window) if isinstance(window, tuple) else window


def lengths(case: Case) -> list[int]:
    w = window_of(case)
    return case.lengths(*sorted({1, 2, max(w - 1, 1), w, w + 1, 13, 53}))


def masks_of(name: str, N: int, M: int) -> dict[str, Tensor]:
    """Masks in functional meaning, True = take part."""
    generator = torch.Generator().manual_seed(N * 1000 + M)
    masks: dict[str, Tensor] = {}
    if name in ("right_padding", "padding_and_pairwise"):
        masks["key_padding"] = kept([max(M - 3, 1), M], M)
    elif name == "left_padding":
        masks["key_padding"] = kept([max(M - 3, 1), M], M, side="left")
    elif name == "ragged":
        masks["key_padding"] = torch.rand(2, M, generator=generator) < 0.6
    elif name == "one_row_all_padded":
        masks["key_padding"] = kept([0, M], M)
    if name in ("bool_pairwise", "padding_and_pairwise"):
        masks["attn_mask"] = torch.rand(N, M, generator=generator) < 0.7
        # Without this pair it is no causal mask, which counts as asking for causality.
        masks["attn_mask"][0, M - N] = False
    elif name == "float_pairwise":
        mask = torch.randn(N, M, generator=generator, dtype=torch.float64)
        masks["attn_mask"] = mask.masked_fill(
            torch.rand(N, M, generator=generator) < 0.2, -torch.inf
        )
    return masks


def refusing_capability(
    case: Case, pattern: str, masks: dict[str, Tensor], equal: bool
) -> str | None:
    """The first capability that the request needs and the case lacks."""
    if not case.can(pattern):
        return pattern
    if not equal and case.can("equal_lengths"):
        return "noncausal_cross"
    if "key_padding" in masks and not case.can("key_padding"):
        return "key_padding"
    if "attn_mask" in masks and not case.can("pairwise_mask"):
        return "pairwise_mask"
    return None


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_honoured_as_defined_or_refused(case: Case, pattern: str, mask: str) -> None:
    causal = pattern.startswith("causal")
    for N in lengths(case):
        M = N + 2 if pattern.endswith("cross") else N
        masks = masks_of(mask, N, M)
        lacking = refusing_capability(case, pattern, masks, N == M)
        exact = qkv(N, M)
        if lacking is not None:
            with pytest.raises(ea.UnsupportedAttention) as refused:
                through(clear_module(case), *exact, causal=causal, **masks)
            assert suggests_an_alternative(refused.value, lacking)
            continue
        expected = reference(case, exact, masks, causal)
        for dtype, tolerance in TOLERANCE.items():
            module = clear_module(case, dtype=dtype)
            inputs = [x.to(dtype) for x in exact]
            cast = {name: x if x.dtype == torch.bool else x.to(dtype) for name, x in masks.items()}
            for training in (False, True):
                out = through(module.train(training), *inputs, causal=causal, **cast)
                error = (out.double() - expected).abs().max().item()
                what = f"N={N}, M={M}, {dtype}, {'train' if training else 'eval'}"
                assert error <= tolerance * max(1.0, expected.abs().max().item()), (what, error)


def reference(case: Case, exact: Any, masks: dict[str, Tensor], causal: bool) -> Tensor:
    core = clear_module(case).core
    out, _ = dense(
        case.variant,
        case.options,
        *exact,
        key_padding=masks.get("key_padding"),
        attn_mask=masks.get("attn_mask"),
        causal=causal,
        core=core,
    )
    return out
