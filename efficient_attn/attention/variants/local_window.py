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

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from efficient_attn.attention.arithmetic import attention_flops, product_flops
from efficient_attn.attention.blocks import block_count, cut, join, merge_heads
from efficient_attn.attention.errors import as_pair, require_choice, require_int
from efficient_attn.attention.kernels.blockwise import blockwise_attention
from efficient_attn.attention.kernels.flash import hand_written, wants_gradient
from efficient_attn.attention.kernels.parts import Part
from efficient_attn.attention.masks import (
    AttentionMask,
    causal_keep,
    distance_bias,
    intersect,
    masked_attention,
)
from efficient_attn.attention.registry import Capabilities, register_variant
from efficient_attn.attention.variant import IMPLEMENTATIONS, AttentionVariant, KeyValueCache

QUERIES_PER_BLOCK = 64
MOST_RUNS = 8


@dataclass(frozen=True)
class LocalWindowOptions:
    """window: w for (w, w), or (left, right); global_tokens: how many leading tokens are global;
    implementation: eager, formula, compiled or flex (FlexAttention, meant for CUDA)."""

    window: int | tuple[int, int] = 128
    global_tokens: int = 0
    implementation: str = "eager"

    def __post_init__(self) -> None:
        if isinstance(self.window, (list, tuple)):
            object.__setattr__(self, "window", as_pair("window", self.window, low=0))
        else:
            require_int("window", self.window, low=0)
        require_int("global_tokens", self.global_tokens, low=0)
        require_choice("implementation", self.implementation, (*IMPLEMENTATIONS, "flex"))

    @property
    def sides(self) -> tuple[int, int]:
        return self.window if isinstance(self.window, tuple) else (self.window, self.window)


@register_variant(
    "local_window",
    paper='Beltagy et al. 2020, "Longformer"',
    formula="softmax(QKᵀ/√d over i−left ≤ j ≤ i+right, and global tokens) V",
    time="O(N·w·d), w = left + right",
    memory="O(N·(d + w))",
    state="O(left·d)",
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
        rotary=True,
        alibi=True,
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
        left, right, G = self._sizes(N, mask.causal)
        if self.implementation == "flex":
            from efficient_attn.attention.kernels.flex import flex_window  # a slow import

            return flex_window(q, k, v, mask, (left, right, G), dropout_p)
        one_width = q.shape[-1] == v.shape[-1]
        if dropout_p or G or not one_width or not hand_written(q, k, v, mask.key_padding):
            return self._formula(q, k, v, mask, dropout_p)
        padded = mask.key_padding is not None and not bool(mask.key_padding.all())
        if _dense(N, left, right, backward=wants_gradient(q, k, v)):
            if padded or mask.slopes is not None:
                return self._formula(q, k, v, mask)
            band = _kept_band(N, left, right).to(q.dtype)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=band)
        samples = mask.key_padding if padded and mask.key_padding is not None else [None]
        plans = {}
        forward, backward = _rows(left + right)
        for rows in {forward, backward}:
            parts = _parts(N, left, right, rows, mask.slopes)
            plans[rows] = [_masked_parts(parts, exists) for exists in samples]

        def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._formula(q, k, v, mask)

        return blockwise_attention(q, k, v, plans[forward], formula, backward=plans[backward])

    def _formula(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        """What `forward` gives, differentiable by torch, on any device and in a traced program."""
        N = q.shape[-2]
        left, right, G = self._sizes(N, mask.causal)
        traced = torch.compiler.is_compiling()  # whose program must serve every length
        if not traced and _dense(N, left, right, backward=wants_gradient(q, k, v)):
            keep = intersect(
                mask.keep(N, N, q.device), self.visible(N, N, q.device, causal=mask.causal)
            )
            return masked_attention(q, k, v, keep, mask.bias(N, N, q.device), dropout_p)
        band = _Band(left, right, G, mask.slopes)
        if mask.key_padding is None or traced:
            out = _banded(q, k, v, band, mask.key_padding, dropout_p)
        else:  # one mask per sample: shared by its heads, never repeated for them
            samples = zip(*(x.split(1) for x in (q, k, v, mask.key_padding)), strict=True)
            out = torch.cat(
                [_banded(q1, k1, v1, band, exists, dropout_p) for q1, k1, v1, exists in samples]
            )
        if G:
            rows = F.pad(_global_rows(q, k, v, mask, G, dropout_p), (0, 0, 0, N - G))
            out = torch.where((torch.arange(N, device=q.device) < G)[:, None], rows, out)
        return out

    def _sizes(self, N: int, causal: bool) -> tuple[int, int, int]:
        """Keys seen on either side and global tokens, none of them beyond the N tokens."""
        left, right = self.options.sides
        right = 0 if causal else right
        G = self.options.global_tokens
        if torch.compiler.is_compiling():
            return left, right, G
        return min(left, N - 1), min(right, N - 1), min(G, N)

    def step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: KeyValueCache,
        slopes: Tensor | None = None,
    ) -> tuple[Tensor, KeyValueCache]:
        """The cache keeps the last `left` keys and values, and those of the global tokens."""
        pieces = zip(*(x.split(QUERIES_PER_BLOCK, -2) for x in (q, k, v)), strict=True)
        outputs = []
        for q_piece, k_piece, v_piece in pieces:
            out, state = self._piece(q_piece, k_piece, v_piece, state, slopes)
            outputs.append(out)
        return torch.cat(outputs, -2), state

    def _piece(
        self, q: Tensor, k: Tensor, v: Tensor, state: KeyValueCache, slopes: Tensor | None
    ) -> tuple[Tensor, KeyValueCache]:
        """A few tokens against the cache, whose keys stand at the first and the last positions."""
        left, G = self.options.sides[0], self.options.global_tokens
        state = state.append(k, v)
        total, T = state.position, state.k.shape[-2]
        first = min(G, T)
        if q.shape[-2] == 1 and slopes is None:  # of all that is kept, nothing is out of sight
            return masked_attention(q, state.k, state.v), state.last(left, first=first)
        j = torch.cat([torch.arange(first), torch.arange(total - (T - first), total)]).to(q.device)
        i = torch.arange(total - q.shape[-2], total, device=q.device)
        near = (j >= i[:, None] - left) | (j < G) | (i[:, None] < G)
        bias = None if slopes is None else distance_bias(slopes, i, j)
        out = masked_attention(q, state.k, state.v, near & (j <= i[:, None]), bias)
        return out, state.last(left, first=first)

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
        """Blocks against their whole spans and the global keys, and the global queries apart."""
        N = queries
        left, right, G = self._sizes(N, causal)
        C = QUERIES_PER_BLOCK
        if _dense(N, left, right, backward=backward):
            pairs = N * N
        elif G:
            pairs = block_count(N, C) * C * (G + C + left + right) + G * N
        else:
            plans = (_parts(N, left, right, rows, None) for rows in _rows(left + right))
            forward, back = (sum(p.blocks * p.block_size for p in parts) for parts in plans)
            products = 2 * forward + 5 * back * backward
            return products * product_flops(batch * self.heads, self.head_dim)
        return attention_flops(batch * self.heads * pairs, self.head_dim, backward=backward)

    def step_flops(self, batch: int, context: int, tokens: int) -> int:
        pairs = 0
        for start in range(0, tokens, QUERIES_PER_BLOCK):
            n = min(QUERIES_PER_BLOCK, tokens - start)
            pairs += n * (self._cached(context + start) + n)
        return attention_flops(batch * self.heads * pairs, self.head_dim)

    def step_traffic(self, batch: int, context: int, tokens: int, itemsize: int) -> int:
        read, kept = self._cached(context), self._cached(context + tokens)
        cache = self.cache_traffic(batch, read, tokens, kept, itemsize)
        return super().step_traffic(batch, context, tokens, itemsize) + cache

    def _cached(self, context: int) -> int:
        """Entries of the cache after `context` tokens."""
        return min(context, self.options.global_tokens + self.options.sides[0])


