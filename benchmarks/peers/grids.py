"""Tokens on a grid, for peers that attend within windows of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention import OptionError

from .base import ModulePeer, PeerOptions


@dataclass(frozen=True)
class GridOptions(PeerOptions):
    """window: rows and columns of a window; grid: (rows, columns), None = nearest to a square."""

    window: int = 8
    grid: tuple[int, int] | None = None


class GridPeer(ModulePeer):
    """Attention within shifted windows of a grid."""

    Options = GridOptions

    @classmethod
    def resolve(
        cls, options: Any, *, max_len: int | None, grid: tuple[int, int] | None, layer: int | None
    ) -> Any:
        options = super().resolve(options, max_len=max_len, grid=grid, layer=layer)
        if options.grid is not None or max_len is None:
            return options
        return replace(options, grid=nearly_square(max_len))

    def grid(self, N: int) -> tuple[int, int]:
        """(rows, columns) of N tokens; OptionError where windows do not fill them."""
        grid = tuple(self.options.grid or nearly_square(N))
        if grid[0] * grid[1] != N or any(size % self.options.window for size in grid):
            raise OptionError(
                f"{self.name}: a grid {grid[0]} × {grid[1]} of whole windows of "
                f"{self.options.window} × {self.options.window} is not made of {N} tokens"
            )
        return grid[0], grid[1]


def nearly_square(N: int) -> tuple[int, int]:
    """The two factors of N nearest to each other, rows first and not more than columns."""
    rows = next(r for r in range(int(N**0.5), 0, -1) if N % r == 0)
    return rows, N // rows


def groups(grid: tuple[int, int], window: int, shift: int) -> Tensor:
    """Bool [N, N]: along either axis both tokens are in one group ⌊(y − shift)/window⌋.

    An axis of a single window is not shifted.
    """
    axes = []
    for size in grid:
        offset = shift if size > window else 0
        axes.append((torch.arange(size) - offset).div(window, rounding_mode="floor"))
    row = axes[0][:, None].expand(grid).flatten()
    column = axes[1][None, :].expand(grid).flatten()
    return (row[:, None] == row) & (column[:, None] == column)
