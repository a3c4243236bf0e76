"""Full softmax attention, the yardstick.

Paper: Vaswani et al. 2017, "Attention Is All You Need", equation 1; the fused form is that of
Dao et al. 2022, "FlashAttention".

    out_i = Σ_j softmax_j(q_i·k_j / √d + mask_ij) v_j

Cost: time O(N·M·d) either way. ``implementation="fused"`` (torch's kernel) keeps no score matrix:
memory O(N·d), also under a key padding mask and for causal attention over padded keys.
``implementation="naive"`` writes scores and probabilities out, O(N·M), as papers assume when they
compare; in training torch's CPU kernel has no dropout and does the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from efficient_attn.attention.errors import require_choice
from efficient_attn.attention.masks import (
    AttentionMask,
    causal_keep,
    dense_weights,
    intersect,
    masked_attention,
)
from efficient_attn.attention.registry import Capabilities, register_variant
from efficient_attn.attention.variant import AttentionVariant, KeyValueCache

QUERIES_PER_CHUNK = 512


@dataclass(frozen=True)
class FullOptions:
    """implementation: "fused" (torch's kernel) or "naive" (the formula written out)."""

    implementation: str = "fused"

    def __post_init__(self) -> None:
        require_choice("implementation", self.implementation, ["fused", "naive"])


@register_variant(
    "full",
    paper='Vaswani et al. 2017, "Attention Is All You Need"',
    formula="softmax(QKᵀ/√d + mask) V",
    time="O(N²·d)",
    memory="O(N·d) fused, O(N²) naive",
    exact=True,
)
class Full(AttentionVariant):
    """Softmax attention over every key; exact, quadratic in time."""

    Options = FullOptions
    capabilities = Capabilities(
        noncausal_self=True,
        causal_self=True,
        noncausal_cross=True,
        causal_cross=True,
        key_padding=True,
        pairwise_mask=True,
        weights=True,
        decode=True,
    )

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        N, M = q.shape[-2], k.shape[-2]
        if self.options.implementation == "naive":
            weights = dense_weights(q, k, mask.keep(N, M, q.device), mask.bias())
            return F.dropout(weights, dropout_p) @ v
        if mask.causal and mask.pairwise is None:
            return _causal(q, k, v, mask.key_padding, dropout_p)
        return masked_attention(q, k, v, mask.keep(N, M, q.device), mask.bias(), dropout_p)

    def init_state(
        self,
        batch: int,
        *,
        value_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> KeyValueCache:
        """A cache of all keys and values; grows by one token a step."""
        return KeyValueCache.empty(batch, self.heads, self.head_dim, value_dim, device, dtype)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: KeyValueCache
    ) -> tuple[Tensor, KeyValueCache]:
        state = state.append(k, v)
        return masked_attention(q, state.k, state.v), state


def _causal(q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, dropout_p: float) -> Tensor:
    """Causal attention aligned bottom-right, without an N×M mask."""
    N, M = q.shape[-2], k.shape[-2]
    blind = max(N - M, 0)
    if blind:  # the first queries precede every key
        out = _causal(q[..., blind:, :], k, v, padding, dropout_p)
        return F.pad(out, (0, 0, blind, 0))
    if N == M and padding is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
    keep_keys = None if padding is None else padding[:, None, None, :]
    outputs = []
    for start in range(0, N, QUERIES_PER_CHUNK):
        stop = min(start + QUERIES_PER_CHUNK, N)
        seen = stop + M - N  # keys that the last query of the chunk sees
        keep = intersect(
            causal_keep(stop - start, seen, q.device),
            None if keep_keys is None else keep_keys[..., :seen],
        )
        outputs.append(
            masked_attention(
                q[..., start:stop, :], k[..., :seen, :], v[..., :seen, :], keep, None, dropout_p
            )
        )
    return torch.cat(outputs, -2)