def _dense(N: int, left: int, right: int, *, backward: bool) -> bool:
    """Whether every query against every key, in one call, is faster than by blocks: measured with
    16 to 256 keys in sight and 4 to 72 heads, of which few would have it a little longer."""
    width = left + right
    if backward:
        return N <= width + 4 * QUERIES_PER_BLOCK
    return 2 * N <= 3 * (width + QUERIES_PER_BLOCK)


@lru_cache(maxsize=8)
def _kept_band(N: int, left: int, right: int) -> Tensor:
    """The band of all queries and keys of a short sequence [N, N]; making it anew would take as
    long as attending."""
    with torch.inference_mode(False):
        return _band_mask(0, N, 0, N, left, right, None)[0, 0]


def _rows(width: int) -> tuple[int, int]:
    """Queries of a block, forward and backward, for so many keys on both sides: in small blocks
    fewer keys are scored in vain, in large ones products are faster, in the backward pass above
    all (measured: 16 to 128 rows, windows of 32 and 128, with and without causality)."""
    small = QUERIES_PER_BLOCK // 2
    return small, small if width <= QUERIES_PER_BLOCK else QUERIES_PER_BLOCK


def _parts(N: int, left: int, right: int, C: int, slopes: Tensor | None) -> list[Part]:
    """The blocks of C queries whose spans lie inside the sequence, and one block at either end."""
    low, high = block_count(left, C), (N - right) // C
    ends = ((0, low * C, 0, low * C + right), (high * C, N, high * C - left, N))
    parts = [
        Part(1, stop - start, start, until - since, since, mask)
        for start, stop, since, until in ends
        for mask in [_band_mask(start, stop, since, until, left, right, slopes)]
        if start < stop
    ]
    span = C + left + right
    mask = _band_mask(left, left + C, 0, span, left, right, slopes)
    inside = Part(high - low, C, low * C, span, low * C - left, mask, outer=slopes is None)
    return [inside, *parts]


