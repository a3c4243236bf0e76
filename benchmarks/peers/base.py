"""What adapters share: how they are registered, what they say of themselves, dense formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from efficient_attn.attention import (
    AttentionMask,
    AttentionVariant,
    UnsupportedAttention,
    refusal,
    register_variant,
)


@dataclass(frozen=True)
class PeerOptions:
    """version: of the package that answers, filled in; it says so in the record."""

    version: str | None = None


class Peer(AttentionVariant):
    """Somebody else's attention on split heads.

    distribution: the package on the index. counterpart: the variant of ours that computes the same
    thing; None where there is none. differs: what it computes or takes differently, in a sentence.
    tolerance: difference from its formula, in parts of the largest output, that is still correct.
    costly_lengths: every new length costs seconds to prepare, so that few are probed.
    """

    listed = False
    Options: ClassVar[type] = PeerOptions
    distribution: ClassVar[str]
    counterpart: ClassVar[str | None] = None
    differs: ClassVar[str]
    tolerance: ClassVar[float] = 1e-4
    costly_lengths: ClassVar[bool] = False

    @classmethod
    def resolve(
        cls, options: Any, *, max_len: int | None, grid: tuple[int, int] | None, layer: int | None
    ) -> Any:
        try:
            return replace(options, version=version(cls.distribution))
        except PackageNotFoundError:
            return options

    @classmethod
    def package(cls, module: str) -> Any:
        """A module of the package; `UnsupportedAttention` where it does not import."""
        try:
            return import_module(module)
        except ImportError as error:
            raise UnsupportedAttention(
                f"{cls.name}: {module} does not import ({error}); pip install "
                "'efficient-attn[peers]' brings what installs from an index"
            ) from error

    def formula(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor | None:
        """The dense form of what the adapter claims to compute, in float64; None = no claim."""
        return None


class ModulePeer(Peer):
    """Somebody else's attention with its projections: measured at scope ``module`` only.

    A subclass gives `whole`, and `formula` on tokens instead of heads.
    """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        raise UnsupportedAttention(
            f"{self.name} is a whole module with its projections: measure workload.scope=module"
        )

    def whole(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        """x [B, N, E] -> [B, N, E]. padding: bool [B, N], True = ignore."""
        raise NotImplementedError

    def token_formula(self, x: Tensor, *, causal: bool) -> Tensor | None:
        """The dense form of `whole` in float64, with the module's weights; None = no claim."""
        return None

    def whole_module(self) -> nn.Module:
        """In place of `MultiHeadAttention` (see `efficient_attn.bench.passes`)."""
        return _Whole(self)


class _Whole(nn.Module):
    """A `ModulePeer`, called as `MultiHeadAttention` is."""

    def __init__(self, core: ModulePeer) -> None:
        super().__init__()
        self.core = core

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        can = self.core.capabilities
        cross = key is not None and key is not query
        can.require(self.core.name, causal=is_causal, cross=cross)
        if key_padding_mask is not None and not can.key_padding:
            raise refusal(self.core.name, "key_padding")
        return self.core.whole(query, causal=is_causal, padding=key_padding_mask), None


Adapter = TypeVar("Adapter", bound="type[Peer]")


def peer(name: str) -> Callable[[Adapter], Adapter]:
    """Class decorator: register an adapter as ``peer:<name>``."""

    def decorate(cls: Adapter) -> Adapter:
        return register_variant(f"peer:{name}", paper=f"package {cls.distribution}")(cls)

    return decorate


def band(N: int, window: int, *, causal: bool, device: Any = None) -> Tensor:
    """Bool [N, N]: |i − j| <= window, and j <= i when causal."""
    offset = torch.arange(N, device=device)[None, :] - torch.arange(N, device=device)[:, None]
    return (offset >= -window) & (offset <= (0 if causal else window))


def dense(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """softmax(QKᵀ/√d + bias over `keep`) V in float64."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias.double()
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    return scores.softmax(-1) @ v


def kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    omega: Tensor,
    *,
    causal: bool,
    signs: bool = False,
    added: float = 0.0,
) -> Tensor:
    """Attention with FAVOR+'s positive features of directions omega [R, D], dense in float64.

    signs: features of +ω and of −ω, as fast-transformers takes them. added: to every feature, once
    the largest ω·x, over a query's features and over all of the keys', is taken from its exponent,
    as performer-pytorch does; without it those maxima cancel.
    """
    q, k, v, omega = (x.double() for x in (q, k, v, omega))
    omega = torch.cat([omega, -omega]) if signs else omega

    def features(x: Tensor, over: tuple[int, ...]) -> Tensor:
        x = x / x.shape[-1] ** 0.25
        along = x @ omega.T
        norm = x.square().sum(-1, keepdim=True) / 2
        return (along - norm - along.amax(over, keepdim=True)).exp() + added

    weights = features(q, (-1,)) @ features(k, (-1, -2)).mT
    if causal:
        weights = weights.tril()
    return weights / weights.sum(-1, keepdim=True) @ v


def split(x: Tensor, heads: int) -> Tensor:
    """[B, N, H·D] -> [B, H, N, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """[B, H, N, D] -> [B, N, H·D]."""
    return x.transpose(1, 2).flatten(-2)


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    """A `nn.Linear` in float64."""
    assert isinstance(layer, nn.Linear)
    bias = None if layer.bias is None else layer.bias.double()
    return nn.functional.linear(x.double(), layer.weight.double(), bias)
