"""Sequences cut into blocks of one size, padded where they do not fill them.

Heads are merged with the batch, [(B H), N, D]. What is done differently in a traced program
(torch.compile, torch.export) is there to let one program serve every length: sizes that a trace
would have to prove things about are avoided.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def block_count(length: int, size: int) -> int:
    """Blocks of `size` that hold `length`; two more in a trace, which treats 0 and 1 apart."""
    count = (length + size - 1) // size
    return count + 2 if torch.compiler.is_compiling() else count


def merge_heads(x: Tensor, front: int, back: int, value: float = 0.0) -> Tensor:
    """x [B, H, N, D] -> [(B H), front + N + back, D], padded with `value`."""
    if torch.compiler.is_compiling():  # padding after the merge leaves no strides to compare
        return F.pad(x.flatten(0, 1), (0, 0, front, back), value=value)
    padded = F.pad(x, (0, 0, front, back), value=value) if front or back else x
    return padded.flatten(0, 1)


def cut(x: Tensor, size: int) -> Tensor:
    """x [A, C·size, D] -> view [A, C, size, D]."""
    return x.unfold(1, size, size).transpose(-1, -2)


def join(blocks: Tensor, B: int, front: int, N: int) -> Tensor:
    """blocks [(B H), C, size, D] -> [B, H, N, D], without the padding."""
    size = blocks.shape[2]
    if torch.compiler.is_compiling():  # a slice would have to be proved within bounds
        row = torch.arange(N, device=blocks.device) + front
        return blocks[:, row // size, row % size].unflatten(0, (B, -1))
    return blocks.flatten(1, 2)[:, front : front + N].unflatten(0, (B, -1))
