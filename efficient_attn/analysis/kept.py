"""How much of full attention's ability a contestant keeps, by what a task asks of attention.

On a task (one setting, mean over seeds) full scores f, the baseline b and the contestant c; s is 1
where higher is better and −1 where lower is. The share that the contestant keeps is

    kept = s·(c − b) / (s·(f − b)) = 1 − price / lead,   cut to [0, 1]

with lead = s·(f − b) and price = s·(f − c), paired by seed, whose interval gives the share's.
The baseline is the trained model without mixing (contestant ``no_mixing``) where the task has one,
else the task's chance. A task on which full shows no lead over the baseline says nothing.

What counts for a contestant: tasks of the capability with the request's pattern, of other patterns
only where there are none; on each the score of its variant with the largest knob that is not above
its own, and that leaves part of the sequence out of sight (a window over all of it is full
attention). Several tasks count equally: means of shares, lows and highs. Contestants that are
softmax attention by definition keep all, 1.

Over the capabilities that matter with weights w, kept = Σ w·kept_c / Σ w, unknown as soon as one of
them is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from efficient_attn.analysis.accuracy import Score, TaskScores
from efficient_attn.analysis.knobs import knob
from efficient_attn.analysis.select import NO_MIXING, shared_difference
from efficient_attn.bench.intervals import CONFIDENCE, Interval


@dataclass(frozen=True)
class Evidence:
    """The share that one score keeps. knob: K that it was trained with."""

    task: str
    capability: str
    pattern: str
    variant: str
    knob: float
    options: dict[str, Any]
    share: Interval


@dataclass(frozen=True)
class KeptShare:
    """One capability of a contestant. share: None where nothing was measured.

    note: of what the evidence is; what to know before trusting it.
    """

    capability: str
    weight: float
    share: Interval | None
    note: str


@dataclass(frozen=True)
class Kept:
    """Of all that matters. share: weighted mean, None as soon as one capability is unknown.

    enough: known and not below the request's tolerance.
    """

    share: Interval | None
    enough: bool
    by_capability: tuple[KeptShare, ...]


def evidence_of(tasks: Iterable[TaskScores]) -> list[Evidence]:
    """Every share that the scores of tasks with a capability tell."""
    found = []
    for task in tasks:
        baseline = _baseline(task)
        full = task.of("full")
        if task.capability is None or baseline is None or full is None or full.value is None:
            continue
        sign = 1.0 if task.higher_is_better else -1.0
        lead = sign * (full.value.value - baseline)
        nearest = full.value.low if sign > 0 else full.value.high
        if lead <= 0 or (full.value.known and sign * (nearest - baseline) <= 0):
            continue
        for score in task.scores:
            share = _share(score, lead)
            if share is not None and score.contestant != "full":
                causal = task.pattern.startswith("causal")
                reach = knob(score.variant, score.options, task.length, task.length, causal=causal)
                if task.length and reach >= task.length and score.variant.endswith("window"):
                    continue
                found.append(
                    Evidence(
                        task.label,
                        task.capability,
                        task.pattern,
                        score.variant,
                        reach,
                        score.options,
                        share,
                    )
                )
    return found


def kept(
    variant: str,
    options: Mapping[str, Any],
    reach: float,
    *,
    exact: bool,
    pattern: str,
    needs: Mapping[str, float],
    tolerance: float,
    evidence: Iterable[Evidence],
) -> Kept:
    """What a contestant keeps; reach: its K at the requested size."""
    known = [one for one in evidence if one.variant == variant and one.knob <= reach]
    shares = []
    for capability, weight in needs.items():
        if exact:
            whole = Interval(1.0, 1.0, 1.0, 1, 1.0)
            shares.append(KeptShare(capability, weight, whole, "softmax attention itself"))
            continue
        about = [one for one in known if one.capability == capability]
        here = [one for one in about if one.pattern == pattern] or about
        shares.append(_together(capability, weight, _largest_knobs(here), options, pattern))
    total = _weighted(shares)
    return Kept(total, total is not None and total.value >= tolerance, tuple(shares))


def _baseline(task: TaskScores) -> float | None:
    trained = task.of(NO_MIXING)
    if trained is not None and trained.value is not None:
        return trained.value.value
    return task.baselines.get("chance")


def _share(score: Score, lead: float) -> Interval | None:
    price = score.price
    if price is None:
        return None
    value, low, high = (
        min(1.0, max(0.0, 1.0 - cost / lead)) if math.isfinite(cost) else float(cost < 0)
        for cost in (price.value, price.high, price.low)
    )
    return Interval(value, low, high, price.n, price.confidence)


def _largest_knobs(evidence: Iterable[Evidence]) -> list[Evidence]:
    best: dict[str, Evidence] = {}
    for one in evidence:
        if one.task not in best or best[one.task].knob < one.knob:
            best[one.task] = one
    return list(best.values())


def _together(
    capability: str,
    weight: float,
    evidence: list[Evidence],
    options: Mapping[str, Any],
    pattern: str,
) -> KeptShare:
    if not evidence:
        return KeptShare(capability, weight, None, "not measured")
    shares = [one.share for one in evidence]
    count = len(shares)
    share = Interval(
        sum(one.value for one in shares) / count,
        sum(one.low for one in shares) / count,
        sum(one.high for one in shares) / count,
        min(one.n for one in shares),
        min(one.confidence for one in shares),
    )
    return KeptShare(
        capability, weight, share, "; ".join(_note(one, options, pattern) for one in evidence)
    )


def _note(one: Evidence, options: Mapping[str, Any], pattern: str) -> str:
    parts = []
    names = shared_difference(options, one.options)
    if names:
        parts.append(", ".join(f"{name}={one.options[name]}" for name in names))
    if one.pattern != pattern:
        parts.append(one.pattern)
    return one.task + (f" with {'; '.join(parts)}" if parts else "")


def _weighted(shares: list[KeptShare]) -> Interval | None:
    known = [(one.share, one.weight) for one in shares if one.share is not None]
    if len(known) < len(shares) or not known:
        return None
    total = sum(weight for _, weight in known)
    return Interval(
        sum(weight * one.value for one, weight in known) / total,
        sum(weight * one.low for one, weight in known) / total,
        sum(weight * one.high for one, weight in known) / total,
        min(one.n for one, _ in known),
        min((one.confidence for one, _ in known), default=CONFIDENCE),
    )
