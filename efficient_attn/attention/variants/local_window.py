"""Sliding-window attention, optionally with a few global tokens.

Paper: Beltagy et al. 2020, "Longformer: The Long-Document Transformer", section 3.1 (window and
global attention).

    out_i = Σ_j softmax_j(q_i·k_j / √d) v_j   over   i − left ≤ j ≤ i + right

Both ends are inclusive: ``window=w`` shows 2w + 1 keys, or w + 1 when causal. The first
``global_tokens`` positions see every key and are seen by every query.

Cost: time O(N·(left + right)·d), memory O(N·(d + left + right)); the global tokens add
O(N·global_tokens·d). Queries are taken in blocks; a block reads its span of keys through an
overlapping view, so the band is never scattered into a dense matrix.

It cannot cross between sequences of different lengths: a window has no meaning there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from efficient_attn.attention.errors import as_pair, require_int
from efficient_attn.attention.masks import AttentionMask, causal_keep, intersect, masked_attention
from efficient_attn.attention.registry import Capabilities, register_variant
from efficient_attn.attention.variant import AttentionVariant, KeyValueCache

QUERIES_PER_BLOCK = 64


@dataclass(frozen=True)
class LocalWindowOptions:
    """window: w for (w, w), or (left, right); global_tokens: how many leading tokens are global."""

    window: int | tuple[int, int] = 128
    global_tokens: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.window, (list, tuple)):
            object.__setattr__(self, "window", as_pair("window", self.window, low=0))
        else:
            require_int("window", self.window, low=0)
        require_int("global_tokens", self.global_tokens, low=0)

    @property
    def sides(self) -> tuple[int, int]:
        return self.window if isinstance(self.window, tuple) else (self.window, self.window)


@register_variant(
    "local_window",
    paper='Beltagy et al. 2020, "Longformer"',
    formula="softmax(QKᵀ/√d over i−left ≤ j ≤ i+right, and global tokens) V",
    time="O(N·w·d), w = left + right",
    memory="O(N·(d + w))",
    exact=True,
)
class LocalWindow(AttentionVariant):
    """Softmax attention to the nearest keys on either side; linear in length."""

    Options = LocalWindowOptions
    capabilities = Capabilities(
        noncausal_self=True,
        causal_self=True,
        noncausal_cross=True,
        causal_cross=True,
        equal_lengths=True,
        key_padding=True,
        weights=True,
        decode=True,
    )
    refusals = {  # noqa: RUF012
        "pairwise_mask": "it would be a dense N×M matrix, which the window exists to avoid",
        "unequal_lengths": "a window pairs query i with the keys around i",
    }

    def visible(self, N: int, M: int, device: torch.device, *, causal: bool) -> Tensor:
        left, right = self.options.sides
        i = torch.arange(N, device=device)[:, None]
        j = torch.arange(M, device=device)[None, :]
        near = (j >= i - left) & (j <= i + right)
        return near | (i < self.options.global_tokens) | (j < self.options.global_tokens)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        N = q.shape[-2]
        left, right = self.options.sides
        left, right = min(left, N - 1), 0 if mask.causal else min(right, N - 1)
        G = min(self.options.global_tokens, N)
        if N <= QUERIES_PER_BLOCK + left + right:  # the dense form is no larger than one block's
            keep = intersect(
                mask.keep(N, N, q.device), self.visible(N, N, q.device, causal=mask.causal)
            )
            return masked_attention(q, k, v, keep, None, dropout_p)
        if mask.key_padding is None:
            out = _banded(q, k, v, left, right, G, mask.causal, None, dropout_p)
        else:  # one mask per sample: shared by its heads, never repeated for them
            samples = [
                _banded(q[b : b + 1], k[b : b + 1], v[b : b + 1], left, right, G, mask.causal,
                        mask.key_padding[b], dropout_p)
                for b in range(q.shape[0])
            ]  # fmt: skip
            out = torch.cat(samples)
        if G:
            keep = None if mask.key_padding is None else mask.key_padding[:, None, None, :]
            if mask.causal:
                keep = intersect(keep, causal_keep(G, G, q.device, columns=N))
            head = masked_attention(q[..., :G, :], k, v, keep, None, dropout_p)
            out = torch.cat([head, out[..., G:, :]], -2)
        return out

    def init_state(
        self,
        batch: int,
        *,
        value_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> KeyValueCache:
        """The last left + 1 keys and values, and those of the global tokens."""
        return KeyValueCache.empty(batch, self.heads, self.head_dim, value_dim, device, dtype)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: KeyValueCache
    ) -> tuple[Tensor, KeyValueCache]:
        state = state.append(k, v)
        left, G = self.options.sides[0], self.options.global_tokens
        if state.position > G:  # global tokens see everything before them
            state = state.last(left + 1, first=min(G, state.k.shape[-2]))
        return masked_attention(q, state.k, state.v), state


def _banded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    left: int,
    right: int,
    G: int,
    causal: bool,
    exists: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """Blocks of C queries against spans of S = C + left + right keys, and the G global keys.

    q, k [B, H, N, D], v [B, H, N, V]; exists: bool [N], needs B = 1. Rows of global queries are
    computed like any other and are the caller's to replace.
    """
    B, _, N, _ = q.shape
    C = QUERIES_PER_BLOCK
    blocks = -(-N // C)
    tail = blocks * C - N
    S = C + left + right

    def spans(x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, left, tail + right))
        return rearrange(padded, "b h n d -> (b h) n d").unfold(1, S, C)

    q_blocks = rearrange(F.pad(q, (0, 0, 0, tail)), "b h (c w) d -> c (b h) w d", w=C)
    k_spans = rearrange(spans(k), "h c d s -> c h s d")
    v_spans = rearrange(spans(v), "h c d s -> c h s d")

    row = torch.arange(C, device=q.device)
    slot = torch.arange(S, device=q.device)
    band = (slot >= row[:, None]) & (slot <= row[:, None] + left + right)
    real = torch.ones(N, dtype=torch.bool, device=q.device) if exists is None else exists
    real = torch.cat([real.new_zeros(G), real[G:]])  # global keys come in a part of their own
    real = F.pad(real, (left, tail + right)).unfold(0, S, C)
    keep = (band & real[:, None, :])[:, None]  # [blocks, 1, C, S]
    if G:
        first = torch.ones(G, dtype=torch.bool, device=q.device) if exists is None else exists[:G]
        seen = first.expand(blocks, 1, C, G)
        if causal:
            query = torch.arange(blocks * C, device=q.device).view(blocks, 1, C, 1)
            seen = seen & (torch.arange(G, device=q.device) <= query)
        keep = torch.cat([seen, keep], -1)
        k_spans = torch.cat([_every_block(k[..., :G, :], blocks), k_spans], -2)
        v_spans = torch.cat([_every_block(v[..., :G, :], blocks), v_spans], -2)
    out = masked_attention(q_blocks, k_spans, v_spans, keep, None, dropout_p)
    return rearrange(out, "c (b h) w d -> b h (c w) d", b=B)[..., :N, :]


def _every_block(x: Tensor, blocks: int) -> Tensor:
    return rearrange(x, "b h g d -> 1 (b h) g d").expand(blocks, -1, -1, -1)
