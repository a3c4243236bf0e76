"""linear-attention-transformer (lucidrains): softmax of queries and keys apart."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from efficient_attn.attention import Capabilities

from .base import ModulePeer, PeerOptions, peer


@peer("linear-attention-transformer")
class LinearAttention(ModulePeer):
    """`SelfAttention`, all heads global; causal with buckets of one token."""

    distribution = "linear-attention-transformer"
    differs = "no variant of ours computes it; its mask writes into the keys and values given"
    Options = PeerOptions
    capabilities = Capabilities(causal_self=True)

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        package = self.package("linear_attention_transformer.linear_attention_transformer")
        free, ordered = (
            package.SelfAttention(heads * head_dim, heads, causal=causal).to(**place)
            for causal in (False, True)
        )
        self.theirs: nn.Module = free
        self.functions = {False: free.global_attn_fn, True: ordered.global_attn_fn}

    def whole(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        self.theirs.global_attn_fn = self.functions[causal]
        return self.theirs(x)
