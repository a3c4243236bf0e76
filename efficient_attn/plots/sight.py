"""What one variant lets every query see, and with which weights, found by asking it.

Observed on seeded random q and k, not read off the variant's description: a key is seen when it
has a weight other than zero in some head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention import (
    AttentionMask,
    AttentionVariant,
    make_core,
    resolve_options,
    variant_class,
)
from efficient_attn.attention.apply import attend
from efficient_attn.attention.errors import require_int
from efficient_attn.bench.workload import PATTERNS

MOST_TOKENS = 512


@dataclass(frozen=True)
class Sight:
    """weights [H, N, M] without padding, padded [H, N, M] with the last `missing` keys masked.

    padded is None where nothing was masked; why_not says why, if there is a reason to tell.
    """

    core: AttentionVariant
    pattern: str
    weights: Tensor
    padded: Tensor | None
    missing: int
    why_not: str = ""

    @property
    def materialised(self) -> str:
        """How weights that the method never forms came about; empty where it forms them."""
        if not self.core.capabilities.weights:
            return "materialised for this figure from the outputs for one-hot values"
        if type(self.core).weights is not AttentionVariant.weights:
            # It sums the values some other way than by softmax over a pattern of keys.
            return "materialised for this figure; the method never forms them"
        return ""

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) of tokens that stand on a grid, row by row."""
        return getattr(self.core.options, "grid", None)


def observe(
    variant: str,
    options: Mapping[str, Any],
    *,
    length: int,
    heads: int,
    head_dim: int,
    pattern: str,
    padding: float,
    seed: int,
) -> Sight:
    """The weights with and without padding; arguments and errors as in `visibility_figure`."""
    require_int("length", length, low=1, high=MOST_TOKENS)
    require_int("heads", heads, low=1)
    require_int("head_dim", head_dim, low=1)
    if pattern not in PATTERNS:
        raise ValueError(f"pattern={pattern!r}: allowed are {', '.join(PATTERNS)}")
    if not 0.0 <= padding < 1.0:
        raise ValueError(f"padding={padding!r}: allowed is a share of the keys in [0, 1)")
    cross = pattern.endswith("_cross")
    wider = cross and not variant_class(variant).capabilities.equal_lengths
    M = length + length // 2 if wider else length
    resolved = resolve_options(variant, options, max_len=M)
    core = make_core(variant, heads, head_dim, dtype=torch.float64, **resolved).eval()
    generator = torch.Generator().manual_seed(seed)
    q, k = (
        torch.randn(1, heads, size, head_dim, generator=generator, dtype=torch.float64)
        for size in (length, M)
    )
    causal = pattern.startswith("causal")
    weights = _weights(core, q, k, AttentionMask(causal), cross=cross)
    missing = min(round(padding * M), M - 1)
    if missing and not core.capabilities.key_padding:
        why_not = f"no padded example: {core.name} takes no key padding mask"
        return Sight(core, pattern, weights, None, 0, why_not)
    if not missing:
        return Sight(core, pattern, weights, None, 0)
    exists = (torch.arange(M) < M - missing)[None]
    padded = _weights(core, q, k, AttentionMask(causal, exists), cross=cross)
    return Sight(core, pattern, weights, padded, missing)


def _weights(
    core: AttentionVariant, q: Tensor, k: Tensor, mask: AttentionMask, *, cross: bool
) -> Tensor:
    """[H, N, M]. A variant that gives no weights answers one-hot values with them."""
    M = k.shape[-2]
    one_hot = torch.eye(M, dtype=q.dtype).expand(1, q.shape[1], M, M)
    with torch.no_grad():
        asked = core.capabilities.weights
        out, weights = attend(core, q, k, one_hot, mask, cross=cross, need_weights=asked)
    return (out if weights is None else weights)[0]
