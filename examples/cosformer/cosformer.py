"""cosFormer: softmax gives way to ReLU features and a cosine of the distance, in linear time.

    s_ij = relu(q_i)·relu(k_j) · cos(π/2 · (i − j)/reach)
    out_i = Σ_j s_ij v_j / Σ_j s_ij

The cosine of a difference is cos·cos + sin·sin, so each token has 2·D features that know their own
position alone, and sums over keys are made once. The paper divides by M, the length at hand; then
every earlier output would move when a token is appended. Here it is the option reach.

Source: Qin et al., "cosFormer: Rethinking Softmax in Attention" (2022), section 3.2, eq. 9 to 12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.attention import AttentionMask, AttentionVariant, Capabilities, OptionError

CHUNK = 128
"""Tokens whose pairs are written out in the causal form; earlier ones count as one sum."""


@dataclass(frozen=True)
class CosformerOptions:
    """reach: distance at which the cosine reaches 0; longer inputs are refused."""

    reach: int = 4096

    def __post_init__(self) -> None:
        if self.reach < 1:
            raise OptionError(f"reach={self.reach!r}: allowed is 1 and above")


@ea.register_variant(
    "cosformer",
    paper="Qin et al. 2022",
    formula="relu(Q) relu(K)ᵀ ∘ cos(π/2 · (i − j)/reach), rows divided by their sum, times V",
    time="O(N·d²)",
    memory="O(N·d)",
)
class Cosformer(AttentionVariant):
    """Linear attention whose weights fall with the distance."""

    Options = CosformerOptions
    capabilities = Capabilities(
        noncausal_self=True,
        causal_self=True,
        noncausal_cross=True,
        causal_cross=True,
        key_padding=True,
        weights=True,
    )

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        """q [B, H, N, D], k [B, H, M, D], v [B, H, M, V] -> [B, H, N, V]."""
        queries, keys, values = self._features(q, k, v, mask)
        if mask.causal:
            offset = k.shape[-2] - q.shape[-2]
            summed = _causal_sums(queries, keys, values, offset)
        else:
            summed = queries @ (keys.transpose(-1, -2) @ values)
        out = summed[..., :-1] / summed[..., -1:].clamp_min(1e-6)
        return out.to(v.dtype)

    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        """The weights [B, H, N, M] for which ``weights @ v`` is the output; always dense."""
        one = torch.ones(*k.shape[:-1], 1, dtype=k.dtype, device=k.device)
        queries, keys, _ = self._features(q, k, one, mask)
        scores = queries @ keys.transpose(-1, -2)
        if mask.causal:
            scores = scores.tril(k.shape[-2] - q.shape[-2])
        return (scores / scores.sum(-1, keepdim=True).clamp_min(1e-6)).to(q.dtype)

    def _features(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Features [B, H, N, 2D] and [B, H, M, 2D], and the values with a column of ones."""
        N, M = q.shape[-2], k.shape[-2]
        if max(N, M) > self.options.reach:
            raise ea.UnsupportedAttention(
                f"cosformer: {max(N, M)} tokens are more than reach={self.options.reach}, the "
                "distance at which its weights end"
            )
        shift = M - N if mask.causal else 0  # where the first query stands among the keys
        features = []
        for x, first in ((q, shift), (k, 0)):
            where = torch.arange(first, first + x.shape[-2], device=x.device, dtype=torch.float32)
            angle = (0.5 * math.pi / self.options.reach * where)[:, None]
            positive = x.relu().float()
            features.append(torch.cat([positive * angle.cos(), positive * angle.sin()], -1))
        values = torch.nn.functional.pad(v.float(), (0, 1), value=1.0)
        if mask.key_padding is not None:
            hidden = ~mask.key_padding[:, None, :, None]
            features[1] = features[1].masked_fill(hidden, 0.0)
            values = values.masked_fill(hidden, 0.0)
        return features[0], features[1], values


def _causal_sums(queries: Tensor, keys: Tensor, values: Tensor, offset: int) -> Tensor:
    """Σ_{j ≤ i + offset} (q_i·k_j) v_j for every i, chunk by chunk."""
    outs, M = [], keys.shape[-2]
    seen = 0  # keys that `state` holds
    state = keys.new_zeros(*keys.shape[:-2], keys.shape[-1], values.shape[-1])
    for start in range(0, queries.shape[-2], CHUNK):
        some = queries[..., start : start + CHUNK, :]
        first, last = start + offset, min(start + some.shape[-2] + offset, M)
        if first > seen:
            state = state + keys[..., seen:first, :].transpose(-1, -2) @ values[..., seen:first, :]
            seen = first
        near = slice(seen, max(last, seen))
        scores = (some @ keys[..., near, :].transpose(-1, -2)).tril(first - seen)
        outs.append(some @ state + scores @ values[..., near, :])
    return torch.cat(outs, -2)
