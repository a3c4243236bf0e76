"""Probes of what a variant gives beside its output: weights, and one token at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from efficient_attn.attention.conformance.finding import Check
from efficient_attn.attention.conformance.subject import Pattern, Subject, distance


def weights(subject: Subject) -> Iterator[Check]:
    """weights @ v is the output that the fast path gives, under every mask that is taken."""
    for pattern in subject.patterns or [Pattern(False, False)]:
        lengths = [(N, N) for N in subject.lengths(1, 2, 5, 37)]
        if pattern.cross:
            lengths = subject.pairs((1, 5), (3, 7), (7, 3))
        for N, M in lengths:
            q, k, v = subject.draw(N, M)
            exists = torch.ones(2, M, dtype=torch.bool)
            exists[1, M // 2 + 1 :] = False
            for padding in (None, exists) if subject.masked else (None,):
                request: dict[str, Any] = {"padding": padding, **pattern.request}
                given = subject.weights(q, k, v, **request)
                case = f"{pattern}, {N} queries, {M} keys{'' if padding is None else ', padded'}"
                shape = (*q.shape[:3], M)
                yield Check(
                    f"{case}: weights must be [B, H, N, M] = {shape}",
                    0.0 if tuple(given.shape) == shape else math.inf,
                )
                out = subject.run(q, k, v, **request)
                yield Check(f"{case}: weights @ v must equal the output", distance(given @ v, out))
                if pattern.causal:
                    later = torch.ones(N, M, dtype=torch.bool).triu(M - N + 1)
                    yield Check(
                        f"{case}: later keys must weigh nothing",
                        given.masked_fill(~later, 0).abs().max().item(),
                    )
                if padding is not None:
                    hidden = given.masked_fill(padding[:, None, None, :], 0)
                    yield Check(
                        f"{case}: padded keys must weigh nothing", hidden.abs().max().item()
                    )


def decode(subject: Subject) -> Iterator[Check]:
    """However the tokens are split into steps, a module gives what it gives for all at once, and
    samples of a state go on as they would have."""
    for groups in (None, 1):
        module = subject.make_module(num_kv_heads=groups).requires_grad_(False)
        shared = "" if groups is None else ", key heads shared"
        for N in subject.lengths(1, 2, 5, 200):
            x = subject.tokens(N)
            steps = subject.stepwise(module, x.split(1, 1))
            parallel, _ = module(x, is_causal=True)
            yield Check(
                f"N={N}{shared}: single steps must equal the parallel form",
                distance(steps, parallel),
            )
            if N > 2:
                pieces = x.split([N // 2, 1, N - N // 2 - 1], 1)
                yield Check(
                    f"N={N}{shared}: steps of {N // 2}, 1 and the remaining tokens must equal the "
                    "parallel form",
                    distance(subject.stepwise(module, pieces), parallel),
                )
        first, then = subject.tokens(5).split([3, 2], 1)
        _, state = module.step(first, module.init_state(first.shape[0]))
        whole, _ = module.step(then, state)
        samples = torch.tensor([1, 1, 0])
        chosen, _ = module.step(then[samples], state.select(samples))
        yield Check(
            f"samples 1, 1, 0 of a state{shared}: select must keep what each has seen",
            distance(chosen, whole[samples]),
        )
