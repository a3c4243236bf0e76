"""performer-pytorch (lucidrains): FAVOR+."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention import AttentionMask, Capabilities

from .base import Peer, PeerOptions, kernel, peer


@dataclass(frozen=True)
class PerformerOptions(PeerOptions):
    """num_features: R, random directions."""

    num_features: int = 256


@peer("performer-pytorch")
class Performer(Peer):
    """`FastAttention` with its softmax kernel, as it chooses its code itself.

    Its causal form takes the C++ product of pytorch-fast-transformers where that was built with
    CUDA, else chunks in Python.
    """

    distribution = "performer-pytorch"
    counterpart = "performer"
    differs = (
        "adds 1e-4 to every feature, after a maximum over all keys and features has been taken "
        "from the exponents, and is held to that formula: for standard normal queries and keys it "
        "is as far from FAVOR+ without the addition as the outputs are large; causal, the maximum "
        "tells earlier outputs of later keys"
    )
    Options = PerformerOptions
    capabilities = Capabilities(causal_self=True)

    def __init__(
        self,
        heads: int,
        head_dim: int,
        options: Any,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(heads, head_dim, options)
        make = self.package("performer_pytorch").FastAttention
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.free, self.ordered = (
                make(head_dim, nb_features=options.num_features, causal=causal)
                for causal in (False, True)
            )
        self.ordered.projection_matrix = self.free.projection_matrix
        self.to(device=device, dtype=dtype)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        return (self.ordered if mask.causal else self.free)(q, k, v)

    def formula(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        return kernel(q, k, v, self.free.projection_matrix, causal=causal, added=1e-4)
