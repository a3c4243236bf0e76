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

from efficient_attn.attention.arithmetic import attention_flops, causal_pairs
from efficient_attn.attention.errors import require_choice
from efficient_attn.attention.masks import (
    AttentionMask,
    causal_keep,
    dense_weights,
    distance_bias,
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
    state="O(N·d)",
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
        rotary=True,
        alibi=True,
    )

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        N, M = q.shape[-2], k.shape[-2]
        if self.options.implementation == "naive":
            bias = mask.bias(N, M, q.device)
            weights = dense_weights(q, k, mask.keep(N, M, q.device), bias)
            return F.dropout(weights, dropout_p) @ v
        if mask.pairwise is None and (mask.causal or mask.slopes is not None):
            return _by_position(q, k, v, mask, dropout_p)
        keep, bias = mask.keep(N, M, q.device), mask.bias(N, M, q.device)
        return masked_attention(q, k, v, keep, bias, dropout_p)

    def step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: KeyValueCache,
        slopes: Tensor | None = None,
    ) -> tuple[Tensor, KeyValueCache]:
        """The cache keeps every key and value."""
        state = state.append(k, v)
        # The only query is the last and sees every key; several need the causal mask.
        mask = AttentionMask(causal=q.shape[-2] > 1, slopes=slopes)
        return self(q, state.k, state.v, mask), state

    def flops(
        self,
        batch: int,
        queries: int,
        keys: int,
        *,
        causal: bool,
        backward: bool = False,
        padded: bool = False,
    ) -> int:
        """Written out, every pair counts; fused, chunks with a mask or what the kernel sees."""
        if self._naive or not causal:
            pairs = queries * keys
        else:
            pairs = _causal_pairs(min(queries, keys), keys, padded)
        pairs *= batch * self.heads
        return attention_flops(pairs, self.head_dim, backward=backward, written_out=self._naive)

    def step_flops(self, batch: int, context: int, tokens: int) -> int:
        return self.flops(batch, tokens, context + tokens, causal=tokens > 1)

    def traffic(
        self,
        batch: int,
        queries: int,
        keys: int,
        *,
        causal: bool,
        itemsize: int,
        backward: bool = False,
        padded: bool = False,
    ) -> int:
        """Written out, scores and probabilities are written and read back, in fp32 at least; with
        `backward` their gradients too, and the probabilities read once more."""
        total = super().traffic(
            batch,
            queries,
            keys,
            causal=causal,
            itemsize=itemsize,
            backward=backward,
            padded=padded,
        )
        if self._naive:
            matrix = batch * self.heads * queries * keys * max(itemsize, 4)
            total += (9 if backward else 4) * matrix
        return total

    def step_traffic(self, batch: int, context: int, tokens: int, itemsize: int) -> int:
        """The cache is read whole and grows by the new tokens."""
        cache = self.cache_traffic(batch, context, tokens, context + tokens, itemsize)
        scores = 0
        if self._naive:
            scores = 4 * batch * self.heads * tokens * (context + tokens) * max(itemsize, 4)
        return super().step_traffic(batch, context, tokens, itemsize) + cache + scores

    @property
    def _naive(self) -> bool:
        return self.options.implementation == "naive"


def _causal_pairs(N: int, M: int, padded: bool) -> int:
    """Pairs that `_by_position` computes for N <= M queries."""
    if N == M and not padded:
        return causal_pairs(N)
    pairs = 0
    for start in range(0, N, QUERIES_PER_CHUNK):
        n = min(QUERIES_PER_CHUNK, N - start)
        pairs += n * (start + n + M - N)
    return pairs


def _by_position(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float) -> Tensor:
    """Masks and biases that follow from positions, without an N×M matrix: chunk by chunk."""
    N, M = q.shape[-2], k.shape[-2]
    if mask.causal and N > M:  # the first queries precede every key
        out = _by_position(q[..., N - M :, :], k, v, mask, dropout_p)
        return F.pad(out, (0, 0, N - M, 0))
    if mask.causal and N == M and mask.key_padding is None and mask.slopes is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
    # A traced program must not depend on the length, as the number of chunks does.
    starts = [0] if torch.compiler.is_compiling() else range(0, N, QUERIES_PER_CHUNK)
    size = N if torch.compiler.is_compiling() else QUERIES_PER_CHUNK
    outputs = []
    for start in starts:
        queries = q[..., start : start + size, :]
        n = queries.shape[-2]
        seen = start + n + M - N if mask.causal else M  # keys that the chunk's last query sees
        keep = causal_keep(n, seen, q.device) if mask.causal else None
        if mask.key_padding is not None:
            keep = intersect(keep, mask.key_padding[:, None, None, :seen])
        bias = None
        if mask.slopes is not None:
            first = start + M - N
            rows = torch.arange(first, first + n, device=q.device)
            bias = distance_bias(mask.slopes, rows, torch.arange(seen, device=q.device))
        outputs.append(
            masked_attention(queries, k[..., :seen, :], v[..., :seen, :], keep, bias, dropout_p)
        )
    return torch.cat(outputs, -2)
