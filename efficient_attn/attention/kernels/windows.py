"""Gradients of softmax attention inside windows: queries see the keys of their own window alone.

Every row belongs to one window, so that its gradients are written once, where they belong: beside
each other, where q, k and v came in one packed projection. Some windows of some heads at a time
are copied together, so that the rest happens in a few products that stay in the cache:

    P = exp(q kᵀ/√D + mask + bias − lse),  dS = P∘(g vᵀ − Σ g·out),
    dq = dS k/√D,  dk = dSᵀ q/√D,  dv = Pᵀ g,  dbias = Σ dS

In half precision the scores are products in fp32, for rounded scores would put errors of per cents
into the weights; all other products are narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from efficient_attn.attention.kernels.parts import Part
from efficient_attn.attention.kernels.workspace import Workspace

TOGETHER = 2**18
"""Scores of the windows that are worked on at once, or numbers in their queries where those are
more."""

LOG2_E = math.log2(math.e)
LEAST_WEIGHT = 2.0**-100


def fill_gradients(
    parts: Sequence[Part], views: Sequence[Tensor], bias: Tensor | None, dbias: Tensor | None
) -> None:
    """Fill dq, dk, dv and add to dbias what a sample gives.

    views: g, q, k, v, out [H, N, D], lse [H, N], and dq, dk, dv [H, N, D]; bias, dbias [H, T, T];
    parts: together they have all rows, each once.
    """
    H, _, D = views[0].shape
    workspace = Workspace(views[5].dtype)
    if bias is not None:
        bias = bias.to(workspace.dtype) * LOG2_E
    for part in parts:
        if part.mask is not None:
            part = replace(part, mask=part.mask * LOG2_E)
        heads, blocks = at_once(part, H, D)
        window = slice(part.slot, part.slot + part.rows)
        for piece in part.split(blocks):
            for first in range(0, H, heads):
                some = slice(first, first + heads)
                added = [] if bias is None else [bias[some, window, window].unsqueeze(1)]
                if piece.mask is not None:
                    mask = piece.mask.transpose(0, 1)
                    added.append(mask[some] if len(mask) > 1 else mask)
                dS = _fill(workspace, piece, [x[some] for x in views], added)
                if dbias is not None:
                    dbias[some, window, window] += dS.sum(1)


def at_once(part: Part, H: int, D: int) -> tuple[int, int]:
    """Heads and windows that are worked on together: all heads before a second window."""
    size = part.rows * max(part.rows, D)
    heads = max(1, min(H, TOGETHER // size))
    return heads, max(1, TOGETHER // (size * heads))


def _fill(
    workspace: Workspace, part: Part, views: Sequence[Tensor], added: Sequence[Tensor]
) -> Tensor:
    """Fill dq, dk, dv [h, N, D], the last of the views; return dS [h, windows, T, T].

    added: to the scores, each broadcastable to those, to base 2.
    """
    g, q, k, v, out, lse, dq, dk, dv = views
    scale = q.shape[-1] ** -0.5
    product = torch.bfloat16 if q.dtype == torch.bfloat16 else workspace.dtype
    square = (len(q), part.blocks, part.rows, part.rows)

    def rows(name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        """[(h windows), T, D] in dtype."""
        space = workspace(f"{name} of {x.dtype}", *square[:3], x.shape[-1], dtype=x.dtype)
        return workspace.cast(f"{name} of {dtype}", part.gather(x, space), dtype).flatten(0, 1)

    def times(name: str, left: Tensor, right: Tensor, factor: float = 1.0) -> Tensor:
        space = workspace(name, len(left), left.shape[1], right.shape[2], dtype=left.dtype)
        return torch.baddbmm(space, left, right, beta=0, alpha=factor, out=space)

    queries, keys = rows("q", q, product), rows("k", k, product)
    exponents = rows("lse", lse[..., None], workspace.dtype).mul_(-LOG2_E)
    P = workspace("P", *square)
    flat_P = P.flatten(0, 1)
    first = exponents.view(*square[:3], 1).expand(square)
    if added:
        torch.add(first, added[0], out=P)
    else:
        P.copy_(first)
    flat_P.baddbmm_(
        workspace.cast("wide q", queries, workspace.dtype),
        workspace.cast("wide k", keys, workspace.dtype).mT,
        alpha=scale * LOG2_E,
    )
    for further in added[1:]:
        P += further
    torch.threshold_(P.exp2_(), LEAST_WEIGHT, 0.0)

    gradients = rows("g", g, product)
    dots = rows("out", out, workspace.dtype).mul_(gradients).sum(-1, keepdim=True)
    dP = times("dP", gradients, rows("v", v, product).mT)
    dS = workspace.cast("dS", dP, workspace.dtype).sub_(dots).mul_(flat_P)
    narrow_P, narrow_dS = (
        workspace.cast(f"narrow {name}", x, product) for name, x in (("P", flat_P), ("dS", dS))
    )
    for into, left, right, factor in (
        (dq, narrow_dS, keys, scale),
        (dk, narrow_dS.mT, queries, scale),
        (dv, narrow_P.mT, gradients, 1.0),
    ):
        found = times("found", left, right, factor)
        part.store(into, found.view(*square[:3], -1).transpose(0, 1))
    return dS.view(square)
