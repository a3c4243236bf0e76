"""A variant that is right, and copies of it with one fault each, for the conformance probes.

None is registered on import, so that no other test meets them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.attention import (
    AttentionMask,
    AttentionVariant,
    Capabilities,
    UnsupportedAttention,
    unregister_variant,
)
from efficient_attn.attention.masks import dense_weights
from efficient_attn.attention.variant import KeyValueCache

EVERYTHING = Capabilities(
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


@dataclass(frozen=True)
class NoOptions:
    """Nothing to choose."""


class Right(AttentionVariant):
    """Softmax attention in the plainest words; honours everything."""

    Options = NoOptions
    capabilities = EVERYTHING

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, p: float = 0) -> Tensor:
        return self.weights(q, k, mask) @ v

    def init_state(self, batch: int, **where: Any) -> KeyValueCache:
        where = {"value_dim": None, "device": None, "dtype": None, **where}
        return KeyValueCache.empty(batch, self.heads, self.head_dim, *where.values())

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, slopes: Any = None) -> Any:
        state = state.append(k, v)
        mask = AttentionMask(causal=True, slopes=slopes)
        return self(q, state.k, state.v, mask), state


class Masked(Right):
    """For faults in a mask: a subclass says what the forward pass reads in its place."""

    def read(self, mask: AttentionMask, q: Tensor, k: Tensor) -> AttentionMask:
        return mask

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, p: float = 0) -> Tensor:
        return super().forward(q, k, v, self.read(mask, q, k))


class IgnoresCausal(Masked):
    def read(self, mask: AttentionMask, q: Tensor, k: Tensor) -> AttentionMask:
        return replace(mask, causal=False)


class LooksOneAhead(Right):
    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        N, M = q.shape[-2], k.shape[-2]
        if not mask.causal:
            return super().weights(q, k, mask)
        free = replace(mask, causal=False)
        keep = torch.ones(N, M, dtype=torch.bool).tril(M - N + 1)
        others = free.keep(N, M, q.device)
        return dense_weights(q, k, keep if others is None else keep & others)


class AlignsTopLeft(Right):
    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        N, M = q.shape[-2], k.shape[-2]
        if not mask.causal or N == M:
            return super().weights(q, k, mask)
        return dense_weights(q, k, torch.ones(N, M, dtype=torch.bool).tril())


class DropsPadding(Masked):
    def read(self, mask: AttentionMask, q: Tensor, k: Tensor) -> AttentionMask:
        return replace(mask, key_padding=None)


class SkipsPaddingOfOneSample(Masked):
    def read(self, mask: AttentionMask, q: Tensor, k: Tensor) -> AttentionMask:
        return replace(mask, key_padding=None) if len(q) == 1 else mask


class PadsValuesOnly(Right):
    """Padded values are zero, but their keys still count in the normaliser."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, p: float = 0) -> Tensor:
        if mask.key_padding is not None:
            v = v.masked_fill(~mask.key_padding[:, None, :, None], 0.0)
        return self.weights(q, k, replace(mask, key_padding=None)) @ v


class DropsPairwise(Masked):
    def read(self, mask: AttentionMask, q: Tensor, k: Tensor) -> AttentionMask:
        return replace(mask, pairwise=None)


class ReadsFloatsAsBool(Masked):
    def read(self, mask: AttentionMask, q: Tensor, k: Tensor) -> AttentionMask:
        if mask.pairwise is None or mask.pairwise.dtype == torch.bool:
            return mask
        return replace(mask, pairwise=mask.pairwise > torch.finfo(mask.pairwise.dtype).min)


class IgnoresDistance(Masked):
    def read(self, mask: AttentionMask, q: Tensor, k: Tensor) -> AttentionMask:
        return replace(mask, slopes=None)


class NaNWhereNothingIsSeen(Right):
    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        keep = mask.keep(q.shape[-2], k.shape[-2], q.device)
        weights = super().weights(q, k, mask)
        if keep is None:
            return weights
        return weights.masked_fill(~keep.any(-1, keepdim=True), float("nan"))


