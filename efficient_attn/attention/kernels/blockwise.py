"""Softmax attention of blocks of queries to a span of keys each: windows, sliding or not.

Forward, all blocks of a part are one call of torch's fused attention on strided views; spans may
overlap, and nothing is copied to make them. torch's backward is slow on short blocks, so that the
gradients are taken here from output and log-sum-exp (Dao et al. 2022, "FlashAttention",
algorithm 4), head by head, in two workspaces that stay in the cache:

    P = exp(q kᵀ/√D + mask − lse),  dS = P∘(g vᵀ − Σ g·out),
    dq = dS k/√D,  dk = dSᵀ q/√D,  dv = Pᵀ g,  dbias = Σ dS

The exponential is taken to base 2: that one is fast at −inf, and what underflows is kept at a
normal number, since subnormal ones slow a matrix product down forty times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention.kernels.flash import differentiable_gradients, flash, under_autocast
from efficient_attn.attention.kernels.packing import come_packed, side_by_side
from efficient_attn.attention.kernels.parts import IndexedPart, Part

WORKSPACE = 2 * 2**20
"""Scores in each workspace of the backward pass, but for a block that has more."""

GATHERED = 2 * 2**20
"""Bytes of queries that are gathered for one call of the fused kernel."""

_LOG2_E = math.log2(math.e)
_LOWEST_EXPONENT = -100.0


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
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
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
    # Rows that stand one after the other: products are added to them in place.
    stored = all(isinstance(part, IndexedPart) for parts in plan for part in parts)
    make = q.new_empty if stored else q.new_zeros
    found = [make(q.shape, dtype=work) for _ in range(3)]
    dbias = None if bias is None else bias.new_zeros(bias.shape, dtype=work)
    tensors = (gradient, q, k, v, out, lse, *found)
    for parts, views in _samples(plan, _alike(plan, bias), *tensors):
        _sample_gradients(parts, views, bias, dbias)
    if come_packed(q, k, v):
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
    if B == 1 or (merge and all(x.stride(0) == H * x.stride(1) for x in tensors)):
        yield plan[0], [x.flatten(0, 1) for x in tensors]
        return
    for b in range(B):
        yield plan[b % len(plan)], [x[b] for x in tensors]


def _alike(plan: Plan, bias: Tensor | None) -> bool:
    """Whether all heads of all samples have the same masks."""
    masks = [part.mask for part in plan[0] if part.mask is not None]
    return len(plan) == 1 and bias is None and all(mask.shape[1] == 1 for mask in masks)


def _sample_gradients(
    parts: Sequence[Part], views: Sequence[Tensor], bias: Tensor | None, dbias: Tensor | None
) -> None:
    """Add to dq, dk, dv [H, N, D], the last of the views, and to dbias [H, T, T] what the parts of
    a sample give."""
    g, q, k, v, out, lse, dq, dk, dv = views
    exponents = lse[..., None] * -_LOG2_E
    pairs = zip(g, out, strict=True)
    dots = torch.stack([-(a.to(dq.dtype) * b).sum(-1, keepdim=True) for a, b in pairs])
    pieces = [piece for part in parts for piece in part.split(WORKSPACE // part.block_size or 1)]
    space = dq.new_empty(2, max(piece.blocks * piece.block_size for piece in pieces))
    for part in pieces:
        _part_gradients(part, (g, q, k, v, exponents, dots, dq, dk, dv), bias, dbias, space)


def _part_gradients(
    part: Part,
    tensors: Sequence[Tensor],
    bias: Tensor | None,
    dbias: Tensor | None,
    space: Tensor,
) -> None:
    """Add what a part gives to dq, dk, dv [H, N, D], the last of the tensors, and to dbias."""
    window = slice(part.slot, part.slot + part.rows)
    mask = None if part.mask is None else part.mask * _LOG2_E
    if bias is not None:
        bias = bias[:, window, window].to(space.dtype) * _LOG2_E
    for heads in _head_groups(part, len(tensors[0]), space.shape[1]):
        added = _of_heads(mask, heads), None if bias is None else bias[heads]
        dS = _add_gradients(part, [x[heads] for x in tensors], added, space)
        if dbias is not None:
            dbias[heads, window, window] += dS.unflatten(0, (part.blocks, -1)).sum(0)


def _add_gradients(
    part: Part, tensors: Sequence[Tensor], added: Sequence[Tensor | None], space: Tensor
) -> Tensor:
    """Add to dq, dk, dv [h, N, D], the last of the tensors; return dS [blocks·h, rows, span].

    added: mask [1 or blocks·h, 1 or rows, span] and bias [h, rows, span] of the scores, to base 2.
    """
    g, q, k, v, exponents, dots, dq, dk, dv = tensors
    scale = q.shape[-1] ** -0.5
    queries, gradients = (_widen(part.queries, part, x, dq.dtype) for x in (q, g))
    keys, values = (_widen(part.keys, part, x, dq.dtype) for x in (k, v))
    exponent, dot = (part.queries(x).flatten(0, 1) for x in (exponents, dots))
    shape = (len(queries), part.rows, part.span)
    P, dS = (x[: math.prod(shape)].view(shape) for x in space)
    torch.baddbmm(exponent, queries, keys.mT, alpha=scale * _LOG2_E, out=P)
    P.clamp_min_(_LOWEST_EXPONENT)
    mask, bias = added
    if mask is not None:
        _add_mask(P, mask, part)
    if bias is not None:
        P += bias
    P.exp2_()
    torch.baddbmm(dot, gradients, values.mT, out=dS)
    dS.mul_(P)
    part.add_to_queries(dq, dS, keys, scale)
    part.add_to_keys(dk, dS, queries, scale)
    part.add_to_keys(dv, P, gradients, 1.0)
    return dS


def _head_groups(part: Part, H: int, scores: int) -> Iterator[slice]:
    """One head at a time; a block alone in its part is taken with those of further heads."""
    alone = part.blocks == 1 and type(part) is Part
    step = max(1, scores // part.block_size) if alone else 1
    for first in range(0, H, step):
        yield slice(first, min(first + step, H))


def _widen(view: Callable[[Tensor], Tensor], part: Part, x: Tensor, dtype: torch.dtype) -> Tensor:
    """[blocks·h, rows or span, D] of x [h, N, D] in dtype, h or the number of blocks being 1."""
    if part.blocks > 1:  # spans overlap: x has fewer rows than they
        return view(x.to(dtype)).flatten(0, 1)
    return view(x).flatten(0, 1).to(dtype)


def _of_heads(mask: Tensor | None, heads: slice) -> Tensor | None:
    """[1 or blocks·h, 1 or rows, span] of a mask [1 or blocks, 1 or H, 1 or rows, span]."""
    if mask is None:
        return None
    return (mask[:, heads] if mask.shape[1] > 1 else mask).flatten(0, 1)


def _add_mask(scores: Tensor, mask: Tensor, part: Part) -> None:
    """Add the mask, where it is not zero, to scores [blocks·h, rows, span]."""
    if part.outer and part.span > 2 * part.rows:
        scores[..., : part.rows] += mask[..., : part.rows]
        scores[..., -part.rows :] += mask[..., -part.rows :]
    else:
        scores += mask
