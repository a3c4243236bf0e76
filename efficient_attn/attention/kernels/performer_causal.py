"""Performer's causal form: all chunks of a piece at once, with their sums by one small product.

A piece holds c chunks of C tokens. The sums before every chunk are a triangular matrix of scales
[c + 1, c + 1] times the sums of the chunks, the sums carried into the piece first among them; its
last row carries on. Exclusive sums come out as they are: inclusive ones less the chunk's own would
lose them in half precision. Each key is relative to its own largest feature, each query to the
largest key so far, so that later tokens touch no earlier output.

Backward goes through the pieces from the last to the first and computes features and sums again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention.kernels.flash import differentiable_gradients, wants_gradient
from efficient_attn.attention.kernels.performer_pieces import (
    Call,
    aligned,
    decay_,
    exp_,
    floor,
    gradient_of_keys,
    half_squares,
    head_groups,
    spans,
    times,
)
from efficient_attn.attention.kernels.workspace import Workspace

CHUNK = 128

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]


def causal(
    q: Tensor, k: Tensor, v: Tensor, features: Tensor, exists: Tensor | None, formula: Formula
) -> tuple[Tensor, Tensor]:
    """q, k [B, H, N, D], v [B, H, N, V], features [R, D], exists [B, N] or None -> [B, H, N, V]
    and the normalisers [B, H, N], relative to the largest features: where one is tiny, though
    there are keys, the output is not to be trusted. formula: the output as a function of q, k and
    v, for gradients of gradients."""
    if wants_gradient(q, k, v):
        found: tuple[Tensor, Tensor] = _Causal.apply(q, k, v, features, exists, formula)
        return found
    return _forward(q, k, v, features, exists)[:2]


def causal_products(N: int, M: int, D: int, R: int, *, backward: bool) -> int:
    """Multiply-adds in one head of N >= M queries and width D = V; backward: and of gradients."""
    W = D + 1
    total = 0
    for span in spans(min(N, M), _width(D, R)):
        c, C = chunking(span.stop - span.start)
        n = c * C
        features, meeting, scores, inside = n * D * R, n * R * W, n * C * R, n * C * W
        between = (c + 1) ** 2 * R * W
        total += 2 * features + 2 * meeting + between + scores + inside
        if backward:
            total += 4 * features + 5 * meeting + 2 * between + 3 * scores + 2 * inside
    return total


def _width(D: int, R: int) -> int:
    return max(R, 4 * D)


def chunking(n: int) -> tuple[int, int]:
    """Number of chunks for n tokens and their size: equal ones, to pad little."""
    c = -(-n // CHUNK)
    return c, aligned(-(-n // c))


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        features: Tensor,
        exists: Tensor | None,
        formula: Formula,
    ) -> tuple[Tensor, Tensor]:
        out, normalisers, carried = _forward(q, k, v, features, exists, keep=True)
        ctx.save_for_backward(q, k, v, features, exists, out, normalisers, *carried)
        ctx.formula = formula
        ctx.mark_non_differentiable(normalisers)
        return out, normalisers

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Any:
        q, k, v, features, exists, out, normalisers, *carried = ctx.saved_tensors
        if torch.is_grad_enabled():
            wanted = differentiable_gradients(ctx.formula, (q, k, v), gradient)
            return *wanted, None, None, None
        found = _backward(gradient, q, k, v, features, exists, out, normalisers, carried)
        return *found, None, None, None


class _Call(Call):
    """And its sums and products."""

    def carry(self, G: int, V: int) -> tuple[Tensor, Tensor]:
        """Sums over no keys [G, R, V + 1] and their log scale [G, 1]."""
        sums = torch.zeros(G, len(self.features), V + 1, dtype=self.dtype, device="cpu")
        return sums, torch.full((G, 1), floor(self.dtype), dtype=self.dtype, device="cpu")

    def widen(self, x: Tensor) -> Tensor:
        return self.workspace.cast("wide", x, self.dtype)

    def product_of(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """x [A, n, m] @ y [A, m, l] in the type of products."""
        out = self.workspace(name, len(x), x.shape[1], y.shape[2], dtype=self.product)
        return torch.bmm(x, y, out=out)


@dataclass(frozen=True)
class _Piece:
    """What forward and backward of a piece need. A stands for (G c), the chunks of all heads.

    q, k [G, n, D] with zeros after the end; phi_q, phi_k [A, C, R], narrow; values [A, C, V + 1],
    narrow, ending in a 1, zero where there is no key; weights [A, C, 1]: of the keys in the sums of
    their chunk; ratio [A, C, C]: of keys to queries, zero above the diagonal; reach [A, C, 1]: of
    the sums before the chunk to queries; scales [G, c + 1, c + 1]: of sums to later ones.
    """

    q: Tensor
    k: Tensor
    phi_q: Tensor
    phi_k: Tensor
    values: Tensor
    weights: Tensor
    ratio: Tensor
    reach: Tensor
    scales: Tensor
    last_scale: Tensor


def _piece(
    call: _Call, q: Tensor, k: Tensor, v: Tensor, exists: Tensor | None, log_scale: Tensor
) -> _Piece:
    """q, k [b, h, n, D], v [b, h, n, V], exists [b, n]; log_scale [G, 1] of the carried sums."""
    ws = call.workspace
    b, h, n, V = v.shape
    G, R = b * h, len(call.features)
    c, C = chunking(n)
    q_rows, k_rows = (_padded(ws, name, x, c * C) for name, x in (("q", q), ("k", k)))

    log_q = times(q_rows, call.features.T, "phi_q", ws)
    phi_q = exp_(log_q.sub_(log_q.amax(-1, keepdim=True)))
    log_k = times(k_rows, call.features.T, "phi_k", ws)
    largest = log_k.amax(-1, keepdim=True)
    phi_k = exp_(log_k.sub_(largest))

    values = ws("values", G, c * C, V + 1, dtype=call.product)
    values[:, :n, :V].view(b, h, n, V).copy_(v)
    values[:, :n, V:].fill_(1.0)
    values[:, n:].zero_()
    top = largest.sub_(half_squares(k_rows, ws)).squeeze(-1)  # [G, c·C]
    top[:, n:] = log_scale.new_tensor(floor(call.dtype))
    if exists is not None:
        gone = ~exists[:, None, :]
        top[:, :n].view(b, h, n).masked_fill_(gone, floor(call.dtype))
        values[:, :n].view(b, h, n, V + 1).masked_fill_(gone[..., None], 0.0)

    scale = torch.maximum(top.cummax(-1).values, log_scale)
    before = torch.cat([log_scale, scale[:, C - 1 :: C]], -1)  # [G, c + 1]
    highest = top.view(G, c, C).amax(-1)
    source = torch.cat([log_scale, highest], -1)
    scales = decay_(source[:, None, :] - before[:, :, None]).tril_()
    top, scale = top.view(-1, C, 1), scale.view(-1, C, 1)
    ratio = ws("ratio", G * c, C, C)
    torch.sub(top.transpose(-1, -2), scale, out=ratio)
    decay_(ratio).tril_()
    return _Piece(
        q=q_rows,
        k=k_rows,
        phi_q=call.narrow("narrow phi_q", phi_q).view(-1, C, R),
        phi_k=call.narrow("narrow phi_k", phi_k).view(-1, C, R),
        values=values.view(-1, C, V + 1),
        weights=call.narrow("weights", decay_(top - highest.view(-1, 1, 1))),
        ratio=call.narrow("narrow ratio", ratio),
        reach=call.narrow("reach", decay_(before[:, :-1].reshape(-1, 1, 1) - scale)),
        scales=scales,
        last_scale=before[:, -1:],
    )


def _padded(ws: Workspace, name: str, x: Tensor, length: int) -> Tensor:
    """x [b, h, n, D] -> [(b h), length, D] in fp32 at least; no copy where none is needed."""
    b, h, n, D = x.shape
    if n == length and x.dtype == ws.dtype:
        return x.flatten(0, 1)
    rows = ws(name, b * h, length, D)
    rows[:, :n].view(b, h, n, D).copy_(x)
    rows[:, n:].zero_()
    return rows


def _sums(call: _Call, piece: _Piece, carried: Tensor) -> tuple[Tensor, Tensor]:
    """Sums before each chunk [A, R, V + 1], narrow, and after the last [G, R, V + 1]; carried
    [G, R, V + 1]: before the first."""
    G, R, W = carried.shape
    own = call.workspace("own", G, piece.scales.shape[-1], R, W)
    own[:, 0].copy_(carried)
    found = call.product_of("products", piece.phi_k.transpose(-1, -2), _weighted(call, piece))
    own[:, 1:].copy_(found.view(G, -1, R, W))
    before = _rescaled(call, piece.scales[:, :-1], own, "before")
    return before, torch.bmm(piece.scales[:, -1:], own.flatten(2)).view(G, R, W)


def _rescaled(call: _Call, scales: Tensor, sums: Tensor, name: str) -> Tensor:
    """scales [G, c, c + 1] @ sums [G, c + 1, R, V + 1] -> [A, R, V + 1], narrow."""
    wide = call.workspace(f"wide {name}", *scales.shape[:2], *sums.shape[2:])
    torch.bmm(scales, sums.flatten(2), out=wide.flatten(2))
    return call.narrow(name, wide.flatten(0, 1))


def _weighted(call: _Call, piece: _Piece) -> Tensor:
    """Values as they stand in the sums of their chunk [A, C, V + 1]."""
    out = call.workspace("weighted", *piece.values.shape, dtype=call.product)
    return torch.mul(piece.values, piece.weights, out=out)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    features: Tensor,
    exists: Tensor | None,
    *,
    keep: bool = False,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Output, normalisers and, to keep, what each piece but the first of its heads was handed."""
    B, H, N, _ = q.shape
    V = v.shape[-1]
    with torch.autocast("cpu", enabled=False):
        call = _Call(q, k, v, features)
        out = torch.empty(B, H, N, V, dtype=v.dtype, device="cpu")
        normalisers = torch.empty(B, H, N, dtype=call.dtype, device="cpu")
        kept: list[Tensor] = []
        for b, h in head_groups(B, H, N, call.width):
            sums, log_scale = call.carry(q[b, h].shape[0] * q[b, h].shape[1], V)
            for span in spans(N, call.width):
                if keep and span.start:
                    kept += [sums, log_scale]
                here = None if exists is None else exists[b, span]
                piece = _piece(call, q[b, h, span], k[b, h, span], v[b, h, span], here, log_scale)
                before, sums = _sums(call, piece, sums)
                _answer(call, piece, before, out[b, h, span], normalisers[b, h, span])
                log_scale = piece.last_scale
    return out, normalisers, kept


