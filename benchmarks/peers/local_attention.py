"""local-attention (lucidrains): windows of keys around blocks of queries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention import AttentionMask, Capabilities

from .base import Peer, band, dense, peer
from .torch_fused import BandOptions


@peer("local-attention")
class LocalAttention(Peer):
    """`LocalAttention` with ``exact_windowsize=True``, without rotary positions.

    A query sees window + 1 + window keys, or window + 1 when causal, as in ours.
    """

    distribution = "local-attention"
    counterpart = "local_window"
    differs = (
        "nothing where the window divides the length; elsewhere it pads, and as the pad zeros "
        "would be attended to, a mask of the real tokens is passed"
    )
    Options = BandOptions
    capabilities = Capabilities(causal_self=True, key_padding=True)

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        make = self.package("local_attention").LocalAttention
        self.free, self.ordered = (
            make(options.window, causal=causal, exact_windowsize=True, autopad=True)
            for causal in (False, True)
        )

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        exists = mask.key_padding
        if exists is None and q.shape[-2] % self.options.window:
            exists = torch.ones(q.shape[0], q.shape[-2], dtype=torch.bool, device=q.device)
        return (self.ordered if mask.causal else self.free)(q, k, v, mask=exists)

    def formula(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        return dense(q, k, v, band(q.shape[-2], self.options.window, causal=causal))
