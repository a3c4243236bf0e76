"""linformer (lucidrains): keys and values projected along the length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.attention import AttentionMask, Capabilities

from .base import ModulePeer, Peer, PeerOptions, dense, linear, merge, peer, split


@dataclass(frozen=True)
class LinformerOptions(PeerOptions):
    """k: projected length; max_len: rows of the projections, None = those of the workload."""

    k: int = 256
    max_len: int | None = None


class _SizedPeer(Peer):
    """Made for the longest length of the workload."""

    distribution = "linformer"
    counterpart = "linformer"
    Options = LinformerOptions

    @classmethod
    def resolve(
        cls, options: Any, *, max_len: int | None, grid: tuple[int, int] | None, layer: int | None
    ) -> Any:
        options = super().resolve(options, max_len=max_len, grid=grid, layer=layer)
        return options if options.max_len else replace(options, max_len=max_len)

    def make(self, **place: Any) -> Any:
        make = self.package("linformer").LinformerSelfAttention
        width, length = self.heads * self.head_dim, self.options.max_len or 512
        return make(width, length, k=self.options.k, heads=self.heads).to(**place)


@peer("linformer")
class Linformer(_SizedPeer, ModulePeer):
    """`LinformerSelfAttention`, one projection for keys and one for values, shared by heads."""

    differs = (
        "no bias in the projections of query, key and value (ours has them); it takes a mask and "
        "ignores it, so none is passed"
    )
    capabilities = Capabilities()

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        self.theirs = self.make(**place)

    def whole(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        return self.theirs(x)

    def token_formula(self, x: Tensor, *, causal: bool) -> Tensor:
        theirs, N = self.theirs, x.shape[1]
        k, v = (
            torch.einsum("bnd,nk->bkd", linear(x, layer), projection[:N].double())
            for layer, projection in ((theirs.to_k, theirs.proj_k), (theirs.to_v, theirs.proj_v))
        )
        heads = (split(part, self.heads) for part in (linear(x, theirs.to_q), k, v))
        return linear(merge(dense(*heads)), theirs.to_out)


@peer("linformer-core")
class LinformerCore(_SizedPeer):
    """`LinformerSelfAttention` with its four projections taken out."""

    differs = "heads are merged for it and split again, which copies q, k and v once"
    capabilities = Capabilities()

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        self.theirs = self.make(**place)
        self.values = _Given()
        self.theirs.to_q = self.theirs.to_k = self.theirs.to_out = nn.Identity()
        self.theirs.to_v = self.values

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        self.values.given = merge(v)
        out = self.theirs(merge(q), context=merge(k))
        self.values.given = None
        return split(out, self.heads)

    def formula(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        theirs, M = self.theirs, k.shape[-2]
        k, v = (
            torch.einsum("bhmd,mk->bhkd", x.double(), projection[:M].double())
            for x, projection in ((k, theirs.proj_k), (v, theirs.proj_v))
        )
        return dense(q, k, v)


class _Given(nn.Module):
    """In place of the value projection: the values, which are not made of the keys' input."""

    given: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor | None:
        return self.given
