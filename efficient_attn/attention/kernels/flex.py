"""Sliding windows through torch's FlexAttention, which compiles a kernel from the pattern itself.

Meant for CUDA. On a CPU it has no backward pass and no float64. Blocks of 128 × 128 that the band
touches are computed whole (Dong et al. 2024, "Flex Attention").
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from efficient_attn.attention.errors import UnsupportedAttention
from efficient_attn.attention.kernels.flash import wants_gradient
from efficient_attn.attention.masks import AttentionMask

Sizes = tuple[int, int, int]
"""Keys seen to the left, keys seen to the right, global tokens."""


def flex_window(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, sizes: Sizes, dropout_p: float
) -> Tensor:
    """q, k [B, H, N, D], v [B, H, N, V] -> [B, H, N, V]. The first call of a kind compiles.

    `UnsupportedAttention` for dropout and, on a CPU, for gradients and float64.
    """
    reason = _refusal(q, k, v, dropout_p)
    if reason is not None:
        raise UnsupportedAttention(
            f"local_window with implementation='flex' {reason}; implementation='eager' does"
        )
    N = q.shape[-2]
    if mask.key_padding is None:
        blocks = _blocks(N, sizes, mask.causal, str(q.device))
    else:
        blocks = _made_blocks(N, sizes, mask.causal, str(q.device), mask.key_padding)
    slopes = mask.slopes

    def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert slopes is not None
        return score - slopes[h] * (i - j).abs()

    out: Tensor = _program()(
        q, k, v, score_mod=None if slopes is None else biased, block_mask=blocks
    )
    return out


def _refusal(q: Tensor, k: Tensor, v: Tensor, dropout_p: float) -> str | None:
    if dropout_p:
        return "has no dropout"
    if q.device.type != "cpu":
        return None
    if wants_gradient(q, k, v):
        return "has no backward pass on a CPU"
    return "has no float64 on a CPU" if q.dtype == torch.float64 else None


@lru_cache(maxsize=1)
def _program() -> Any:
    return torch.compile(flex_attention)


@lru_cache(maxsize=8)
def _blocks(N: int, sizes: Sizes, causal: bool, device: str) -> BlockMask:
    with torch.inference_mode(False):
        return _made_blocks(N, sizes, causal, device, None)


def _made_blocks(
    N: int, sizes: Sizes, causal: bool, device: str, exists: Tensor | None
) -> BlockMask:
    left, right, G = sizes

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        keep = ((j >= i - left) & (j <= i + right)) | (i < G) | (j < G)
        if causal:
            keep = keep & (j <= i)
        return keep if exists is None else keep & exists[b, j]

    B = None if exists is None else len(exists)
    return create_block_mask(seen, B, None, N, N, device=device)
