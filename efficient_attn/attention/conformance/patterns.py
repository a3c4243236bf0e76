"""Probes of the four patterns: self and cross, causal and not; and of lengths that must match."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention.conformance.finding import Check, Finding
from efficient_attn.attention.conformance.subject import LONG, Subject, distance, loud, unsound
from efficient_attn.attention.errors import UnsupportedAttention

CROSSINGS = ((1, 1), (1, 5), (3, 7), (7, 3), (37, 64), (150, LONG))


def noncausal_self(subject: Subject) -> Iterator[Check]:
    """Finite outputs that depend on the values."""
    for N in subject.lengths(1, 2, 5, 37, LONG):
        q, k, v = subject.draw(N)
        out = subject.run(q, k, v)
        yield Check(f"N={N}: outputs must be finite, one a query", unsound(out, tuple(v.shape)))
        yield Check(
            f"N={N}: the output must change with the values", _same(subject.run(q, k, -v), out)
        )


def causal_self(subject: Subject) -> Iterator[Check]:
    """A late token, however large, reaches no earlier output; a prefix alone gives its outputs."""
    request: dict[str, Any] = {"causal": True}
    for N in subject.lengths(1, 2, 5, 37, LONG):
        q, k, v = subject.draw(N)
        out = subject.run(q, k, v, **request)
        yield Check(f"N={N}: outputs must be finite, one a query", unsound(out, tuple(v.shape)))
        for late in sorted({1, N // 2, N - 1} - {0, N}):
            moved = subject.run(*(loud(x, late) for x in (q, k, v)), **request)
            yield Check(
                f"N={N}: no earlier output may move when token {late} grows thirtyfold",
                distance(moved[:, :, :late], out[:, :, :late]),
            )
            if subject.only_length is None:
                prefix = subject.run(*(x[:, :, :late] for x in (q, k, v)), **request)
                yield Check(
                    f"N={N}: the first {late} tokens alone must give the same",
                    distance(prefix, out[:, :, :late]),
                )
    if subject.runs(causal=False):
        N = subject.lengths(6)[0]
        q, k, v = subject.draw(N)
        free, ordered = subject.run(q, k, v), subject.run(q, k, v, **request)
        behind = subject.run(*(loud(x, N - 1) for x in (q, k, v)))[:, :, : N - 1]
        if distance(behind, free[:, :, : N - 1]) > 1e-3:  # without the flag, it looks ahead
            yield Check(f"N={N}: the causal flag must change the output", _same(ordered, free))


def noncausal_cross(subject: Subject) -> Iterator[Check]:
    """Finite outputs for queries of one sequence and keys and values of another."""
    for N, M in subject.pairs(*CROSSINGS):
        q, k, v = subject.draw(N, M)
        out = subject.run(q, k, v, cross=True)
        case = f"{N} queries meet {M} keys"
        yield Check(f"{case}: outputs must be finite, one a query", unsound(out, tuple(q.shape)))
        turned = subject.run(q, k, -v, cross=True)
        yield Check(f"{case}: the output must change with the values", _same(turned, out))


def causal_cross(subject: Subject) -> Iterator[Check]:
    """Aligned bottom-right: query i of N sees keys up to i + M − N, and the last one sees all."""
    request: dict[str, Any] = {"causal": True, "cross": True}
    for N, M in subject.pairs(*CROSSINGS):
        q, k, v = subject.draw(N, M)
        out = subject.run(q, k, v, **request)
        case = f"{N} queries meet {M} keys"
        yield Check(f"{case}: outputs must be finite, one a query", unsound(out, tuple(q.shape)))
        blind = max(N - M, 0)
        if blind:
            yield Check(
                f"{case}: the first {blind} queries, before every key, must give zeros",
                out[:, :, :blind].abs().max().item(),
            )
        for late in sorted({M - N + 1, M - 1} & set(range(1, M))):
            earlier = slice(0, max(late - (M - N), 0))
            moved = subject.run(q, loud(k, late), loud(v, late), **request)
            yield Check(
                f"{case}: no query before key {late} may move when it grows thirtyfold",
                distance(moved[:, :, earlier], out[:, :, earlier]),
            )
        if N <= M and subject.runs(causal=True):
            before = subject.draw(M, M)[0][:, :, : M - N]
            whole = subject.run(torch.cat([before, q], 2), k, v, causal=True)
            yield Check(
                f"{case}: they must equal the last {N} of causal self-attention",
                distance(out, whole[:, :, M - N :]),
            )


def equal_lengths(subject: Subject) -> Finding:
    """Whether crossing is tied to as many keys as queries.

    honoured: equal lengths are taken and others refused; refused: there is no such condition.
    """
    crossing = [pattern for pattern in subject.patterns if pattern.cross]
    if not crossing:
        return Finding("refused", "there is no cross-attention that the condition could limit")
    N = subject.only_length or 4
    for pattern in crossing:
        for M in (N + 2, max(N - 1, 1)):
            try:
                subject.run(*subject.draw(N, M), **pattern.request)
            except UnsupportedAttention as refusal:
                if not subject.core.capabilities.equal_lengths:
                    return Finding("violated", f"{N} queries and {M} keys are refused: {refusal}")
            except Exception as error:
                return Finding(
                    "violated",
                    f"{N} queries and {M} keys raise {type(error).__name__}: {error}",
                    math.inf,
                )
            else:
                return Finding("refused", f"{pattern}-attention takes {N} queries and {M} keys")
    return Finding("honoured", "equal lengths are taken, others refused")


def _same(found: Tensor, other: Tensor) -> float:
    """inf when two outputs that must differ are the same."""
    return math.inf if distance(found, other) <= 1e-9 else 0.0
