"""pytorch-fast-transformers (Idiap): C++ products of windows and of causal features.

Its extension is built by pip install --no-build-isolation --no-deps pytorch-fast-transformers, in
some minutes; an nvcc on the path needs its CUDA_HOME. It computes in fp32 alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention import AttentionMask, Capabilities, UnsupportedAttention

from .base import Peer, band, dense, kernel, peer
from .performer_pytorch import PerformerOptions
from .torch_fused import BandOptions


class FastTransformers(Peer):
    """Tensors arrive as [B, N, H, D] views, as a module around it would give them."""

    distribution = "pytorch-fast-transformers"
    capabilities = Capabilities(causal_self=True)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        if q.dtype not in (torch.float32, torch.float64):
            raise UnsupportedAttention(f"{self.name}: its extension takes fp32 alone")
        B, _, N, _ = q.shape
        pairs, lengths = _masks(self.package("fast_transformers.masking"), B, N, mask.causal)
        q1, k1, v1 = (x.float().transpose(1, 2) for x in (q, k, v))
        out = self.attend(q1, k1, v1, pairs, lengths, causal=mask.causal)
        return out.transpose(1, 2).to(q.dtype)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, pairs: Any, lengths: Any, *, causal: bool
    ) -> Tensor:
        """q, k, v [B, N, H, D], and the package's own masks."""
        raise NotImplementedError


@lru_cache(maxsize=2)
def _masks(masking: Any, B: int, N: int, causal: bool) -> tuple[Any, Any]:
    pairs = masking.TriangularCausalMask(N) if causal else masking.FullMask(N, N)
    return pairs, masking.LengthMask(torch.full((B,), N), max_len=N)


@peer("fast-transformers-local")
class FastLocal(FastTransformers):
    """`LocalAttention` with a context of 2·window + 1 keys, as in ours."""

    counterpart = "local_window"
    differs = "reads its mask as a float matrix [N, N]; causal masks half of the window's scores"
    Options = BandOptions

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        make = self.package("fast_transformers.attention.local_attention").LocalAttention
        self.theirs = make(2 * options.window + 1, attention_dropout=0.0)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, pairs: Any, lengths: Any, *, causal: bool
    ) -> Tensor:
        return self.theirs(q, k, v, pairs, lengths, lengths)

    def flops(
        self,
        batch: int,
        queries: int,
        keys: int,
        *,
        causal: bool,
        backward: bool = False,
        padded: bool = False,
    ) -> int:
        """Every key of the window, seen or not: two products forward, four backward."""
        visited = int(band(queries, self.options.window, causal=False).sum())
        return 4 * batch * self.heads * visited * self.head_dim * (3 if backward else 1)

    def formula(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        return dense(q, k, v, band(q.shape[-2], self.options.window, causal=causal))


@peer("fast-transformers-favor")
class FastFavor(FastTransformers):
    """Linear attention on `Favor` features, without its stabiliser, which makes the result wrong.

    num_features / 2 directions are drawn, and features taken of both their signs.
    """

    counterpart = "performer"
    differs = (
        "half as many directions, with both signs; no stabiliser, so large scores overflow or "
        "vanish beside the 1e-6 that is added to the normaliser"
    )
    Options = PerformerOptions

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        favor = self.package("fast_transformers.feature_maps").Favor.factory(
            n_dims=options.num_features, stabilize=False, redraw=2**62
        )
        attention = self.package("fast_transformers.attention")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.free = attention.LinearAttention(head_dim, favor)
            self.free.feature_map.new_feature_map(None)
            self.ordered = attention.CausalLinearAttention(head_dim, favor)
        self.ordered.feature_map = self.free.feature_map

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, pairs: Any, lengths: Any, *, causal: bool
    ) -> Tensor:
        self.free.feature_map.float()
        return (self.ordered if causal else self.free)(q, k, v, pairs, lengths, lengths)

    def flops(
        self,
        batch: int,
        queries: int,
        keys: int,
        *,
        causal: bool,
        backward: bool = False,
        padded: bool = False,
    ) -> int:
        """Features of half as many directions twice, and two products with the state, per token."""
        R, D = self.options.num_features, self.head_dim
        features = 2 * 2 * D * (R // 2)
        state = 2 * 2 * R * D
        return batch * self.heads * queries * (features + state) * (3 if backward else 1)

    def formula(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        omega = self.free.feature_map.omega.T
        return kernel(q, k, v, omega, causal=causal, signs=True)
