"""Performer's noncausal form as two softmaxes, each over a piece at a time.

With log φ(q) = w·q and log φ(k) = w·k − |k|²/2, the keys give every feature r the mean of the
values under softmax over the keys,

    λ_r = log Σ_j φ(k_j)_r,   U_r = Σ_j φ(k_j)_r v_j / exp λ_r,

and a query takes the mean of those under softmax over the features: out = softmax_r(w·q + λ) U.
Both normalisers are at least 1, without an epsilon. Backward computes either softmax once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention.kernels.flash import differentiable_gradients, wants_gradient
from efficient_attn.attention.kernels.performer_pieces import (
    Call,
    decay_,
    exp_,
    floor,
    gradient_of_keys,
    half_squares,
    head_groups,
    spans,
    times,
)

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]


def noncausal(
    q: Tensor, k: Tensor, v: Tensor, features: Tensor, exists: Tensor | None, formula: Formula
) -> Tensor:
    """q [B, H, N, D], k [B, H, M, D], v [B, H, M, V], features [R, D], exists [B, M] or None
    -> [B, H, N, V]; formula: the same of q, k and v, for gradients of gradients."""
    if wants_gradient(q, k, v):
        out: Tensor = _Noncausal.apply(q, k, v, features, exists, formula)
        return out
    return _forward(q, k, v, features, exists)[0]


def noncausal_products(N: int, M: int, D: int, R: int, *, backward: bool) -> int:
    """Multiply-adds in one head of width D = V; backward: and those of the gradients."""
    features = means = (N + M) * D * R
    return (3 if backward else 1) * (features + means)


class _Noncausal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        features: Tensor,
        exists: Tensor | None,
        formula: Formula,
    ) -> Tensor:
        out, means, log_sums = _forward(q, k, v, features, exists)
        ctx.save_for_backward(q, k, v, features, exists, out, means, log_sums)
        ctx.formula = formula
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        q, k, v, features, exists, out, means, log_sums = ctx.saved_tensors
        if torch.is_grad_enabled():
            wanted = differentiable_gradients(ctx.formula, (q, k, v), gradient)
            return *wanted, None, None, None
        found = _backward(gradient, q, k, v, features, exists, out, means, log_sums)
        return *found, None, None, None


class _Call(Call):
    """And how its tensors become rows."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, features: Tensor) -> None:
        super().__init__(q, k, v, features)
        self.longest = max(q.shape[-2], k.shape[-2])

    def rows(self, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x [b, h, n, D] -> [(b h), n, D] in dtype."""
        return self.workspace.cast(name, x.flatten(0, 1), dtype)

    def widen(self, name: str, x: Tensor) -> Tensor:
        return self.workspace.cast(name, x, self.dtype)

    def values(self, v: Tensor, exists: Tensor | None) -> Tensor:
        """[(b h), n, V] in the type of products, zero where there is no key."""
        if exists is None:
            return self.rows("v", v, self.product)
        b, h, n, V = v.shape
        copy = self.workspace("v", b * h, n, V, dtype=self.product)
        copy.view(v.shape).copy_(v).masked_fill_(~exists[:, None, :, None], 0.0)
        return copy

    def queries_over_features(self, q: Tensor, log_sums: Tensor) -> Tensor:
        """softmax over the features [(b h), n, R]."""
        scores = times(self.rows("x", q, self.dtype), self.features.T, "phi", self.workspace)
        return torch.softmax(scores.add_(log_sums.flatten(0, 1).unsqueeze(-2)), -1, out=scores)

    def log_keys(self, k: Tensor, exists: Tensor | None) -> Tensor:
        """log φ(k) [(b h), n, R]."""
        rows = self.rows("x", k, self.dtype)
        norms = half_squares(rows, self.workspace)
        if exists is not None:
            norms.view(*k.shape[:-1], 1).masked_fill_(~exists[:, None, :, None], float("inf"))
        return times(rows, self.features.T, "phi", self.workspace).sub_(norms)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, features: Tensor, exists: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B, H, N, V], U [B, H, R, V] and λ [B, H, R]."""
    B, H, N, _ = q.shape
    V, R = v.shape[-1], len(features)
    with torch.autocast("cpu", enabled=False):
        call = _Call(q, k, v, features)
        out = torch.empty(B, H, N, V, dtype=v.dtype, device="cpu")
        means = torch.empty(B, H, R, V, dtype=call.dtype, device="cpu")
        log_sums = torch.empty(B, H, R, dtype=call.dtype, device="cpu")
        for b, h in head_groups(B, H, call.longest, call.width):
            here = None if exists is None else exists[b]
            U, lse = _sum_keys(call, k[b, h], v[b, h], here)
            means[b, h], log_sums[b, h] = U.view_as(means[b, h]), lse.view_as(log_sums[b, h])
            U = call.narrow("U", U)
            for span in spans(N, call.width):
                A = call.queries_over_features(q[b, h, span], log_sums[b, h])
                answers = call.workspace("answers", *A.shape[:-1], V, dtype=call.product)
                torch.bmm(call.narrow("A", A), U, out=answers)
                out[b, h, span].copy_(answers.view_as(out[b, h, span]))
    return out, means, log_sums


def _sum_keys(call: _Call, k: Tensor, v: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor]:
    """U [(b h), R, V] and λ [(b h), R]: span by span, relative to the largest key so far."""
    G, R, V = k.shape[0] * k.shape[1], len(call.features), v.shape[-1]
    top = torch.full((G, 1, R), floor(call.dtype), dtype=call.dtype, device="cpu")
    total, sums = torch.zeros_like(top), torch.zeros(G, R, V, dtype=call.dtype, device="cpu")
    own = call.workspace("own", G, R, V, dtype=call.product)
    for span in spans(k.shape[-2], call.width):
        here = None if exists is None else exists[:, span]
        log_k = call.log_keys(k[..., span, :], here)
        higher = torch.maximum(top, log_k.amax(-2, keepdim=True))
        phi = exp_(log_k.sub_(higher))
        torch.bmm(
            call.narrow("A", phi).transpose(-1, -2), call.values(v[..., span, :], here), out=own
        )
        kept = (top - higher).exp_()
        total.mul_(kept).add_(phi.sum(-2, keepdim=True))
        sums.mul_(kept.transpose(-1, -2)).add_(call.widen("wide own", own))
        top = higher
    return sums.div_(total.transpose(-1, -2)), (top + total.log()).squeeze(-2)


def _backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    features: Tensor,
    exists: Tensor | None,
    out: Tensor,
    means: Tensor,
    log_sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.autocast("cpu", enabled=False):
        call = _Call(q, k, v, features)
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device="cpu") for x in (q, k, v))
        for b, h in head_groups(q.shape[0], q.shape[1], call.longest, call.width):
            here = None if exists is None else exists[b]
            U, lse = means[b, h], log_sums[b, h]
            dU, dlse = _back_to_queries(call, gradient[b, h], out[b, h], q[b, h], U, lse, dq[b, h])
            dlse.sub_((dU * U.flatten(0, 1)).sum(-1).unsqueeze(-2))
            _back_to_keys(call, dU, dlse, k[b, h], v[b, h], here, lse, dk[b, h], dv[b, h])
    return dq, dk, dv


