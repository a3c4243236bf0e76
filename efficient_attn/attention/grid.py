"""Tokens of a 2-D grid cut into windows, and the entries of a bias for positions within them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from efficient_attn.attention.masks import intersect

Grid = tuple[tuple[int, int], tuple[int, ...], tuple[int, ...]]
"""(rows, columns), and window and shift along each of them."""


class Windows(NamedTuple):
    """tokens, group: [windows, T], the token in each slot (0 for padding, whose group is −2) and
    its group; slot_of: [N], the slot of each token; whole: every window is one group."""

    tokens: Tensor
    group: Tensor
    slot_of: Tensor
    whole: bool

    def keep(self, exists: Tensor | None) -> Tensor | None:
        """Bool [1 or B, windows, T or 1, T] for keys that exist [B, N]; None = all are seen."""
        keep = None
        if not self.whole:
            group = self.group
            keep = (group[:, :, None] == group[:, None, :]) & (group != -2)[:, None, :]
            keep = keep[None]
        if exists is not None:
            keep = intersect(keep, exists[:, self.tokens][:, :, None])
        return keep


def cut_grid(
    grid: tuple[int, int],
    sizes: tuple[int, ...],
    shifts: tuple[int, ...],
    device: torch.device | str,
) -> Windows:
    vertical, horizontal = (
        _cut(length, size, 0 if length <= size else shift, device)
        for length, size, shift in zip(grid, sizes, shifts, strict=True)
    )
    return _cross(vertical, horizontal, grid[1])


# These depend on sizes alone, and would take a tenth of a call. They must serve all calls to come,
# whatever mode this one is in.


@lru_cache(maxsize=16)
def kept_index(sizes: tuple[int, ...], windows: tuple[int, ...]) -> Tensor:
    with torch.inference_mode(False):
        return window_index(sizes, windows, "cpu")


@lru_cache(maxsize=32)  # a hierarchy has about eight for one size of image
def kept_windows(grid: tuple[int, int], sizes: tuple[int, ...], shifts: tuple[int, ...]) -> Windows:
    with torch.inference_mode(False):
        return cut_grid(grid, sizes, shifts, "cpu")


def relative_index(queries: Tensor, keys: Tensor, windows: tuple[int, ...]) -> Tensor:
    """Entries [N, M] of the bias for coordinates [N, axes] and [M, axes]."""
    index = torch.zeros(1, 1, dtype=torch.long, device=queries.device)
    for axis, size in enumerate(windows):
        offset = queries[:, None, axis] - keys[None, :, axis]
        index = index * (2 * size - 1) + (offset + size - 1).clamp(0, 2 * size - 2)
    return index


def window_index(
    sizes: tuple[int, ...], windows: tuple[int, ...], device: torch.device | str
) -> Tensor:
    """Entries [T, T], for the slots of a window of `sizes`, of the bias made for `windows`."""
    rows, columns = (torch.arange(size, device=device) for size in sizes)
    slots = torch.cartesian_prod(rows, columns)
    return relative_index(slots, slots, windows)


def _cut(length: int, window: int, shift: int, device: torch.device | str) -> Windows:
    """Cut one axis, padded to whole windows and then rolled by −shift."""
    padded = -(-length // window) * window
    tokens = (torch.arange(padded, device=device) + shift) % padded
    group = torch.where(tokens < length, (tokens - shift).div(window, rounding_mode="floor"), -2)
    slot_of = (torch.arange(length, device=device) - shift) % padded
    tokens = torch.where(tokens < length, tokens, 0)
    whole = shift == 0 and padded == length
    return Windows(tokens.view(-1, window), group.view(-1, window), slot_of, whole)


def _cross(vertical: Windows, horizontal: Windows, columns: int) -> Windows:
    """Windows of a grid from those of its axes."""

    def combine(rows: Tensor, cols: Tensor, stride: int) -> Tensor:
        grid = rows[:, None, :, None] * stride + cols[None, :, None, :]
        return rearrange(grid, "a b i j -> (a b) (i j)")

    tokens = combine(vertical.tokens, horizontal.tokens, columns)
    # A group is named by its row group and its column group; −1 and −2 are names like others.
    names = columns + 3
    group = combine(vertical.group + 2, horizontal.group + 2, names)
    padding = combine((vertical.group == -2).int(), (horizontal.group == -2).int(), 2) > 0
    group = torch.where(padding, -2, group)
    height, width = vertical.tokens.shape[1], horizontal.tokens.shape[1]
    v, h = vertical.slot_of[:, None], horizontal.slot_of[None, :]
    window = (v // height) * horizontal.tokens.shape[0] + h // width
    within = (v % height) * width + h % width
    # Windows of one group come first: they need no mask.
    mixed = (group != group[:, :1]).any(-1)
    order = mixed.byte().argsort(stable=True)
    place = order.argsort()
    slot_of = (place[window] * (height * width) + within).flatten()
    return Windows(tokens[order], group[order], slot_of, vertical.whole and horizontal.whole)
