"""nystrom-attention (lucidrains): Nyström approximation of the attention matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from efficient_attn.attention import Capabilities

from .base import ModulePeer, PeerOptions, peer


@dataclass(frozen=True)
class NystromOptions(PeerOptions):
    """landmarks: means of segments that stand for queries and keys."""

    landmarks: int = 64


@peer("nystrom-attention")
class Nystrom(ModulePeer):
    """`NystromAttention` without its convolution."""

    distribution = "nystrom-attention"
    differs = (
        "no variant of ours computes it; pads in front with zeros that take part; a maximum over "
        "the batch scales its inverse"
    )
    Options = NystromOptions
    capabilities = Capabilities(key_padding=True)

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        make = self.package("nystrom_attention").NystromAttention
        width = heads * head_dim
        self.theirs = make(
            width, head_dim, heads, num_landmarks=options.landmarks, residual=False
        ).to(**place)

    def whole(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        return self.theirs(x, mask=None if padding is None else ~padding)