def _band_mask(
    start: int, stop: int, since: int, until: int, left: int, right: int, slopes: Tensor | None
) -> Tensor:
    """Mask [1, 1 or H, n, m] of the queries start ... stop for the keys since ... until."""
    device = "cpu" if slopes is None else slopes.device
    i, j = torch.arange(start, stop, device=device), torch.arange(since, until, device=device)
    far = (j < i[:, None] - left) | (j > i[:, None] + right)
    bias = torch.zeros(1, 1, 1, 1, device=device) if slopes is None else distance_bias(slopes, i, j)
    return bias.masked_fill(far, float("-inf"))


def _masked_parts(parts: list[Part], exists: Tensor | None) -> list[Part]:
    """The same without the keys that do not exist [N], runs of blocks that see padding apart."""
    if exists is None:
        return parts
    masked = []
    for part in parts:
        spans = exists[part.key :].unfold(0, part.span, part.rows)[: part.blocks]
        runs = torch.unique_consecutive(spans.all(-1), return_counts=True)
        whole, counts = (x.tolist() for x in runs)
        if len(counts) > MOST_RUNS:
            whole, counts = [False], [part.blocks]
        start = 0
        for free, count in zip(whole, counts, strict=True):
            run = part.piece(start, count)
            if not free and run.mask is not None:
                hidden = ~spans[start : start + count, None, None, :]
                run = replace(run, mask=run.mask.masked_fill(hidden, float("-inf")), outer=False)
            masked.append(run)
            start += count
    return masked


class _Band(NamedTuple):
    """left, right: keys seen on either side; G: global tokens; slopes: [H], ALiBi."""

    left: int
    right: int
    G: int
    slopes: Tensor | None


def _banded(
    q: Tensor, k: Tensor, v: Tensor, band: _Band, exists: Tensor | None, dropout_p: float
) -> Tensor:
    """Blocks of C queries against spans of S = C + left + right keys, and the G global keys.

    q, k [B, H, N, D], v [B, H, N, V]; exists: bool [B, N]. Rows of global queries are computed
    like any other and are the caller's to replace.
    """
    B, H, N, _ = q.shape
    left, right, G = band.left, band.right, band.G
    C = QUERIES_PER_BLOCK
    blocks = block_count(N, C)
    tail = blocks * C - N
    S = C + left + right
    device = q.device

    row, slot = torch.arange(C, device=device), torch.arange(S, device=device)
    within = torch.arange(blocks, device=device)[:, None] * C + slot  # [blocks, S], from −left on

    def spans(x: Tensor) -> Tensor:
        padded = merge_heads(x, left, tail + right)
        if torch.compiler.is_compiling():  # overlapping strides tie a trace to its length
            return padded[:, within]
        return padded.unfold(1, S, C).transpose(-1, -2)

    q_blocks = cut(merge_heads(q, 0, tail), C)
    k_spans, v_spans = spans(k), spans(v)
    near = (slot >= row[:, None]) & (slot <= row[:, None] + left + right)
    if exists is None:
        real = torch.ones(1, N, dtype=torch.bool, device=device)
    else:
        real = exists.repeat_interleave(H, 0)
    # Global keys come in a part of their own.
    inside = F.pad(real & (torch.arange(N, device=device) >= G), (left, tail + right))
    keep = inside[:, within][:, :, None] & near  # [1 or (B H), blocks, C, S]
    bias = None
    if band.slopes is not None:
        bias = distance_bias(band.slopes, row + left, slot).transpose(0, 1)  # [H, 1, C, S]
    if G:
        query = torch.arange(blocks, device=device)[:, None] * C + row  # [blocks, C]
        key = torch.arange(G, device=device)
        seen = real[:, None, None, :G].expand(-1, blocks, C, -1)
        keep = torch.cat([seen, keep], -1)
        k_spans = torch.cat([_every_block(k[..., :G, :], blocks), k_spans], -2)
        v_spans = torch.cat([_every_block(v[..., :G, :], blocks), v_spans], -2)
        if bias is not None and band.slopes is not None:
            far = distance_bias(band.slopes, query.flatten(), key)
            far = far[0].unflatten(1, (-1, C))  # [H, blocks, C, G]
            bias = torch.cat([far, bias.expand(-1, blocks, -1, -1)], -1)
    if bias is not None:
        bias = bias.repeat(B, 1, 1, 1)
    out = masked_attention(q_blocks, k_spans, v_spans, keep, bias, dropout_p)
    return join(out, B, 0, N)


def _global_rows(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, G: int, dropout_p: float
) -> Tensor:
    """The first G queries, which see every key."""
    N = k.shape[-2]
    keep = None if mask.key_padding is None else mask.key_padding[:, None, None, :]
    if mask.causal:
        keep = intersect(keep, causal_keep(G, G, q.device, columns=N))
    bias = None
    if mask.slopes is not None:
        positions = torch.arange(N, device=q.device)
        bias = distance_bias(mask.slopes, positions[:G], positions)
    return masked_attention(q[..., :G, :], k, v, keep, bias, dropout_p)


def _every_block(x: Tensor, blocks: int) -> Tensor:
    return rearrange(x, "b h g d -> (b h) 1 g d").expand(-1, blocks, -1, -1)
