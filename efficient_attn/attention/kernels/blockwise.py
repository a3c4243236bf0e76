"""Softmax attention of blocks of queries to a span of keys each: windows, sliding or not.

Forward, all blocks of a part are one call of torch's fused attention on strided views; spans may
overlap, and nothing is copied to make them. torch's backward is slow on short blocks, so that the
gradients are taken here from output and log-sum-exp (Dao et al. 2022, "FlashAttention",
algorithm 4), head by head, in two workspaces that stay in the cache:

    P = exp(q kᵀ/√D + mask − lse),  dS = P∘(g vᵀ − Σ g·out),
    dq = dS k/√D,  dk = dSᵀ q/√D,  dv = Pᵀ g

Windows that do not overlap have gradients of their own (`windows`).

The exponential is taken to base 2: that one is fast at −inf, where the natural one is not. Weights
below 2⁻¹⁰⁰ become 0: subnormal numbers slow a matrix product down forty times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention.kernels.flash import (
    differentiable_gradients,
    flash,
    under_autocast,
    wants_gradient,
)
from efficient_attn.attention.kernels.packing import come_packed, side_by_side
from efficient_attn.attention.kernels.parts import GATHERED, Part
from efficient_attn.attention.kernels.windows import LEAST_WEIGHT, LOG2_E, fill_gradients

WORKSPACE = 2 * 2**20
"""Scores in each workspace of the backward pass, but for a block that has more."""

Plan = Sequence[Sequence[Part]]
"""The parts of every sample, which together hold all its queries, or one list for all samples."""


def blockwise_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    formula: Callable[..., Tensor],
    bias: Tensor | None = None,
    backward: Plan | None = None,
) -> Tensor:
    """q, k, v [B, H, N, D] of one width -> [B, H, N, D].

    plan: one list of parts for each sample, or one list for all; backward: another one for the
    gradients. bias: [H, T, T], learned, added to the scores of every window of T. formula: the
    same attention of (q, k, v, bias), differentiable by torch, for second derivatives.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in under_autocast(q, k, v))
    with torch.autocast(q.device.type, enabled=False):
        tensors = (q, k, v) if bias is None else (q, k, v, bias)
        if not wants_gradient(*tensors):
            return _forward(q, k, v, bias, plan)[0]
        out: Tensor = _Blockwise.apply(q, k, v, bias, plan, formula, backward or plan)
        return out


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        plan: Plan,
        formula: Callable[..., Tensor],
        backward: Plan,
    ) -> Tensor:
        out, lse = _forward(q, k, v, bias, plan)
        ctx.save_for_backward(q, k, v, bias, out, lse)
        ctx.plan, ctx.formula = backward, formula
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled():
            tensors = (q, k, v) if bias is None else (q, k, v, bias)
            found = differentiable_gradients(ctx.formula, tensors, gradient)
            return (*found, *[None] * (7 - len(found)))
        with torch.autocast(q.device.type, enabled=False):
            gradients = _backward(gradient, q, k, v, bias, out, lse, ctx.plan)
        return (*gradients, None, None, None)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, plan: Plan
) -> tuple[Tensor, Tensor]:
    """The output [B, H, N, D] and log-sum-exp [B, H, N]."""
    B, H, N, D = q.shape
    work = torch.promote_types(q.dtype, torch.float32)
    outs, logs = [], []
    for parts, (x, y, z) in _samples(plan, _alike(plan, bias), q, k, v):
        only = parts[0] if len(parts) == 1 else None
        if type(only) is Part and only.blocks * only.rows == N:
            out, lse = _fused(only, x, y, z, bias)
            outs.append(out.transpose(1, 2).reshape(N, -1, D))
            logs.append(lse.transpose(0, 1).reshape(-1, N))
            continue
        rows = q.new_empty(N, len(x), D)
        log = q.new_empty(len(x), N, dtype=work)
        for part in parts:
            for piece in part.split(_blocks_at_once(part, x)):
                _store_fused(piece, x, y, z, bias, rows.transpose(0, 1), log[..., None])
        outs.append(rows)
        logs.append(log)
    out = outs[0][None] if len(outs) == 1 else torch.stack(outs)
    lse = logs[0] if len(logs) == 1 else torch.stack(logs)
    return out.unflatten(2, (-1, H)).permute(0, 2, 3, 1, 4).flatten(0, 1), lse.view(B, H, N)


