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

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Tokens [B, n, D] at the positions from `start` on to [B, n, D]."""
        stop = end_of(x, start)
        if stop > self.table.shape[0]:
            rows = sinusoids(x.shape[1], self.dim, start, device=x.device)
        else:
            rows = self.table[start:stop]
        return x + rows.to(x.dtype)

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

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Tokens [B, n, D] at the positions from `start` on to [B, n, D]."""
        stop = end_of(x, start)
        self.require_length(stop)
        return x + self.weight[start:stop]

    def require_length(self, length: int) -> None:
        """ValueError where so many tokens are more than the positions."""
        max_len = self.weight.shape[0]
        if length > max_len:
            raise ValueError(
                f"{length} tokens are more than the {max_len} learned positions; shorten the "
                f"input (prompt and new tokens), or build the model with max_len={length} or "
                "more, or with positions='sinusoidal' or 'rotary'"
            )

    def extra_repr(self) -> str:
        return f"max_len={self.weight.shape[0]}, dim={self.weight.shape[1]}"


class NoPositions(nn.Module):
    """Adds nothing."""

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """[B, n, D], as they are."""
        return x


def make_positions(kind: str, max_len: int, dim: int) -> nn.Module:
    """Module that adds positions of `kind` to tokens [B, n, D], the first of them at `start`."""
    if kind == "sinusoidal":
        return SinusoidalPositions(max_len, dim)
    if kind == "learned":
        return LearnedPositions(max_len, dim)
    if kind == "none":
        return NoPositions()
    raise ValueError(f"positions={kind!r} is not one of {', '.join(POSITION_KINDS)}")


def end_of(x: Tensor, start: int) -> int:
    """The position after the last of the tokens x [B, n, D]; ValueError before position 0."""
    if start < 0:
        raise ValueError(f"start={start}: the first position is 0")
    return start + x.shape[1]


def sinusoids(length: int, dim: int, start: int = 0, device: torch.device | None = None) -> Tensor:
    """The rows of `SinusoidalPositions`' table P from `start` on, [length, dim], fp32."""
    position = torch.arange(start, start + length, dtype=torch.float32, device=device)
    pairs = torch.arange(0, dim, 2, dtype=torch.float32, device=device)
    angle = torch.outer(position, torch.exp(pairs * (-math.log(10000.0) / dim)))
    table = torch.empty(length, dim, device=device)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : dim // 2]
    return table
