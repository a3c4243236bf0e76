"""Rows of a sequence mixed along its length by small matrices, for Linformer.

Head by head, these are products too small for the hardware in bf16, and each head makes a gradient
of the matrix of its own, in all H times its size, before they are summed. Here the heads stand side
by side and a sample is one product, forward and for either gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from efficient_attn.attention.kernels.flash import (
    differentiable_gradients,
    hand_written,
    under_autocast,
    wants_gradient,
)


def mix(
    matrices: Sequence[Tensor], x: Tensor, exists: Tensor | None = None, *, ones: bool = False
) -> Tensor:
    """matrices S × [1, K, at least M], x [B, M, W] or [B, M, H, D] with W = H·D -> [B, S, K, W].

    Rows where exists [B, M] is False count as zeros, whatever they hold. ones: a row is (x, 1), so
    that a last column tells what a matrix makes of a constant.
    """
    if not hand_written(x, *matrices):
        return mix_formula(matrices, x, exists, ones=ones)
    x, *matrices = under_autocast(x, *matrices)
    matrices = [matrix.to(x.dtype) for matrix in matrices]
    if wants_gradient(x, *matrices):
        mixed: Tensor = _Mix.apply(x, exists, ones, *matrices)
        return mixed
    return _mix(matrices, x, exists, ones)


def mix_formula(
    matrices: Sequence[Tensor], x: Tensor, exists: Tensor | None = None, *, ones: bool = False
) -> Tensor:
    """The same, differentiable by torch."""
    x = x.flatten(2)
    if ones:
        x = F.pad(x, (0, 1), value=1.0)
    if exists is not None:
        x = x.masked_fill(~exists[:, :, None], 0.0)
    first = [columns(matrix[0], x.shape[1]).to(x.dtype) for matrix in matrices]
    return torch.stack([matrix @ x for matrix in first], 1)


def columns(matrix: Tensor, M: int) -> Tensor:
    """The first M columns."""
    if torch.compiler.is_compiling():  # a slice would set M = max_len apart in a traced program
        return matrix.index_select(-1, torch.arange(M, device=matrix.device))
    return matrix[..., :M]


class _Mix(torch.autograd.Function):
    """`_mix` with gradients that are written where they belong, each once."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, exists: Tensor | None, ones: bool, *matrices: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, exists, *matrices)
        ctx.ones = ones
        return _mix(matrices, x, exists, ones)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, exists, *matrices = ctx.saved_tensors
        if torch.is_grad_enabled():

            def formula(x: Tensor, *matrices: Tensor) -> Tensor:
                return mix_formula(matrices, x, exists, ones=ctx.ones)

            with torch.autocast("cpu", enabled=False):
                found = differentiable_gradients(formula, [x, *matrices], gradient)
            return found[0], None, None, *found[1:]
        for_x, _, _, *for_matrices = ctx.needs_input_grad
        of_x = _gradient_of_x(gradient, x, exists, matrices) if for_x else None
        of_matrices = [
            _gradient_of_matrix(gradient[:, s], x, exists, matrix) if for_matrices[s] else None
            for s, matrix in enumerate(matrices)
        ]
        return of_x, None, None, *of_matrices


def _mix(matrices: Sequence[Tensor], x: Tensor, exists: Tensor | None, ones: bool) -> Tensor:
    B, M = x.shape[:2]
    W = x.shape[2:].numel()
    mixed = x.new_empty(B, len(matrices), matrices[0].shape[1], W + ones)
    for b, rows in enumerate(_samples(x, exists)):
        for s, matrix in enumerate(matrices):
            first = matrix[0, :, :M]
            torch.mm(first, rows, out=mixed[b, s, :, :W])
            if ones:
                mixed[b, s, :, W] = (
                    first.sum(-1) if exists is None else first.mv(_weight(exists, b, x))
                )
    return mixed


def _gradient_of_x(
    gradient: Tensor, x: Tensor, exists: Tensor | None, matrices: Sequence[Tensor]
) -> Tensor:
    B, M = x.shape[:2]
    W = x.shape[2:].numel()
    found = x.new_empty(x.shape)
    for b, rows in enumerate(found.view(B, M, W)):
        for s, matrix in enumerate(matrices):
            of_mixed = gradient[b, s, :, :W]
            torch.addmm(rows, matrix[0, :, :M].T, of_mixed, beta=int(s > 0), out=rows)
    if exists is not None:
        found.view(B, M, W).masked_fill_(~exists[:, :, None], 0.0)
    return found


def _gradient_of_matrix(
    gradient: Tensor, x: Tensor, exists: Tensor | None, matrix: Tensor
) -> Tensor:
    """gradient [B, K, W or W + 1]; samples are summed in fp32 at least."""
    B, M = x.shape[:2]
    W = x.shape[2:].numel()
    dtype = x.dtype if B == 1 else torch.promote_types(x.dtype, torch.float32)
    total = torch.empty_like(matrix, dtype=dtype)
    total[..., M:] = 0.0
    first = total[0, :, :M]
    for b, rows in enumerate(_samples(x, exists)):
        of_mixed, of_ones = gradient[b, :, :W], gradient[b, :, W:]
        if dtype == x.dtype:
            torch.addmm(first, of_mixed, rows.T, beta=int(b > 0), out=first)
        elif b == 0:
            first.copy_(of_mixed @ rows.T)
        else:
            first += of_mixed @ rows.T
        if of_ones.numel():
            first += of_ones if exists is None else of_ones * _weight(exists, b, x)
    return total.to(x.dtype)


def _samples(x: Tensor, exists: Tensor | None) -> Iterator[Tensor]:
    """x [B, M, W] or [B, M, H, D] as one [M, W] after another, zeros where exists is False: views,
    or copies into one and the same memory."""
    B, M = x.shape[:2]
    if exists is None and (x.dim() == 3 or beside_each_other(x)):
        yield from x.flatten(2)
        return
    scratch = x.new_empty(x.shape[1:])
    zero = x.new_zeros(())
    for b in range(B):
        if exists is None:
            scratch.copy_(x[b])
        else:
            torch.where(exists[b].view(M, *[1] * (x.dim() - 2)), x[b], zero, out=scratch)
        yield scratch.flatten(1)


def beside_each_other(x: Tensor) -> bool:
    """Whether the heads of x [B, M, H, D] are one row without a copy."""
    return x.shape[2] == 1 or x.stride()[2:] == (x.shape[3], 1)


def _weight(exists: Tensor, b: int, like: Tensor) -> Tensor:
    """1 for the rows of sample b that exist, 0 for the others."""
    return exists[b].to(like.dtype)
