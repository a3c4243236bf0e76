"""Where a token stands: absolute positions added to its embedding."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

PositionKind = Literal["sinusoidal", "learned", "none"]
POSITION_KINDS: tuple[PositionKind, ...] = get_args(PositionKind)


class SinusoidalPositions(nn.Module):
    """Adds fixed sines and cosines of geometrically spaced wavelengths, 2π to 10000·2π tokens.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.5:
    ``P[n, 2i] = sin(n / 10000^(2i/D))``, ``P[n, 2i+1] = cos(n / 10000^(2i/D))``.

    Any length works: `max_len` only says how many rows are kept ready. The table is not part of
    the state dict, so checkpoints do not depend on it.
    """

    table: Tensor

    def __init__(self, max_len: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("table", sinusoids(max_len, dim), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, D] to [B, N, D]."""
        length = x.shape[1]
        table = self.table
        if length > table.shape[0]:
            table = sinusoids(length, self.dim, device=x.device)
        return x + table[:length].to(x.dtype)

    def extra_repr(self) -> str:
        return f"max_len={self.table.shape[0]}, dim={self.dim}"


class LearnedPositions(nn.Module):
    """Adds one trained vector per position; drawn from N(0, 0.02²) as in BERT and GPT-2.

    Raises ValueError for inputs longer than `max_len`: there is nothing trained to add.
    """

    def __init__(self, max_len: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_len, dim))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, D] to [B, N, D]."""
        length, max_len = x.shape[1], self.weight.shape[0]
        if length > max_len:
            raise ValueError(
                f"input of {length} tokens is longer than the {max_len} learned positions; "
                f"build the model with max_len={length} or more, or use positions='sinusoidal'"
            )
        return x + self.weight[:length]

    def extra_repr(self) -> str:
        return f"max_len={self.weight.shape[0]}, dim={self.weight.shape[1]}"


def make_positions(kind: str, max_len: int, dim: int) -> nn.Module:
    """Module from [B, N, D] to [B, N, D] that adds positions of `kind` (none: the identity)."""
    if kind == "sinusoidal":
        return SinusoidalPositions(max_len, dim)
    if kind == "learned":
        return LearnedPositions(max_len, dim)
    if kind == "none":
        return nn.Identity()
    raise ValueError(f"positions={kind!r} is not one of {', '.join(POSITION_KINDS)}")


def sinusoids(length: int, dim: int, device: torch.device | None = None) -> Tensor:
    """The table P of `SinusoidalPositions`, [length, dim], fp32."""
    position = torch.arange(length, dtype=torch.float32, device=device)
    pairs = torch.arange(0, dim, 2, dtype=torch.float32, device=device)
    angle = torch.outer(position, torch.exp(pairs * (-math.log(10000.0) / dim)))
    table = torch.empty(length, dim, device=device)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : dim // 2]
    return table
