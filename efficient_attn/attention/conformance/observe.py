"""The door: every question put to one variant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch

from efficient_attn.attention.conformance import (
    answers,
    general,
    masking,
    patterns,
    positions,
)
from efficient_attn.attention.conformance.finding import (
    Check,
    Finding,
    Observation,
    Status,
    judge,
)
from efficient_attn.attention.conformance.subject import Subject

Probe = Callable[[Subject], Iterator[Check]]

PROBES: dict[str, Probe] = {
    "noncausal_self": patterns.noncausal_self,
    "causal_self": patterns.causal_self,
    "noncausal_cross": patterns.noncausal_cross,
    "causal_cross": patterns.causal_cross,
    "key_padding": masking.key_padding,
    "pairwise_mask": masking.pairwise_mask,
    "weights": answers.weights,
    "decode": answers.decode,
    "rotary": positions.rotary,
    "alibi": positions.alibi,
}
"""Capability -> probe. `equal_lengths`, a condition rather than an ability, is found apart."""

GENERAL: dict[str, Probe] = {
    "any length": general.any_length,
    "batch independence": general.batch_independence,
    "values of one give one": general.values_of_one,
    "determinism": general.determinism,
    "half precision": general.half_precision,
    "parameters are trained": general.trained_parameters,
}


def observe(
    variant: str,
    options: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    only: Collection[str] | None = None,
) -> Observation:
    """Ask `variant` for everything and test what it answers.

    variant: a registered name, or "module:Class"; options: its own, defaults where not given;
    seed: of the inputs; only: the capabilities and general properties to ask for, all when None.
    Takes a second or a few; the global generator is left as it was.

    For each field of `Capabilities` the finding is honoured (asked for, given, and right),
    refused (`UnsupportedAttention`) or violated (given and wrong, or another exception), without
    regard to what the class declares; `Observation.differences` compares the two. Raises
    ValueError for an unknown variant and `OptionError` for wrong options.
    """
    with torch.random.fork_rng(devices=[]):
        subject = Subject(variant, options, seed)
        declared = asdict(subject.core.capabilities)
        questions = {*declared, *GENERAL}
        asked = questions if only is None else set(only)
        if asked - questions:
            raise ValueError(
                f"nothing to observe is called {', '.join(sorted(asked - questions))}; "
                f"there are {', '.join([*declared, *GENERAL])}"
            )
        observed = {name: _capability(name, subject) for name in declared if name in asked}
        properties = {
            name: _ask(probe, subject, "holds") for name, probe in GENERAL.items() if name in asked
        }
    return Observation(subject.name, subject.options, declared, observed, properties)


def _capability(name: str, subject: Subject) -> Finding:
    if name == "equal_lengths":
        return patterns.equal_lengths(subject)
    return _ask(PROBES[name], subject, "honoured")


def _ask(probe: Probe, subject: Subject, success: Status) -> Finding:
    return judge(lambda: probe(subject), success=success)
