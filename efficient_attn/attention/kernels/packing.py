"""Projections of query, key and value that one product makes, and their gradients in one piece.

torch joins the gradients of a split tensor by copying them. A kernel that has them side by side
already, as `side_by_side` lays them out, saves that copy, the size of three inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention.kernels.flash import hand_written


def split_packed(packed: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
    """packed [B, N, sum of widths] cut along its last dimension."""
    if torch.is_grad_enabled() and packed.requires_grad and hand_written(packed):
        pieces: tuple[Tensor, ...] = _Split.apply(packed, list(widths))
        return pieces
    return packed.split(list(widths), -1)


def come_packed(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether [B, H, N, D] tensors of one shape are views of one projection [B, N, 3·H·D]."""
    H, N, D = q.shape[1:]
    strides = (N * 3 * H * D, D, 3 * H * D, 1)
    start = q.data_ptr()
    step = H * D * q.element_size()
    return (
        q.shape == k.shape == v.shape
        and q.stride() == k.stride() == v.stride() == strides
        and (k.data_ptr(), v.data_ptr()) == (start + step, start + 2 * step)
    )


def side_by_side(like: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Three uninitialised tensors [B, H, N, D] that are views of one [B, N, 3·H·D]."""
    B, H, N, D = like.shape
    packed = like.new_empty(B, N, 3, H, D, dtype=dtype)
    first, second, third = (x.transpose(1, 2) for x in packed.unbind(2))
    return first, second, third


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, widths: list[int]) -> tuple[Tensor, ...]:
        ctx.widths = widths
        ctx.set_materialize_grads(False)
        ctx.shape = packed.shape
        return packed.split(widths, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        some = next((x for x in gradients if x is not None), None)
        if some is None:
            return None, None
        joined = None if torch.is_grad_enabled() else _joined(gradients)
        if joined is None:
            joined = torch.cat(
                [
                    some.new_zeros(*ctx.shape[:-1], width) if x is None else x
                    for x, width in zip(gradients, ctx.widths, strict=True)
                ],
                -1,
            )
        return joined, None


def _joined(pieces: Sequence[Tensor | None]) -> Tensor | None:
    """The tensor whose neighbouring columns the pieces are, None where they are not."""
    first = pieces[0]
    if first is None or first.stride(-1) != 1:
        return None
    width = 0
    for x in pieces:
        if x is None or x.dtype != first.dtype or x.stride() != first.stride():
            return None
        if x.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return None
        if x.storage_offset() != first.storage_offset() + width:
            return None
        width += x.shape[-1]
    if first.stride(-2) != width:
        return None
    return first.as_strided((*first.shape[:-1], width), first.stride())
