"""linformer (lucidrains): keys and values projected along the length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention import Capabilities

from .base import ModulePeer, PeerOptions, dense, linear, merge, peer, split


@dataclass(frozen=True)
class LinformerOptions(PeerOptions):
    """k: projected length; max_len: rows of the projections, None = those of the workload."""

    k: int = 256
    max_len: int | None = None


@peer("linformer")
class Linformer(ModulePeer):
    """`LinformerSelfAttention`, one projection for keys and one for values, shared by heads."""

    distribution = "linformer"
    counterpart = "linformer"
    differs = (
        "no bias in the projections of query, key and value (ours has them); it takes a mask and "
        "ignores it, so none is passed"
    )
    Options = LinformerOptions
    capabilities = Capabilities()

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        make = self.package("linformer").LinformerSelfAttention
        length = options.max_len or 512
        self.theirs = make(heads * head_dim, length, k=options.k, heads=heads).to(**place)

    @classmethod
    def resolve(
        cls, options: Any, *, max_len: int | None, grid: tuple[int, int] | None, layer: int | None
    ) -> Any:
        options = super().resolve(options, max_len=max_len, grid=grid, layer=layer)
        return options if options.max_len else replace(options, max_len=max_len)

    def run(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        return self.theirs(x)

    def token_formula(self, x: Tensor, *, causal: bool) -> Tensor:
        theirs, N = self.theirs, x.shape[1]
        k, v = (
            torch.einsum("bnd,nk->bkd", linear(x, layer), projection[:N].double())
            for layer, projection in ((theirs.to_k, theirs.proj_k), (theirs.to_v, theirs.proj_v))
        )
        heads = (split(part, self.heads) for part in (linear(x, theirs.to_q), k, v))
        return linear(merge(dense(*heads)), theirs.to_out)
