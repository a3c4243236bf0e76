"""Performer: softmax attention through positive random features (FAVOR+).

Paper: Choromanski et al. 2021, "Rethinking Attention with Performers", equations 5-7 (positive
features) and section 2.4 (orthogonal features).

    exp(q·k/√d) ≈ φ(q)·φ(k),   φ(x)_r = exp(w_r·x − |x|²/2)/√R,   x scaled by d^(−1/4)
    out_i = φ(q_i)·Σ_j φ(k_j) v_jᵀ  /  φ(q_i)·Σ_j φ(k_j)

Cost: time O(N·R·d), memory O(N·R) a head. The estimate is unbiased before the division and its
error falls as 1/√R, slowly when |q| and |k| are large.

Numbers. φ spans hundreds of powers of e, so everything is kept relative to a maximum that cancels
in the quotient and is the sample's own. Without causality, keys are taken relative to the largest
key of each feature, and its log joins the query's exponent: the normaliser is then at least 1,
whatever the input, without an epsilon. Causal attention runs chunk by chunk; a query's scale is the
largest key up to itself, never a later one, so a later token has no way to touch an earlier output.
Should a causal normaliser still vanish in fp32, the queries it is lost for are computed again in
fp64; a compiled or exported program, which cannot look, gives them zeros. Half precision is
computed in fp32, but for the products of the bfloat16 kernels, which sum in fp32.

Speed. On the CPU, but for short sequences, kernels compute the same (`kernels/performer.py`,
`kernels/performer_causal.py`): piece by piece in memory used again, features computed anew for
gradients, O(N·d) kept. With 8 heads of 64, R = 256 and N = 4096 in fp32, on two cores, products
alone take 22 ms noncausal and 35 ms causal at 200 GFLOP/s, of 34 and 53 in all; the rest are passes
over the features (exp, maxima, scales; 1 ms each). What did not help: torch's fused attention twice
(52 ms noncausal), its backward (109 ms beside 60), chunks of 64 (fewer scores, more sums: products
of the forward pass take as long). Denormal numbers, which stood in the first sums, had made causal
training a third slower.

It cannot take a pairwise mask: the keys are summed before any query meets them. Dropout acts on
whole values (one draw per key and head, shared by the queries), since weights are never formed; its
mean is that of dropping weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from efficient_attn.attention.arithmetic import product_flops
from efficient_attn.attention.blocks import block_count, cut, join, merge_heads
from efficient_attn.attention.errors import require_choice, require_int
from efficient_attn.attention.kernels.flash import hand_written, under_autocast
from efficient_attn.attention.kernels.performer import noncausal, noncausal_products
from efficient_attn.attention.kernels.performer_causal import causal, causal_products
from efficient_attn.attention.masks import AttentionMask
from efficient_attn.attention.registry import Capabilities, register_variant
from efficient_attn.attention.variant import IMPLEMENTATIONS, AttentionVariant

CHUNK = 128
LOST = 1e-25


@dataclass(frozen=True)
class PerformerOptions:
    """num_features: R; redraw_interval: draw new features every so many training calls, None =
    never; seed: of the features; implementation: eager, formula or compiled."""

    num_features: int = 256
    redraw_interval: int | None = None
    seed: int = 0
    implementation: str = "eager"

    def __post_init__(self) -> None:
        require_int("num_features", self.num_features, low=1)
        if self.redraw_interval is not None:
            require_int("redraw_interval", self.redraw_interval, low=1)
        require_int("seed", self.seed, low=0)
        require_choice("implementation", self.implementation, IMPLEMENTATIONS)


@register_variant(
    "performer",
    paper='Choromanski et al. 2021, "Rethinking Attention with Performers"',
    formula="φ(Q)(φ(K)ᵀV) / φ(Q)(φ(K)ᵀ1), φ(x) = exp(Wx − |x|²/2)/√R",
    time="O(N·R·d), R features",
    memory="O(N·(d + R))",
    state="O(R·d)",
)
class Performer(AttentionVariant):
    """Softmax attention estimated with random features; linear in length, causal or not."""

    Options = PerformerOptions
    capabilities = Capabilities(
        noncausal_self=True,
        causal_self=True,
        noncausal_cross=True,
        causal_cross=True,
        key_padding=True,
        weights=True,
        decode=True,
        rotary=True,
    )
    refusals = {  # noqa: RUF012
        "pairwise_mask": "keys are summed before a query meets them",
        "alibi": "a bias of query and key does not factor into features of each",
    }
    features: Tensor
    calls: Tensor

    def __init__(
        self,
        heads: int,
        head_dim: int,
        options: PerformerOptions,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(heads, head_dim, options)
        features = orthogonal_features(options.num_features, head_dim, options.seed)
        self.register_buffer("features", features.to(device=device, dtype=dtype or torch.float32))
        if options.redraw_interval is not None:
            self.register_buffer("calls", torch.zeros((), dtype=torch.long, device=device))

    @classmethod
    def resolve(
        cls,
        options: PerformerOptions,
        *,
        max_len: int | None,
        grid: tuple[int, int] | None,
        layer: int | None,
    ) -> PerformerOptions:
        return replace(options, seed=options.seed + layer) if layer else options

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        self._redraw()
        if dropout_p:
            v = v * F.dropout(torch.ones_like(v[..., :1]), dropout_p)
        q, k, v = under_autocast(q, k, v)
        exists = mask.key_padding
        formula = partial(self._formula, exists=exists, is_causal=mask.causal)
        N, M = q.shape[-2], k.shape[-2]
        if not hand_written(q, k, v, exists, self.features) or not _large(N, M, mask.causal):
            return formula(q, k, v)
        if not mask.causal:
            return noncausal(q, k, v, self.features, exists, formula)
        q = q[..., N - M :, :]  # the queries before precede every key
        out, normalisers = causal(q, k, v, self.features, exists, formula)
        out = _rescued(out, normalisers, exists, formula, (q, k, v))
        return F.pad(out, (0, 0, N - M, 0)) if N > M else out

    def _formula(
        self, q: Tensor, k: Tensor, v: Tensor, *, exists: Tensor | None, is_causal: bool
    ) -> Tensor:
        """The definition, differentiable by torch, in fp32 at least."""
        with torch.autocast(q.device.type, enabled=False):
            dtype = torch.promote_types(q.dtype, torch.float32)
            values = F.pad(v.to(dtype), (0, 1), value=1.0)
            compute = self._causal if is_causal else self._noncausal
            out = compute(q.to(dtype), k.to(dtype), values, exists)
        return out.to(v.dtype)

    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        """The estimated weights [B, H, N, M], formed for looking at; time and memory O(N·M·R)."""
        with torch.autocast(q.device.type, enabled=False):
            dtype = torch.promote_types(q.dtype, torch.float32)
            features = self.features.to(dtype)
            log_q = _log_queries(q.to(dtype), features)
            log_k = _log_keys(k.to(dtype), features, mask.key_padding)
            scores = torch.stack(
                [(row + log_k).logsumexp(-1) for row in log_q.unsqueeze(-2).unbind(-3)], -2
            )
            N, M = scores.shape[-2:]
            keep = replace(mask, pairwise=None).keep(N, M, q.device)
            if keep is None:
                return scores.softmax(-1).to(q.dtype)
            alive = keep.any(-1, keepdim=True)
            scores = scores.masked_fill(~keep, float("-inf")).masked_fill(~alive, 0.0)
            return scores.softmax(-1).masked_fill(~alive, 0.0).to(q.dtype)

    def init_state(
        self,
        batch: int,
        *,
        value_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> _Sums:
        """Sums over all keys so far, in fp64: of one size at any length."""
        sums = torch.zeros(
            batch,
            self.heads,
            self.options.num_features,
            (value_dim or self.head_dim) + 1,
            device=device,
            dtype=torch.float64,
        )
        return _Sums.empty(sums)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: _Sums, slopes: Tensor | None = None
    ) -> tuple[Tensor, _Sums]:
        outputs = []
        with torch.autocast(q.device.type, enabled=False):
            features = self.features.double()
            pieces = zip(*(x.double().split(CHUNK, -2) for x in (q, k, v)), strict=True)
            for q_piece, k_piece, v_piece in pieces:
                log_q, log_k = _log_queries(q_piece, features), _log_keys(k_piece, features, None)
                sums, state = _chunk(log_q, log_k, F.pad(v_piece, (0, 1), value=1.0), state)
                outputs.append(_divide(sums))
        return torch.cat(outputs, -2).to(v.dtype), state

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
        """The features of queries and keys, and the sums over keys that queries meet.

        The features W are constants, so that a product with them has one gradient only.
        """
        N, M, D, R = queries, keys, self.head_dim, self.options.num_features
        if _large(N, M, causal):
            kernel = causal_products if causal else noncausal_products
            products = kernel(N, M, D, R, backward=backward)
        elif not causal:
            features, sums = (N + M) * D * R, (N + M) * R * (D + 1)
            products = 2 * features + 3 * sums if backward else features + sums
        else:
            products = self._causal_products(min(N, M), M, backward)
        return product_flops(batch * self.heads, products)

    def _causal_products(self, N: int, M: int, backward: bool) -> int:
        """Multiply-adds of `_causal` in one head, for N <= M queries."""
        D, R, W = self.head_dim, self.options.num_features, self.head_dim + 1
        total, stop = 0, 0
        sizes = [(C, 0) for C in _chunk_sizes(M - N)] + [(C, C) for C in _chunk_sizes(N)]
        for C, n in sizes:
            start, stop = stop, stop + C
            features, inside = (n + C) * D * R, n * C * (R + W)
            before, own = n * R * W, C * R * W
            total += features + inside + before + own
            if backward:  # no gradient for the empty first sums, nor by the unread last ones
                total += features + 2 * inside
                total += before * (2 if start > 0 else 1) + own * (2 if stop < M else 0)
        return total

    def step_flops(self, batch: int, context: int, tokens: int) -> int:
        D, R, W = self.head_dim, self.options.num_features, self.head_dim + 1
        products = 0
        for start in range(0, tokens, CHUNK):
            n = min(CHUNK, tokens - start)
            products += 2 * n * D * R + n * n * (R + W) + 2 * n * R * W
        return product_flops(batch * self.heads, products)

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
        """W is read. φ(q) and φ(k) stay in the cache, and are computed again for gradients."""
        total = super().traffic(
            batch,
            queries,
            keys,
            causal=causal,
            itemsize=itemsize,
            backward=backward,
            padded=padded,
        )
        return total + self.features.numel() * itemsize

    def step_traffic(self, batch: int, context: int, tokens: int, itemsize: int) -> int:
        """The sums and their scales are read and written, in fp64."""
        entries = self.options.num_features * (self.head_dim + 1) + 1
        state = batch * self.heads * entries * 8
        return super().step_traffic(batch, context, tokens, itemsize) + 2 * state

    def _redraw(self) -> None:
        interval = self.options.redraw_interval
        if interval is None or not self.training:
            return
        calls = int(self.calls)
        if calls and calls % interval == 0:
            seed = self.options.seed + 1_000_003 * (calls // interval)
            drawn = orthogonal_features(self.options.num_features, self.head_dim, seed)
            self.features.copy_(drawn)
        self.calls.add_(1)

    def _noncausal(self, q: Tensor, k: Tensor, values: Tensor, exists: Tensor | None) -> Tensor:
        """Each feature relative to its largest key; values [B, H, M, V + 1] end in a 1.

        Keys are summed and queries answered by chunks, whose features stay in the cache.
        """
        features = self.features.to(q.dtype)
        sums = values.new_zeros(*k.shape[:2], len(features), values.shape[-1])
        scale = torch.full_like(sums[..., :1], _floor(sums)).transpose(-1, -2)  # [B, H, 1, R]
        # A traced program must not depend on the length, as the number of chunks does.
        traced = torch.compiler.is_compiling()
        parts = [(k, values, exists)] if traced else _parts(k, values, exists, CHUNK)
        for k_part, part, exist in parts:
            log_k = _log_keys(k_part, features, exist)
            higher = torch.maximum(scale, log_k.detach().amax(-2, keepdim=True))
            own = (log_k - higher).exp().transpose(-1, -2) @ part
            sums = sums * (scale - higher).exp().transpose(-1, -2) + own
            scale = higher
        answers = []
        for queries in [q] if traced else q.split(CHUNK, -2):
            exponents = _log_queries(queries, features) + scale
            phi_q = (exponents - exponents.detach().amax(-1, keepdim=True)).exp()
            answers.append(_divide(phi_q @ sums))
        return torch.cat(answers, -2)

    def _causal(self, q: Tensor, k: Tensor, values: Tensor, exists: Tensor | None) -> Tensor:
        """Chunk by chunk, aligned bottom-right: the last query sees every key."""
        N, M = q.shape[-2], k.shape[-2]
        blind = max(N - M, 0)
        if blind:  # the first queries precede every key
            out = self._causal(q[..., blind:, :], k, values, exists)
            return F.pad(out, (0, 0, blind, 0))
        features = self.features.to(q.dtype)
        if torch.compiler.is_compiling():
            log_q = F.pad(_log_queries(q, features), (0, 0, M - N, 0))
            total = _all_chunks(log_q, _log_keys(k, features, exists), values)
            return _divide(total[..., M - N :, :])
        state = _Sums.empty(values.new_zeros(*k.shape[:2], len(features), values.shape[-1]))
        before, own = _chunk_sizes(M - N), _chunk_sizes(N)
        queries = [q[..., :0, :]] * len(before) + list(q.split(own, -2))
        sums = []
        for q_part, (k_part, part, exist) in zip(
            queries, _parts(k, values, exists, before + own), strict=True
        ):
            log_q, log_k = _log_queries(q_part, features), _log_keys(k_part, features, exist)
            out, state = _chunk(log_q, log_k, part, state)
            sums.append(out)
        total = torch.cat(sums, -2)
        wide = partial(self._causal, exists=exists)
        return _rescued(_divide(total), total[..., -1], exists, wide, (q, k, values))


def _large(N: int, M: int, causal: bool) -> bool:
    """Whether the kernels are faster than the formula, and have been written: the causal one
    answers a query for every key. Shorter sequences do not pay for its bookkeeping."""
    return N >= M >= 4 * CHUNK if causal else N + M >= CHUNK


class _Sums(NamedTuple):
    """Σ_j φ(k_j)_r (v_j, 1) over the keys so far, relative to exp(log_scale).

    sums [B, H, R, V + 1], log_scale [B, H, 1]; an empty sum has the lowest scale. position: keys
    so far.
    """

    sums: Tensor
    log_scale: Tensor
    position: int = 0

    @property
    def nbytes(self) -> int:
        return self.sums.nbytes + self.log_scale.nbytes

    def select(self, index: Tensor) -> _Sums:
        """The sums of the samples index [B']."""
        sums, log_scale = self.sums.index_select(0, index), self.log_scale.index_select(0, index)
        return _Sums(sums, log_scale, self.position)

    @classmethod
    def empty(cls, zeros: Tensor) -> _Sums:
        return cls(zeros, torch.full_like(zeros[..., 0, :1], _floor(zeros)))


def _log_queries(q: Tensor, features: Tensor) -> Tensor:
    """log φ(q) [B, H, N, R] of q [B, H, N, D], without what cancels in the quotient."""
    return (q * q.shape[-1] ** -0.25) @ features.T


def _log_keys(k: Tensor, features: Tensor, exists: Tensor | None) -> Tensor:
    """log φ(k) [B, H, M, R] of k [B, H, M, D], likewise; −inf where exists [B, M] is False."""
    k = k * k.shape[-1] ** -0.25
    log_k = k @ features.T - k.square().sum(-1, keepdim=True) / 2
    if exists is None:
        return log_k
    return log_k.masked_fill(~exists[:, None, :, None], float("-inf"))


def _chunk_sizes(length: int) -> list[int]:
    return [min(CHUNK, length - start) for start in range(0, length, CHUNK)]


def _parts(
    k: Tensor, values: Tensor, exists: Tensor | None, sizes: int | list[int]
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Keys, values and which exist, by chunks. One split has one gradient of full size, where a
    slice for each chunk would have as many."""
    keys = k.split(sizes, -2)
    flags = [None] * len(keys) if exists is None else exists.split(sizes, -1)
    return list(zip(keys, values.split(sizes, -2), flags, strict=True))


def _chunk(log_q: Tensor, log_k: Tensor, values: Tensor, state: _Sums) -> tuple[Tensor, _Sums]:
    """Sums [B, H, n, V + 1] of the chunk's queries over all keys up to each, and the state after.

    log_q [B, H, n, R] for the chunk's n keys, or for none of them; log_k [B, H, C, R]; values
    [B, H, C, V + 1]. Queries are relative to their largest feature, keys to theirs, and a query's
    sums to the largest key so far.
    """
    top_k = log_k.detach().amax(-1).clamp_min(_floor(log_k))
    phi_k = (log_k - top_k[..., None]).exp()
    so_far = torch.cat([state.log_scale, top_k], -1).cummax(-1).values
    last = so_far[..., -1:]
    out = values[..., :0, :]
    if log_q.shape[-2]:
        phi_q = (log_q - log_q.detach().amax(-1, keepdim=True)).exp()
        scale = so_far[..., 1:, None]
        C = log_k.shape[-2]
        later = torch.ones(C, C, dtype=torch.bool, device=log_k.device).triu(1)
        ratio = (top_k[..., None, :] - scale).masked_fill(later, float("-inf")).exp()
        inside = (phi_q @ phi_k.transpose(-1, -2) * ratio) @ values
        before = (phi_q @ state.sums) * (state.log_scale[..., None] - scale).exp()
        out = inside + before
    own = phi_k.transpose(-1, -2) @ (values * (top_k - last).exp()[..., None])
    kept = state.sums * (state.log_scale - last).exp()[..., None]
    # A view of the last scale would keep those of the whole chunk alive in the state.
    return out, _Sums(kept + own, last.clone(), state.position + log_k.shape[-2])


def _all_chunks(log_q: Tensor, log_k: Tensor, values: Tensor) -> Tensor:
    """What `_chunk` does chunk after chunk, without a loop, so that one traced program serves
    every length: log_q, log_k [B, H, M, R], values [B, H, M, V + 1] -> sums [B, H, M, V + 1].

    The sums before chunk c are those of the chunks s < c, brought to a common scale by a matrix
    of [chunks, chunks].
    """
    B, M = log_k.shape[0], log_k.shape[-2]
    tail = block_count(M, CHUNK) * CHUNK - M

    def chunks(x: Tensor, fill: float) -> Tensor:
        return cut(merge_heads(x, 0, tail, fill), CHUNK)  # [(B H), C, CHUNK, ...]

    log_q, log_k = chunks(log_q, 0.0), chunks(log_k, float("-inf"))
    values = chunks(values, 0.0)
    floor = _floor(log_k)
    top_k = log_k.detach().amax(-1).clamp_min(floor)
    phi_k = (log_k - top_k[..., None]).exp()
    phi_q = (log_q - log_q.detach().amax(-1, keepdim=True)).exp()
    chunk_top = top_k.amax(-1)  # [(B H), C]
    highest = chunk_top.cummax(-1).values
    earlier = F.pad(highest[..., :-1], (1, 0), value=floor)
    own = phi_k.transpose(-1, -2) @ (values * (top_k - chunk_top[..., None]).exp()[..., None])
    order = torch.arange(chunk_top.shape[-1], device=log_k.device)
    ratio = (chunk_top[..., None, :] - earlier[..., :, None]).masked_fill(
        order[None, :] >= order[:, None], float("-inf")
    )
    before = torch.einsum("acs,asrv->acrv", ratio.exp(), own)
    scale = torch.maximum(top_k.cummax(-1).values, earlier[..., None])
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=log_k.device).triu(1)
    inner = (top_k[..., None, :] - scale[..., None]).masked_fill(later, float("-inf")).exp()
    inside = (phi_q @ phi_k.transpose(-1, -2) * inner) @ values
    outside = (phi_q @ before) * (earlier[..., None] - scale).exp()[..., None]
    return join(inside + outside, B, 0, M)


def _divide(sums: Tensor) -> Tensor:
    """Weighted sum over normaliser; zeros where there was no key at all."""
    normaliser = sums[..., -1:]
    empty = normaliser == 0
    return (sums[..., :-1] / normaliser.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)


def _rescued(
    out: Tensor,
    normalisers: Tensor,
    exists: Tensor | None,
    formula: Callable[[Tensor, Tensor, Tensor], Tensor],
    inputs: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """out [B, H, N, V] with the queries recomputed in fp64 whose normaliser [B, H, N] was lost."""
    if normalisers.dtype == torch.float64:
        return out
    lost = _underflowed(normalisers, exists)
    if not bool(lost.any()):
        return out
    wide = formula(inputs[0].double(), inputs[1].double(), inputs[2].double())
    return torch.where(lost[..., None], wide.to(out.dtype), out)


def _underflowed(normalisers: Tensor, exists: Tensor | None) -> Tensor:
    """Bool [B, H, N]: the queries that see a key and have a normaliser too small to trust.

    It takes queries and keys that point apart by far more than trained models ever do.
    """
    small = normalisers.detach() < LOST
    if exists is not None:
        N, M = normalisers.shape[-1], exists.shape[-1]
        small = small & (exists.cummax(-1).values[:, None, M - N :])
    return small


def _floor(like: Tensor) -> float:
    """A log scale below every other one, with room to add and subtract."""
    return torch.finfo(like.dtype).min / 8


def orthogonal_features(R: int, D: int, seed: int) -> Tensor:
    """R rows of width D in float64: orthogonal within every D rows, normal in distribution."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, D, generator=generator, dtype=torch.float64)

    def rotation() -> Tensor:
        # Householder's signs are not random: without this, directions favour one side and the
        # estimate is biased however many features there are (Mezzadri 2007, section 5).
        Q, upper = torch.linalg.qr(normal(D))
        return (Q * upper.diagonal().sign()).T

    directions = torch.cat([rotation() for _ in range(-(-R // D))])[:R]
    return directions * normal(R).norm(dim=-1, keepdim=True)
