"""Performer: softmax attention through positive random features (FAVOR+).

Paper: Choromanski et al. 2021, "Rethinking Attention with Performers", equations 5-7 (positive
features) and section 2.4 (orthogonal features).

    exp(q·k/√d) ≈ φ(q)·φ(k),   φ(x)_r = exp(w_r·x − |x|²/2)/√R,   x scaled by d^(−1/4)
    out_i = φ(q_i)·Σ_j φ(k_j) v_jᵀ  /  φ(q_i)·Σ_j φ(k_j)

Cost: time O(N·R·d), memory O(N·R) a head. The estimate is unbiased before the division and its
error falls as 1/√R, slowly when |q| and |k| are large.

Numbers. φ spans hundreds of powers of e, so everything is kept relative to a maximum that cancels
in the quotient and is the sample's own. Per feature r, keys are taken relative to the largest key
of that feature, and its log joins the query's exponent: the normaliser is then at least 1, whatever
the input, without an epsilon. Causal attention runs in chunks; the sums over earlier chunks carry
such maxima along, and inside a chunk keys are taken relative to the largest key so far, so a later
token has no way to touch an earlier output. Half precision is computed in fp32.

It cannot take a pairwise mask: the keys are summed before any query meets them. Dropout acts on
whole values (one draw per key and head, shared by the queries), since weights are never formed; its
mean is that of dropping weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from efficient_attn.attention.errors import require_int
from efficient_attn.attention.masks import AttentionMask
from efficient_attn.attention.registry import Capabilities, register_variant
from efficient_attn.attention.variant import AttentionVariant

CHUNK = 128


@dataclass(frozen=True)
class PerformerOptions:
    """num_features: R; redraw_interval: draw new features every so many training calls, None =
    never; seed: of the features."""

    num_features: int = 256
    redraw_interval: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_int("num_features", self.num_features, low=1)
        if self.redraw_interval is not None:
            require_int("redraw_interval", self.redraw_interval, low=1)
        require_int("seed", self.seed, low=0)


@register_variant(
    "performer",
    paper='Choromanski et al. 2021, "Rethinking Attention with Performers"',
    formula="φ(Q)(φ(K)ᵀV) / φ(Q)(φ(K)ᵀ1), φ(x) = exp(Wx − |x|²/2)/√R",
    time="O(N·R·d), R features",
    memory="O(N·(d + R))",
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
    )
    refusals = {  # noqa: RUF012
        "pairwise_mask": "keys are summed before a query meets them"
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
        with torch.autocast(q.device.type, enabled=False):
            logs = self._logs(q, k, mask)
            values = F.pad(v.to(logs.q.dtype), (0, 1), value=1.0)
            out = (_causal if mask.causal else _noncausal)(logs, values)
        return out.to(v.dtype)

    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        """The estimated weights [B, H, N, M], formed for looking at; time and memory O(N·M·R)."""
        with torch.autocast(q.device.type, enabled=False):
            logs = self._logs(q, k, mask)
            scores = torch.stack(
                [(row + logs.k).logsumexp(-1) for row in logs.q.unsqueeze(-2).unbind(-3)], -2
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
        """Running sums over all keys so far: of one size at any length."""
        R, V = self.options.num_features, value_dim or self.head_dim
        exact = torch.promote_types(dtype or self.features.dtype, torch.float32)
        sums = torch.zeros(batch, self.heads, R, V + 1, device=device, dtype=exact)
        return _Sums(sums, torch.full_like(sums[..., 0], _floor(sums)))

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: _Sums) -> tuple[Tensor, _Sums]:
        with torch.autocast(q.device.type, enabled=False):
            logs = self._logs(q, k, AttentionMask())
            values = F.pad(v.to(logs.q.dtype), (0, 1), value=1.0)
            state = state.add(_sum_keys(logs.k, values))
            sums, _ = state.read(logs.q)
        return (sums[..., :-1] / sums[..., -1:]).to(v.dtype), state

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

    def _logs(self, q: Tensor, k: Tensor, mask: AttentionMask) -> _Logs:
        """log φ without the constants that cancel: [B, H, N, R] and [B, H, M, R].

        A masked key has −inf.
        """
        dtype = torch.promote_types(q.dtype, torch.float32)
        scale = self.head_dim**-0.25
        features = self.features.to(dtype).T
        q, k = q.to(dtype) * scale, k.to(dtype) * scale
        log_k = k @ features - k.square().sum(-1, keepdim=True) / 2
        if mask.key_padding is not None:
            log_k = log_k.masked_fill(~mask.key_padding[:, None, :, None], float("-inf"))
        return _Logs(q @ features, log_k)


class _Logs(NamedTuple):
    """Logarithms of the features of queries [..., N, R] and keys [..., M, R]."""

    q: Tensor
    k: Tensor


class _Sums(NamedTuple):
    """Σ_j φ(k_j)_r (v_j, 1), each feature relative to exp(log_scale_r).

    sums [..., R, V + 1], log_scale [..., R]; an empty sum has the lowest scale.
    """

    sums: Tensor
    log_scale: Tensor

    def add(self, other: _Sums) -> _Sums:
        scale = torch.maximum(self.log_scale, other.log_scale)
        mine = (self.log_scale - scale).exp()[..., None]
        theirs = (other.log_scale - scale).exp()[..., None]
        return _Sums(self.sums * mine + other.sums * theirs, scale)

    def read(self, log_q: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_r φ(q)_r sums_r relative to exp of the second result: [..., N, V + 1], [..., N, 1]."""
        exponents = log_q + self.log_scale[..., None, :]
        top = exponents.detach().amax(-1, keepdim=True)
        return (exponents - top).exp() @ self.sums, top