def _back_to_queries(
    call: _Call, gradient: Tensor, out: Tensor, q: Tensor, U: Tensor, lse: Tensor, dq: Tensor
) -> tuple[Tensor, Tensor]:
    """Fills dq [b, h, N, D]; gradients of U [(b h), R, V] and of λ [(b h), 1, R]."""
    U = U.flatten(0, 1)
    dU, dlse = torch.zeros_like(U), torch.zeros_like(U[..., :1]).transpose(-1, -2)
    narrow_U = call.narrow("U", U)
    own = call.workspace("own", *U.shape, dtype=call.product)
    W = call.features.to(call.product)
    for span in spans(q.shape[-2], call.width):
        A = call.queries_over_features(q[..., span, :], lse)
        g = call.rows("g", gradient[..., span, :], call.product)
        delta = call.rows("x", gradient[..., span, :], call.dtype)
        delta = torch.mul(
            delta,
            call.rows("o", out[..., span, :], call.dtype),
            out=call.workspace("squares", *delta.shape),
        ).sum(-1, keepdim=True)
        torch.bmm(call.narrow("A", A).transpose(-1, -2), g, out=own)
        dU.add_(call.widen("wide own", own))
        dA = call.workspace("dA", *A.shape, dtype=call.product)
        torch.bmm(g, narrow_U.transpose(-1, -2), out=dA)
        dS = call.widen("dS", dA).sub_(delta).mul_(A)
        dlse.add_(dS.sum(-2, keepdim=True))
        found = times(call.narrow("A", dS), W, "dx", call.workspace)
        dq[..., span, :].copy_(found.view_as(dq[..., span, :]))
    return dU, dlse


def _back_to_keys(
    call: _Call,
    dU: Tensor,
    dlse: Tensor,
    k: Tensor,
    v: Tensor,
    exists: Tensor | None,
    lse: Tensor,
    dk: Tensor,
    dv: Tensor,
) -> None:
    """Fills dk [b, h, M, D] and dv [b, h, M, V]; dlse: that of λ less Σ U dU."""
    dU = call.narrow("U", dU)
    W = call.features.to(call.product)
    for span in spans(k.shape[-2], call.width):
        here = None if exists is None else exists[:, span]
        log_k = call.log_keys(k[..., span, :], here)
        # Keys that do not exist would make denormal gradients, exactly 0 makes none.
        exp = exp_ if here is None else decay_
        phi = exp(log_k.sub_(lse.flatten(0, 1).unsqueeze(-2)))
        values = call.values(v[..., span, :], here)
        found = call.workspace("dx", *values.shape, dtype=call.product)
        torch.bmm(call.narrow("A", phi), dU, out=found)
        dv[..., span, :].copy_(found.view_as(dv[..., span, :]))
        dP = call.workspace("dA", *phi.shape, dtype=call.product)
        torch.bmm(values, dU.transpose(-1, -2), out=dP)
        dlog = call.widen("dS", dP).add_(dlse).mul_(phi)
        rows = call.rows("x", k[..., span, :], call.dtype)
        found = gradient_of_keys(call.narrow("A", dlog), rows, W, call.workspace)
        dk[..., span, :].copy_(found.view_as(dk[..., span, :]))
        if here is not None:
            for x in (dk, dv):
                x[..., span, :].masked_fill_(~here[:, None, :, None], 0.0)
