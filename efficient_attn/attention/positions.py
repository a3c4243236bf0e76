"""Positions that act inside attention: rotary embedding and ALiBi."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, start: int, base: float) -> Tensor:
    """Rotary position embedding of x [B, H, N, D], D even, token n at position start + n.

    Su et al. 2021, "RoFormer", equation 34: entries c and c + D/2 are turned, as one complex
    number, by position · base^(−2c/D). Angles and products are taken in fp32 at least.
    """
    N, D = x.shape[-2:]
    exact = torch.promote_types(x.dtype, torch.float32)
    position = torch.arange(start, start + N, device=x.device, dtype=exact)
    frequency = base ** (-torch.arange(0, D, 2, device=x.device, dtype=exact) / D)
    angle = position[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    first, second = x.to(exact).chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)


def alibi_slopes(heads: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Slopes [H] of Press et al. 2022, "Train Short, Test Long", section 3.

    2^(−8(h+1)/H) for a power of two; otherwise those of the power of two below, then every other
    one of the power of two above.
    """
    below = 2 ** (heads.bit_length() - 1)
    h = torch.arange(heads, device=device, dtype=dtype)
    exponent = torch.where(h < below, (h + 1) / below, (h - below + 0.5) / below)
    return 2 ** (-8 * exponent)
