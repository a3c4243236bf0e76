"""Probes of what every variant promises, whatever it can do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention.conformance.finding import Check, Skip
from efficient_attn.attention.conformance.masking import blindness
from efficient_attn.attention.conformance.subject import (
    LONG,
    LOUD,
    Pattern,
    Subject,
    distance,
    parts,
    unsound,
)

HALVES = ((torch.bfloat16, "bf16"), (torch.float16, "fp16"))


def any_length(subject: Subject) -> Iterator[Check]:
    """1, 2, odd, prime and long inputs, in every pattern that runs."""
    for pattern in _patterns(subject):
        for N in subject.lengths(1, 2, 3, 7, 9, 16, 31, 128, LONG):
            q, k, v = subject.draw(N)
            yield Check(
                f"{pattern}, N={N}: outputs must be finite, one a query",
                unsound(subject.run(q, k, v, **pattern.request), tuple(v.shape)),
            )


def batch_independence(subject: Subject) -> Iterator[Check]:
    """A sample does not know its neighbours: neither how large they are nor whether they exist."""
    for pattern in _patterns(subject):
        for N in subject.lengths(2, 20, LONG):
            q, k, v = subject.draw(N, batch=3)
            alone = subject.run(*(x[:1] for x in (q, k, v)), **pattern.request)
            together = subject.run(q, k, v, **pattern.request)
            yield Check(
                f"{pattern}, N={N}: a sample alone must equal the same one in a batch",
                distance(together[:1], alone),
            )
            for x in (q, k, v):
                x[1] *= LOUD
                x[2] /= LOUD
            beside = subject.run(q, k, v, **pattern.request)
            yield Check(
                f"{pattern}, N={N}: a sample must not move when its neighbour grows thirtyfold",
                distance(beside[:1], alone),
            )


def values_of_one(subject: Subject) -> Iterator[Check]:
    """Where weights sum to one, values of one give one: the normaliser is right when small."""
    for pattern in _patterns(subject):
        if not _averages(subject, pattern.request):
            raise Skip(
                f"{pattern}: the weights of {subject.name} do not sum to one, as when values are "
                "mixed before they are averaged; so values of one need not give one"
            )
        for N in subject.lengths(1, 5, LONG):
            for spread in (0.1, 1.0, 5.0):
                q, k, v = subject.draw(N, spread=spread)
                out = subject.run(q, k, torch.ones_like(v), **pattern.request)
                yield Check(
                    f"{pattern}, N={N}, scores of spread {spread * spread:g}: "
                    "values of one must give one",
                    distance(out, torch.ones_like(out)),
                )


def determinism(subject: Subject) -> Iterator[Check]:
    """eval() gives the same again, whatever the global generator and earlier calls were."""
    for pattern in _patterns(subject):
        N, short = subject.lengths(37)[0], subject.lengths(3)[0]
        q, k, v = subject.draw(N)
        torch.manual_seed(1)
        out = subject.run(q, k, v, **pattern.request)
        before = torch.get_rng_state()
        again = subject.run(q, k, v, **pattern.request)
        yield Check(f"{pattern}: a second call must give the same", distance(again, out), 0.0)
        yield Check(
            f"{pattern}: eval must not draw from the global generator",
            0.0 if torch.equal(before, torch.get_rng_state()) else math.inf,
        )
        torch.manual_seed(2)
        subject.run(*subject.draw(short), **pattern.request)
        again = subject.run(q, k, v, **pattern.request)
        yield Check(f"{pattern}: a short call in between must change nothing", distance(again, out))
        torch.manual_seed(3)
        restored = subject.make_core()
        restored.load_state_dict(parts(subject.core))
        again = subject.run(q, k, v, core=restored, **pattern.request)
        yield Check(
            f"{pattern}: a fresh module with this one's state dict must give the same",
            distance(again, out),
        )


def half_precision(subject: Subject) -> Iterator[Check]:
    """bf16 and fp16 stay finite, outputs and gradients, and normalisers do not saturate."""
    for pattern in _patterns(subject):
        averages = _averages(subject, pattern.request)
        for dtype, name in HALVES:
            core = subject.converted(dtype)
            for N in subject.lengths(5, LONG):
                for spread in (1.0, 10.0):
                    q, k, v = subject.draw(N, spread=spread, dtype=dtype)
                    case = f"{name}, {pattern}, N={N}, scores of spread {spread * spread:g}"
                    yield Check(
                        f"{case}: outputs and gradients must be finite and {name}",
                        _finite_backward(subject, q, k, v, core=core, **pattern.request),
                    )
                if averages:
                    out = subject.run(q, k, torch.ones_like(v), core=core, **pattern.request)
                    wide = (x.float() for x in (q, k, torch.ones_like(v)))
                    yield Check(
                        f"{name}, {pattern}, N={N}: values of one must give what fp32 makes of "
                        "them, one where a query has features",
                        distance(out.float(), subject.run(*wide, **pattern.request)),
                        0.01,
                    )
            if subject.masked:
                N = subject.lengths(6)[0]
                exists = torch.ones(2, N, dtype=torch.bool)
                exists[0] = False
                request: dict[str, Any] = {"padding": exists, "core": core, **pattern.request}
                yield Check(
                    f"{name}, {pattern}, N={N}: a sample padded whole must give zeros and finite "
                    "gradients",
                    blindness(subject, N, ~exists, dtype=dtype, **request),
                )


def trained_parameters(subject: Subject) -> Iterator[Check]:
    """Every parameter gets a finite gradient, and a variant's own one that is not all zero."""
    for pattern in _patterns(subject):
        if pattern.cross:
            continue
        module = subject.make_module().train()
        N = subject.lengths(37)[0]
        out, _ = module(subject.tokens(N), is_causal=pattern.causal)
        out.square().sum().backward()
        for name, parameter in module.named_parameters():
            gradient = parameter.grad
            reached = gradient is not None and bool(gradient.isfinite().all())
            if gradient is not None and name.startswith("core."):
                reached = reached and bool(gradient.any())
            yield Check(
                f"{pattern}, N={N}: parameter {name} must get a finite gradient",
                0.0 if reached else math.inf,
            )


def _patterns(subject: Subject) -> list[Pattern]:
    """Those that run; equal lengths are taken in each."""
    if not subject.patterns:
        raise Skip("no pattern runs")
    return subject.patterns


def _averages(subject: Subject, request: dict[str, Any]) -> bool:
    """Whether weights sum to one: by the weights given, else by outputs where scores are small.

    Near enough to one is enough here: how near is the question of the probe that asks.
    """
    N = subject.lengths(5)[0]
    q, k, v = subject.draw(N, spread=0.1)
    try:
        sums = subject.weights(q, k, v, **request).sum(-1)
    except Exception:
        sums = subject.run(q, k, torch.ones_like(v), **request)
    return bool(((sums - 1).abs() < 0.05).all())


def _finite_backward(subject: Subject, q: Tensor, k: Tensor, v: Tensor, **request: Any) -> float:
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out = subject.run(q, k, v, **request)
    numbers = [out]
    if out.requires_grad:
        out.float().square().mean().backward()
        numbers += [x.grad for x in (q, k, v) if x.grad is not None]
    finite = all(bool(x.isfinite().all()) for x in numbers)
    return 0.0 if finite and out.dtype == q.dtype else math.inf