def _answer(call: _Call, piece: _Piece, before: Tensor, out: Tensor, normalisers: Tensor) -> None:
    """Fills out [b, h, n, V] and normalisers [b, h, n]."""
    b, h, n, V = out.shape
    total = call.workspace("total", *piece.values.shape)
    total.copy_(call.product_of("outside", piece.phi_q, before).mul_(piece.reach))
    total.add_(call.widen(call.product_of("inside", _scores(call, piece), piece.values)))
    total = total.view(b, h, -1, V + 1)[:, :, :n]
    normalisers.copy_(total[..., V])
    divisor = normalisers.masked_fill(normalisers == 0, 1.0)
    out.copy_(total[..., :V].div_(divisor[..., None]))


def _scores(call: _Call, piece: _Piece) -> Tensor:
    """Weights of keys for queries within chunks [A, C, C], before the division."""
    return call.product_of("scores", piece.phi_q, piece.phi_k.transpose(-1, -2)).mul_(piece.ratio)


def _backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    features: Tensor,
    exists: Tensor | None,
    out: Tensor,
    normalisers: Tensor,
    carried: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    B, H, N, _ = q.shape
    with torch.autocast("cpu", enabled=False):
        call = _Call(q, k, v, features)
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device="cpu") for x in (q, k, v))
        kept = iter(carried)
        for b, h in head_groups(B, H, N, call.width):
            first = call.carry(q[b, h].shape[0] * q[b, h].shape[1], v.shape[-1])
            parts = spans(N, call.width)
            handed = [first, *((next(kept), next(kept)) for _ in parts[1:])]
            d_sums = torch.zeros_like(first[0])
            for span, (sums, log_scale) in zip(reversed(parts), reversed(handed), strict=True):
                at = (b, h, span)
                here = None if exists is None else exists[b, span]
                piece = _piece(call, q[at], k[at], v[at], here, log_scale)
                G = _gradient_of_sums(call, piece, gradient[at], out[at], normalisers[at])
                before, _ = _sums(call, piece, sums)
                d_sums = _back(call, piece, before, G, d_sums, (dq[at], dk[at], dv[at]))
                if here is not None:
                    dv[at].masked_fill_(~here[:, None, :, None], 0.0)
    return dq, dk, dv


