"""The memory that a decoder attends to, projected once for all steps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from efficient_attn.attention.masks import AttentionMask


@dataclass(frozen=True)
class ProjectedMemory:
    """Keys k [B, H, M, D] and values v [B, H, M, V] of a memory, and which of them exist."""

    k: Tensor
    v: Tensor
    mask: AttentionMask

    @property
    def nbytes(self) -> int:
        tensors = (self.k, self.v, self.mask.key_padding, self.mask.pairwise)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def select(self, index: Tensor) -> ProjectedMemory:
        """The memory of the samples index [B']."""
        k, v = self.k.index_select(0, index), self.v.index_select(0, index)
        return ProjectedMemory(k, v, self.mask.select(index))
