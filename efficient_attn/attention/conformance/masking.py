"""Probes of the masks: key padding and pairwise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention.conformance.finding import Check
from efficient_attn.attention.conformance.subject import LONG, Pattern, Subject, distance

SELF, CAUSAL = Pattern(False, False), Pattern(True, False)


def key_padding(subject: Subject) -> Iterator[Check]:
    """Padding computes what the sequences alone would, whatever stands in the padded places."""
    for pattern in subject.patterns or [SELF]:
        for N in subject.lengths(3, 13, 13 if pattern.cross else LONG):
            yield from _padded_content(subject, pattern, N)
            if subject.only_length is None and not pattern.cross:
                yield from _sequences_alone(subject, pattern, N)
        yield from _blind_rows(subject, pattern)


def _padded_content(subject: Subject, pattern: Pattern, N: int) -> Iterator[Check]:
    q, k, v = subject.draw(N)
    everyone = torch.ones(2, N, dtype=torch.bool)
    bare = subject.run(q, k, v, **pattern.request)
    whole = subject.run(q, k, v, padding=everyone, **pattern.request)
    yield Check(
        f"{pattern}, N={N}: a padding mask that hides nothing must change nothing",
        distance(whole, bare),
    )
    for name, hidden in (("right", N // 2), ("left", N // 2), ("scattered", N)):
        if not hidden:
            continue
        exists = everyone.clone()
        if name == "scattered":
            exists[1, ::3] = False
        else:
            exists[1, slice(N - hidden, N) if name == "right" else slice(0, hidden)] = False
        out = subject.run(q, k, v, padding=exists, **pattern.request)
        for content in (100.0, -1e4):
            filled = (x.masked_fill(~exists[:, None, :, None], content) for x in (q, k, v))
            other = subject.run(*filled, padding=exists, **pattern.request)
            real = exists[:, None, :, None].expand_as(out)
            yield Check(
                f"{pattern}, N={N}: the content of tokens padded on the {name} must not matter"
                if name != "scattered"
                else f"{pattern}, N={N}: the content of scattered padded tokens must not matter",
                distance(other[real], out[real]),
            )


def _sequences_alone(subject: Subject, pattern: Pattern, N: int) -> Iterator[Check]:
    counts = [N, max(N // 2, 1), 1]
    q, k, v = subject.draw(N, batch=len(counts))
    exists = torch.arange(N) < torch.tensor(counts)[:, None]
    together = subject.run(q, k, v, padding=exists, **pattern.request)
    for b, n in enumerate(counts):
        alone = subject.run(*(x[b : b + 1, :, :n] for x in (q, k, v)), **pattern.request)
        yield Check(
            f"{pattern}, N={N}: {n} tokens padded on the right must equal the {n} alone",
            distance(together[b : b + 1, :, :n], alone),
        )
        one = (x[b : b + 1] for x in (q, k, v))
        single = subject.run(*one, padding=exists[b : b + 1], **pattern.request)
        yield Check(
            f"{pattern}, N={N}: padding must count in a batch of one, with {n} real tokens",
            distance(single[:, :, :n], alone),
        )


def _blind_rows(subject: Subject, pattern: Pattern) -> Iterator[Check]:
    N = subject.lengths(6)[0]
    exists = torch.ones(2, N, dtype=torch.bool)
    exists[0] = False
    yield Check(
        f"{pattern}, N={N}: a sample padded whole must give zeros and finite gradients",
        blindness(subject, N, ~exists, padding=exists, **pattern.request),
    )
    if pattern.causal:
        exists = torch.ones(2, N, dtype=torch.bool)
        exists[0, : N // 2] = False
        yield Check(
            f"{pattern}, N={N}: queries before the first real token must give zeros and finite "
            "gradients",
            blindness(subject, N, ~exists, padding=exists, **pattern.request),
        )


def pairwise_mask(subject: Subject) -> Iterator[Check]:
    """Row by row the mask hides keys as padding does; -inf hides like False; floats are added."""
    for pattern in [p for p in (SELF, CAUSAL) if p in subject.patterns] or [SELF]:
        for N in subject.lengths(3, 7, 37):
            q, k, v = subject.draw(N)
            seen = _pairs(N)
            out = subject.run(q, k, v, pairwise=seen, **pattern.request)
            case = f"{pattern}, N={N}"
            if subject.masked:
                yield Check(
                    f"{case}: each row must equal the one with its keys padded",
                    _row_by_row(subject, q, k, v, seen, out, pattern),
                )
            for word, lowest in (("-inf", -math.inf), ("finfo.min", torch.finfo(q.dtype).min)):
                added = torch.zeros(N, N, dtype=q.dtype).masked_fill(~seen, lowest)
                other = subject.run(q, k, v, pairwise=added, **pattern.request)
                yield Check(f"{case}: {word} must hide like False", distance(other, out))
            by_head = seen.expand(2, q.shape[1], N, N)
            yield Check(
                f"{case}: a mask [B, H, N, M] of copies must equal the mask [N, M]",
                distance(subject.run(q, k, v, pairwise=by_head, **pattern.request), out),
            )
            yield Check(
                f"{case}: a float mask must be added to the scores",
                _added(subject, N, pattern),
            )
            blind = seen.clone()
            blind[1] = False
            rows = torch.zeros(2, N, dtype=torch.bool)
            rows[:, 1] = True
            yield Check(
                f"{case}: a row that is masked whole must give zeros and finite gradients",
                blindness(subject, N, rows, pairwise=blind, **pattern.request),
            )


def _pairs(N: int) -> Tensor:
    """A mask [N, N] that no causal or windowed pattern spells out; everyone sees itself and 0."""
    i, j = torch.arange(N)[:, None], torch.arange(N)[None, :]
    return (i == j) | (j == 0) | ((i + 2 * j) % 3 == 0)


def _row_by_row(
    subject: Subject, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, out: Tensor, pattern: Pattern
) -> float:
    """The keys of row i hidden by key padding, for one query after the other."""
    errors = []
    for i in range(len(seen)):
        exists = seen[i].expand(q.shape[0], -1)
        row = subject.run(q, k, v, padding=exists, **pattern.request)
        errors.append(distance(out[:, :, i], row[:, :, i]))
    return max(errors)


def _added(subject: Subject, N: int, pattern: Pattern) -> float:
    """exp(score + b) = exp(score)·exp(b): weights times exp(b), normalised anew."""
    q, k, v = subject.draw(N)
    bias = torch.linspace(-2, 2, N * N, dtype=q.dtype).view(N, N).sin()
    plain = effective_weights(subject, q, k, **pattern.request)
    expected = plain * bias.exp()
    expected = expected / expected.sum(-1, keepdim=True)
    out = subject.run(q, k, v, pairwise=bias, **pattern.request)
    return distance(out, expected @ v)


def effective_weights(subject: Subject, q: Tensor, k: Tensor, **request: Any) -> Tensor:
    """Weights [B, H, N, M] read off the outputs for the unit vectors as values."""
    M, V = k.shape[-2], k.shape[-1]
    columns = []
    for start in range(0, M, V):
        unit = torch.zeros_like(k)
        for column, j in enumerate(range(start, min(start + V, M))):
            unit[:, :, j, column] = 1
        columns.append(subject.run(q, k, unit, **request))
    return torch.cat(columns, -1)[..., :M]


def blindness(
    subject: Subject,
    N: int,
    blind: Tensor,
    *,
    dtype: torch.dtype = torch.float64,
    **request: Any,
) -> float:
    """How far the rows `blind` [B, N] are from zero; inf if a number or gradient is not finite."""
    q, k, v = (x.requires_grad_() for x in subject.draw(N, dtype=dtype))
    out = subject.run(q, k, v, **request)
    numbers = [out]
    if out.requires_grad:
        out.square().sum().backward()
        numbers += [x.grad for x in (q, k, v) if x.grad is not None]
    if not all(bool(x.isfinite().all()) for x in numbers):
        return math.inf
    return out.detach().transpose(1, 2)[blind].abs().max().item()