def _gradient_of_sums(
    call: _Call, piece: _Piece, gradient: Tensor, out: Tensor, normalisers: Tensor
) -> Tensor:
    """That of the weighted sums and normalisers [A, C, V + 1], narrow."""
    b, h, n, V = out.shape
    A, C, _ = piece.values.shape
    inverse = normalisers.reciprocal().masked_fill_(normalisers == 0, 0.0)
    G = call.workspace("G", b * h, A * C // (b * h), V + 1)
    inside = G[:, :n].view(b, h, n, V + 1)
    inside[..., :V].copy_(gradient).mul_(inverse[..., None])
    product = call.workspace("total", b, h, n, V).copy_(out).mul_(inside[..., :V])
    torch.sum(product, -1, out=inside[..., V]).neg_()
    G[:, n:].zero_()
    return call.narrow("narrow G", G).view(A, C, V + 1)


def _back(
    call: _Call,
    piece: _Piece,
    before: Tensor,
    G: Tensor,
    d_carry: Tensor,
    filled: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Fills the gradients of q, k, v of the piece; d_carry [G, R, V + 1]: that of the sums it
    hands on -> that of the sums it was handed."""
    ws = call.workspace
    heads, R, W = d_carry.shape
    A, C, _ = piece.phi_q.shape
    constant = call.features.to(call.product)

    reaching = torch.mul(G, piece.reach, out=ws("reaching", *G.shape, dtype=call.product))
    d_sums = ws("own", heads, piece.scales.shape[-1], R, W)
    d_sums[:, -1].copy_(d_carry)
    found = call.product_of("products", piece.phi_q.transpose(-1, -2), reaching)
    d_sums[:, :-1].copy_(found.view(heads, -1, R, W))

    dP = call.product_of("scores", G, piece.values.transpose(-1, -2)).mul_(piece.ratio)
    dphi = call.product_of("dphi", dP, piece.phi_k)
    dphi = _add_product(dphi, reaching, before.transpose(-1, -2))
    found = times(dphi.mul_(piece.phi_q), constant, "dk", ws)
    _fill(filled[0], found, heads)

    onward = piece.scales.transpose(-1, -2)
    own = _rescaled(call, onward[:, 1:], d_sums, "before")  # those sums are not needed any more
    dphi = call.product_of("dphi", dP.transpose(-1, -2), piece.phi_q)
    dphi = _add_product(dphi, _weighted(call, piece), own.transpose(-1, -2))
    dlog = dphi.mul_(piece.phi_k).view(heads, -1, R)
    _fill(filled[1], gradient_of_keys(dlog, piece.k, constant, ws), heads)

    dv = ws("total", A, C, W)
    dv.copy_(call.product_of("outside", piece.phi_k, own).mul_(piece.weights))
    dv.add_(call.widen(call.product_of("inside", _scores(call, piece).transpose(-1, -2), G)))
    _fill(filled[2], dv[..., :-1], heads)
    return torch.bmm(onward[:, :1], d_sums.flatten(2)).view(heads, R, W)


def _add_product(total: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.baddbmm(total, x, y, out=total)


def _fill(gradient: Tensor, found: Tensor, heads: int) -> None:
    """gradient [b, h, n, D] from found, [A, C, D] or [(b h), c·C, D], without what was padded."""
    b, h, n, D = gradient.shape
    gradient.copy_(found.reshape(b, h, -1, D)[:, :, :n])