class Kernel(Right):
    """exp(q·k/√d − top), normalised with an epsilon; `top` is where the faults are."""

    capabilities = replace(EVERYTHING, pairwise_mask=False, alibi=False)

    def top(self, scores: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            scores = scores.masked_fill(~keep, -1e30)
        return scores.amax(-1, keepdim=True)

    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        keep = mask.keep(q.shape[-2], k.shape[-2], q.device)
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = q.to(wide) @ k.to(wide).mT * q.shape[-1] ** -0.5
        exponents = scores - self.top(scores, keep)
        if keep is not None:
            exponents = exponents.masked_fill(~keep, float("-inf"))
        kernel = exponents.exp()
        return (kernel / (kernel.sum(-1, keepdim=True) + 1e-9)).to(q.dtype)


class LeaksByMaximum(Kernel):
    """The largest score of the whole sequence, later tokens included."""

    def top(self, scores: Tensor, keep: Tensor | None) -> Tensor:
        return scores.amax((-2, -1), keepdim=True)


class CouplesTheBatch(Kernel):
    """The largest score of the whole batch, for each query of its own."""

    def top(self, scores: Tensor, keep: Tensor | None) -> Tensor:
        return super().top(scores, keep).amax((0, 1), keepdim=True)


class NormaliserTooLarge(Right):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, p: float = 0) -> Tensor:
        return super().forward(q, k, v, mask) / (1 + 1e-3)


class OverflowsInHalf(Right):
    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        keep = mask.keep(q.shape[-2], k.shape[-2], q.device)
        if q.dtype != torch.float16 or keep is not None:
            return super().weights(q, k, mask)
        kernel = (q @ k.mT * q.shape[-1] ** -0.5).exp()
        return kernel / kernel.sum(-1, keepdim=True)


class WeightsWithoutTheMask(Right):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, p: float = 0) -> Tensor:
        return super().weights(q, k, mask) @ v

    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        return super().weights(q, k, replace(mask, key_padding=None))


class ForgetsWhileDecoding(Right):
    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, slopes: Any = None) -> Any:
        return super().step(q, k, v, state.last(3), slopes)


class SeesAllOfAPrefill(Right):
    """Single steps are right; several tokens in one step see each other both ways."""

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, slopes: Any = None) -> Any:
        state = state.append(k, v)
        return self(q, state.k, state.v, AttentionMask(slopes=slopes)), state


class _SameForAll(KeyValueCache):
    def select(self, index: Tensor) -> KeyValueCache:
        return super().select(torch.zeros_like(index))

    def append(self, k: Tensor, v: Tensor) -> KeyValueCache:
        grown = super().append(k, v)
        return _SameForAll(grown.k, grown.v, grown.position)


class SelectsTheFirstSample(Right):
    def init_state(self, batch: int, **where: Any) -> KeyValueCache:
        empty = super().init_state(batch, **where)
        return _SameForAll(empty.k, empty.v)


class DrawsInEval(Right):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, p: float = 0) -> Tensor:
        return super().forward(q + 1e-3 * torch.randn_like(q), k, v, mask)


class KeepsNoFeatures(Right):
    """A matrix drawn from the global generator that no state dict holds."""

    def __init__(self, heads: int, head_dim: int, options: Any, **where: Any) -> None:
        super().__init__(heads, head_dim, options)
        self.mixing = torch.randn(head_dim, head_dim, dtype=torch.float64)

    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        mixing = self.mixing.to(q.dtype)
        return super().weights(q @ mixing, k @ mixing, mask)


class UnusedParameter(Right):
    def __init__(self, heads: int, head_dim: int, options: Any, **where: Any) -> None:
        super().__init__(heads, head_dim, options)
        self.unused = torch.nn.Parameter(torch.ones(3, dtype=where.get("dtype")))


class EvenLengthsOnly(Right):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, p: float = 0) -> Tensor:
        if q.shape[-2] > 2 and q.shape[-2] % 2:
            raise RuntimeError("the length must be even")
        return super().forward(q, k, v, mask)


class RefusesLongCausal(Right):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, p: float = 0) -> Tensor:
        if mask.causal and q.shape[-2] > 100:
            raise UnsupportedAttention("too long to be causal")
        return super().forward(q, k, v, mask)


class CrossesEqualLengthsUndeclared(Right):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, p: float = 0) -> Tensor:
        if q.shape[-2] != k.shape[-2]:
            raise UnsupportedAttention("as many keys as queries")
        return super().forward(q, k, v, mask)


class CannotDecode(Right):
    """Declares decoding and lacks it."""

    init_state = AttentionVariant.init_state
    step = AttentionVariant.step


@contextmanager
def registered(variant: type[AttentionVariant]) -> Iterator[str]:
    """Its name in the registry, for as long as the context lasts."""
    name = f"toy_{variant.__name__}"
    ea.register_variant(name)(variant)
    try:
        yield name
    finally:
        unregister_variant(name)
