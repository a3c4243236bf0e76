"""reformer-pytorch (lucidrains): attention within buckets of like tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from efficient_attn.attention import Capabilities

from .base import ModulePeer, PeerOptions, peer


@dataclass(frozen=True)
class ReformerOptions(PeerOptions):
    """bucket: tokens of a bucket; hashes: rounds of hashing."""

    bucket: int = 64
    hashes: int = 4


@peer("reformer-pytorch")
class Reformer(ModulePeer):
    """`LSHSelfAttention`: keys are the queries, hashed anew in every call."""

    distribution = "reformer-pytorch"
    differs = (
        "no variant of ours computes it; queries and keys are shared; the length must be a "
        "multiple of two buckets; its hashes come from the global generator, in eval as well"
    )
    Options = ReformerOptions
    capabilities = Capabilities(causal_self=True)

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        make = self.package("reformer_pytorch").LSHSelfAttention
        self.theirs = make(
            heads * head_dim, heads, bucket_size=options.bucket, n_hashes=options.hashes
        ).to(**place)

    def whole(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        self.theirs.lsh_attn.causal = self.theirs.full_attn.causal = causal
        return self.theirs(x)
