"""torch's own: fused attention, bare and under a dense band mask, FlexAttention, and its module."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efficient_attn.attention import AttentionMask, Capabilities, OptionError, UnsupportedAttention

from .base import ModulePeer, Peer, PeerOptions, band, dense, linear, merge, peer, split


@dataclass(frozen=True)
class BandOptions(PeerOptions):
    """window: keys seen on either side, the query's own beside them."""

    window: int = 128

    def __post_init__(self) -> None:
        if not isinstance(self.window, int) or self.window < 1:
            raise OptionError(f"window={self.window!r}: allowed is a whole number of at least 1")


@peer("sdpa")
class Sdpa(Peer):
    """`scaled_dot_product_attention` as it comes."""

    distribution = "torch"
    counterpart = "full"
    differs = "nothing; rows that see no key are not defined, so it takes no padding here"
    capabilities = Capabilities(causal_self=True)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=mask.causal)

    def formula(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        N = q.shape[-2]
        return dense(q, k, v, band(N, N, causal=causal))


@peer("sdpa-band")
class SdpaBand(Peer):
    """Fused attention under an N×N mask of the band: a window emulated, at full cost.

    The mask is made once per length; its making and its N² bytes are not measured.
    """

    distribution = "torch"
    counterpart = "local_window"
    differs = "scores all N² pairs and masks them; window + 1 + window keys count, as in ours"
    Options = BandOptions
    capabilities = Capabilities(causal_self=True)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        keep = _band(q.shape[-2], self.options.window, mask.causal)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep, dropout_p=dropout_p)

    def formula(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        return dense(q, k, v, band(q.shape[-2], self.options.window, causal=causal))


@lru_cache(maxsize=2)
def _band(N: int, window: int, causal: bool) -> Tensor:
    return band(N, window, causal=causal)


@peer("flex-attention")
class FlexBand(Peer):
    """FlexAttention, compiled, with a block mask of the band.

    Compiling and the block mask are made once per length and not measured.
    """

    distribution = "torch"
    counterpart = "local_window"
    differs = "no backward on CPU; blocks of 128 × 128 that the band touches are computed whole"
    costly_lengths = True
    Options = BandOptions
    capabilities = Capabilities(causal_self=True)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        if q.device.type == "cpu" and torch.is_grad_enabled() and q.requires_grad:
            raise UnsupportedAttention(f"{self.name}: FlexAttention has no backward on CPU")
        blocks = _flex_blocks(q.shape[-2], self.options.window, mask.causal, q.device)
        if q.dtype == torch.float64:  # which it has on no CPU; probes ask in it
            q, k, v = q.float(), k.float(), v.float()
            return _compiled_flex()(q, k, v, block_mask=blocks).double()
        return _compiled_flex()(q, k, v, block_mask=blocks)

    def flops(
        self,
        batch: int,
        queries: int,
        keys: int,
        *,
        causal: bool,
        backward: bool = False,
        padded: bool = False,
    ) -> int | None:
        """Two products over the pairs of the blocks that are touched."""
        if backward:
            return None
        blocks = _flex_blocks(queries, self.options.window, causal, torch.device("cpu"))
        count = int(blocks.kv_num_blocks.sum())
        if blocks.full_kv_num_blocks is not None:
            count += int(blocks.full_kv_num_blocks.sum())
        rows, columns = blocks.BLOCK_SIZE
        pairs = count * min(rows, queries) * min(columns, keys)
        return 4 * batch * self.heads * pairs * self.head_dim

    def formula(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        return dense(q, k, v, band(q.shape[-2], self.options.window, causal=causal))


@lru_cache(maxsize=1)
def _compiled_flex() -> Any:
    import torch._inductor.config as inductor
    from torch.nn.attention.flex_attention import flex_attention

    inductor.compile_threads = 1  # a pool of compiling processes would outlive the measurement
    return torch.compile(flex_attention, dynamic=False)


@lru_cache(maxsize=2)
def _flex_blocks(N: int, window: int, causal: bool, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    right = 0 if causal else window

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j - i >= -window) & (j - i <= right)

    return create_block_mask(near, None, None, N, N, device=str(device))


@peer("torch-multihead-attention")
class TorchModule(ModulePeer):
    """`torch.nn.MultiheadAttention`, without weights."""

    distribution = "torch"
    counterpart = "full"
    differs = "rows that see no key give NaN; causal needs its N×N mask, made once per length"
    capabilities = Capabilities(causal_self=True, key_padding=True)

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        self.theirs = nn.MultiheadAttention(heads * head_dim, heads, batch_first=True, **place)

    def whole(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        mask = _later(x.shape[1]) if causal else None
        return self.theirs(x, x, x, padding, need_weights=False, attn_mask=mask, is_causal=causal)[
            0
        ]

    def token_formula(self, x: Tensor, *, causal: bool) -> Tensor:
        theirs = self.theirs
        packed = F.linear(x.double(), theirs.in_proj_weight.double(), theirs.in_proj_bias.double())
        q, k, v = (split(part, self.heads) for part in packed.chunk(3, -1))
        N = x.shape[1]
        return linear(merge(dense(q, k, v, band(N, N, causal=causal))), theirs.out_proj)


@lru_cache(maxsize=1)
def _later(N: int) -> Tensor:
    return ~band(N, N, causal=True)