def _blocks_at_once(part: Part, x: Tensor) -> int:
    """Views cost nothing, and all blocks go at once; of gathered rows a cacheful."""
    if type(part) is Part:
        return part.blocks
    return max(1, GATHERED // (part.rows * x.shape[0] * x.shape[2] * x.element_size()))


def _store_fused(
    part: Part, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, rows: Tensor, log: Tensor
) -> None:
    """Put what the part gives into rows [H, N, D] and log [H, N, 1]."""
    out, lse = _fused(part, q, k, v, bias)
    part.store(rows, out)
    part.store(log, lse[..., None])


def _fused(
    part: Part, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output [blocks, H, rows, D] and log-sum-exp [blocks, H, rows] of a sample's [H, N, D]."""
    added = part.added(bias, torch.promote_types(q.dtype, torch.float32))
    return flash(part.queries(q), part.keys(k), part.keys(v), added)


def _backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    plan: Plan,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    work = torch.promote_types(q.dtype, torch.float32)
    if gradient.stride(-1) != 1:
        gradient = gradient.contiguous()
    dbias = None if bias is None else bias.new_zeros(bias.shape, dtype=work)
    windows = all(part.own for parts in plan for part in parts)
    packed = come_packed(q, k, v)
    if windows:  # every row is written once
        found = side_by_side(q, q.dtype) if packed else [torch.empty_like(x) for x in (q, k, v)]
    else:
        found = [q.new_zeros(q.shape, dtype=work) for _ in range(3)]
    for parts, views in _samples(plan, _alike(plan, bias), gradient, q, k, v, out, lse, *found):
        if windows:
            fill_gradients(parts, views, bias, dbias)
        else:
            _add_sample_gradients(parts, views)
    if packed and not windows:
        pairs = zip(side_by_side(q, q.dtype), found, strict=True)
        found = [into.copy_(x) for into, x in pairs]
    dq, dk, dv = (x.to(q.dtype) for x in found)
    if dbias is not None and bias is not None:
        dbias = dbias.to(bias.dtype)
    return dq, dk, dv, dbias


def _samples(
    plan: Plan, merge: bool, *tensors: Tensor
) -> Iterator[tuple[Sequence[Part], list[Tensor]]]:
    """Each sample's parts, and its [H, N, ...] of the tensors [B, H, N, ...].

    merge: with the same parts for all, take samples as further heads, where the strides let them.
    """
    B, H = tensors[0].shape[:2]
    one = H == 1 or all(x.stride(0) == H * x.stride(1) for x in tensors)
    if B == 1 or (merge and one):
        yield plan[0], [x.flatten(0, 1) for x in tensors]
        return
    for b in range(B):
        yield plan[b % len(plan)], [x[b] for x in tensors]


def _alike(plan: Plan, bias: Tensor | None) -> bool:
    """Whether all heads of all samples have the same masks."""
    masks = [part.mask for part in plan[0] if part.mask is not None]
    return len(plan) == 1 and bias is None and all(mask.shape[1] == 1 for mask in masks)


def _add_sample_gradients(parts: Sequence[Part], views: Sequence[Tensor]) -> None:
    """Add to dq, dk, dv [H, N, D], the last of the views, what the parts of a sample give."""
    g, q, k, v, out, lse, dq, dk, dv = views
    exponents = lse[..., None] * -LOG2_E
    pairs = zip(g, out, strict=True)
    dots = torch.stack([-(a.to(dq.dtype) * b).sum(-1, keepdim=True) for a, b in pairs])
    pieces = [piece for part in parts for piece in part.split(WORKSPACE // part.block_size or 1)]
    together = [min(len(q), piece.heads_at_once(WORKSPACE)) for piece in pieces]
    batches = zip(pieces, together, strict=True)
    space = dq.new_empty(2, max(part.blocks * part.block_size * heads for part, heads in batches))
    tensors = (g, q, k, v, exponents, dots, dq, dk, dv)
    for part, step in zip(pieces, together, strict=True):
        _add_part_gradients(part, step, tensors, space)


def _add_part_gradients(
    part: Part, together: int, tensors: Sequence[Tensor], space: Tensor
) -> None:
    """Add to dq, dk, dv [H, N, D], the last of the tensors, some heads together at a time."""
    mask = None if part.mask is None else (part.mask * LOG2_E).transpose(0, 1)
    for first in range(0, len(tensors[1]), together):
        heads = slice(first, first + together)
        added = mask if mask is None or len(mask) == 1 else mask[heads]
        _add_gradients(part, [x[heads] for x in tensors], added, space)


def _add_gradients(
    part: Part, tensors: Sequence[Tensor], mask: Tensor | None, space: Tensor
) -> None:
    """Add to dq, dk, dv [h, N, D], the last of the tensors.

    mask: [1 or h, 1 or blocks, 1 or rows, span], to base 2.
    """
    g, q, k, v, exponents, dots, dq, dk, dv = tensors
    scale = q.shape[-1] ** -0.5
    queries, gradients = (part.query_batch(x, dq.dtype) for x in (q, g))
    keys, values = (part.key_batch(x, dq.dtype) for x in (k, v))
    exponent, dot = (part.query_batch(x, dq.dtype) for x in (exponents, dots))
    shape = (len(q), part.blocks, part.rows, part.span)
    P, dS = (x[: math.prod(shape)].view(shape) for x in space)
    flat_P, flat_dS = P.flatten(0, 1), dS.flatten(0, 1)
    torch.baddbmm(exponent, queries, keys.mT, alpha=scale * LOG2_E, out=flat_P)
    if mask is not None:
        _add_mask(P, mask, part)
    torch.threshold_(P.exp2_(), LEAST_WEIGHT, 0.0)
    torch.baddbmm(dot, gradients, values.mT, out=flat_dS)
    dS.mul_(P)
    part.add_to_queries(dq, flat_dS, keys, scale)
    part.add_to_keys(dk, flat_dS, queries, scale)
    part.add_to_keys(dv, flat_P, gradients, 1.0)


def _add_mask(scores: Tensor, mask: Tensor, part: Part) -> None:
    """Add the mask, where it is not zero, to scores [h, blocks, rows, span]."""
    if part.outer and part.span > 2 * part.rows:
        scores[..., : part.rows] += mask[..., : part.rows]
        scores[..., -part.rows :] += mask[..., -part.rows :]
    else:
        scores += mask
