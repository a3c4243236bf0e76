"""Memory that the pieces of a call write their temporaries into, one after another.

Fresh memory costs more than the arithmetic on it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Temporaries by name, made once and used again at other shapes."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._memory: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised tensor; it overwrites the one that had this name before."""
        size = math.prod(shape)
        memory = self._memory.get(name)
        if memory is None or memory.numel() < size:
            memory = self._memory[name] = torch.empty(size, dtype=dtype or self.dtype, device="cpu")
        return memory[:size].view(shape)

    def cast(self, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x itself where it has the type, else a copy in it."""
        return x if x.dtype == dtype else self(name, *x.shape, dtype=dtype).copy_(x)