def _sum_keys(log_k: Tensor, values: Tensor) -> _Sums:
    """Sum keys [..., M, R] with values [..., M, V + 1], each feature by its own largest key."""
    scale = log_k.detach().amax(-2).clamp_min(_floor(log_k))
    phi = (log_k - scale[..., None, :]).exp()
    return _Sums(phi.transpose(-1, -2) @ values, scale)


def _noncausal(logs: _Logs, values: Tensor) -> Tensor:
    sums, _ = _sum_keys(logs.k, values).read(logs.q)
    return _divide(sums)


def _causal(logs: _Logs, values: Tensor) -> Tensor:
    """Causal attention aligned bottom-right: chunk by chunk, earlier chunks as sums."""
    N, M = logs.q.shape[-2], logs.k.shape[-2]
    if N > M:  # the first queries precede every key
        return F.pad(_causal(_Logs(logs.q[..., N - M :, :], logs.k), values), (0, 0, N - M, 0))
    C = min(CHUNK, M)
    tail = -M % C

    def chunks(x: Tensor, before: int, fill: float) -> Tensor:
        return rearrange(
            F.pad(x, (0, 0, before, tail), value=fill), "b h (c n) r -> c b h n r", n=C
        )

    log_q = chunks(logs.q, M - N, 0.0)
    log_k = chunks(logs.k, 0, float("-inf"))
    v = chunks(values, 0, 0.0)

    inside, inside_top = _within_chunks(log_q, log_k, v)
    before, before_top = _before_chunks(log_q, log_k, v)
    top = torch.maximum(inside_top, before_top)
    sums = (inside_top - top).exp() * inside + (before_top - top).exp() * before
    sums = rearrange(sums, "c b h n v -> b h (c n) v")[..., M - N : M, :]
    if _underflowed(sums, logs.k) and sums.dtype != torch.float64:
        wide = _causal(_Logs(logs.q.double(), logs.k.double()), values.double())
        return wide.to(values.dtype)
    return _divide(sums)


def _within_chunks(log_q: Tensor, log_k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the keys of the own chunk up to the query, and the log of their scale."""
    top_q = log_q.detach().amax(-1, keepdim=True)
    top_k = log_k.detach().amax(-1).clamp_min(_floor(log_k))  # [c, b, h, C], each key its own
    products = (log_q - top_q).exp() @ (log_k - top_k[..., None]).exp().transpose(-1, -2)
    so_far = top_k.cummax(-1).values
    C = log_q.shape[-2]
    later = torch.ones(C, C, dtype=torch.bool, device=log_q.device).triu(1)
    ratio = (top_k[..., None, :] - so_far[..., :, None]).masked_fill(later, float("-inf")).exp()
    return (products * ratio) @ v, top_q + so_far[..., None]


def _before_chunks(log_q: Tensor, log_k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the keys of all earlier chunks, and the log of their scale."""
    own = _sum_keys(log_k, v)
    running = _Sums(torch.zeros_like(own.sums[0]), torch.full_like(own.log_scale[0], _floor(v)))
    earlier = []
    for chunk in zip(own.sums.unbind(0), own.log_scale.unbind(0), strict=True):
        earlier.append(running)
        running = running.add(_Sums(*chunk))
    stacked = _Sums(*(torch.stack(part) for part in zip(*earlier, strict=True)))
    return stacked.read(log_q)


def _divide(sums: Tensor) -> Tensor:
    """Weighted sum over normaliser; zeros where there was no key at all."""
    normaliser = sums[..., -1:]
    empty = normaliser == 0
    return (sums[..., :-1] / normaliser.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)


def _underflowed(sums: Tensor, log_k: Tensor) -> bool:
    """Whether a query that sees a key has a normaliser too small to trust.

    Only inside the first chunk, where no sum over earlier chunks holds the normaliser up, and only
    when queries and keys point apart by far more than trained models ever do.
    """
    if torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    N, M = sums.shape[-2], log_k.shape[-2]
    exists = (log_k[..., 0].detach() > float("-inf")).cummax(-1).values[..., M - N :]
    return bool(((sums[..., -1].detach() < 1e-30) & exists).any())


def _floor(like: Tensor) -> float:
    """A log scale below every other one, with room to add and subtract."""
    return torch.finfo(like.dtype).min / 8


def orthogonal_features(R: int, D: int, seed: int) -> Tensor:
    """R rows of width D in float64: orthogonal within every D rows, normal in distribution."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, D, generator=generator, dtype=torch.float64)

    blocks = [torch.linalg.qr(normal(D)).Q.T for _ in range(-(-R // D))]
    directions = torch.cat(blocks)[:R]
    return directions * normal(R).norm(dim=-1, keepdim=True)
