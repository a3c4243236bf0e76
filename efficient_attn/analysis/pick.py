"""Which variant for this workload, with evidence, limits and price.

The rule, from the records of one ground (`rivals`: pattern class, pass, number format, machine):

1. Candidates of every contestant are options that were measured at the requested size, or else
   predicted ones, as `candidates` says. Cost is what was measured at the size, else what the cost
   model predicts (`predict`), ``interpolated`` or ``extrapolated``.
2. Out, with a reason, is who refuses the pattern, failed at the size, ran out of memory or time at
   one that is no larger in any way (and at no larger one did well), cannot return weights where
   they are needed, is not softmax attention where only that will do, or exceeds a limit of memory
   or time.
3. First stand those that keep enough: the weighted share of full's lead (`kept`) is known and not
   below the tolerance, or the request names no capability; then all others, with what they keep.
4. Within both, the fastest first: by time, or by the ratio to full where all were measured in one
   cell with it, since paired ratios are free of drift.
5. A choice that keeps enough ties with the first when its ratio to that does not exclude 1: the
   median of ratios by round within one cell; of two predictions the ratio of `predict`; else the
   quotient of two times with its range (`ratios`). Where full ties with the first, full is advised,
   unless one of the two times is predicted and full is the slower with odds of nine to one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from efficient_attn.analysis.accuracy import task_scores
from efficient_attn.analysis.candidates import runs_of
from efficient_attn.analysis.choice import AccuracyEvidence, Choice, Ranking, Rejection
from efficient_attn.analysis.judge import Case
from efficient_attn.analysis.kept import evidence_of
from efficient_attn.analysis.matching import NothingMeasured, matching
from efficient_attn.analysis.overrides import sweep_command
from efficient_attn.analysis.ratios import Ratio, divide, quotient, ratio, spread
from efficient_attn.analysis.request import Request
from efficient_attn.analysis.rivals import Rivals
from efficient_attn.analysis.select import (
    SURROUNDINGS,
    contestant_order,
    entry_name,
    is_variant,
    suffix_of,
)
from efficient_attn.analysis.verdict import verdict
from efficient_attn.bench.record import Record

__all__ = [
    "AccuracyEvidence",
    "Choice",
    "NothingMeasured",
    "Ranking",
    "Rejection",
    "Request",
    "pick",
]


def pick(records: Iterable[Record], request: Request) -> Ranking:
    """Rank the contestants of stored records for a described workload.

    Other people's implementations and the no-mixing baseline have no part in it. Raises
    NothingMeasured when no record is of the request's pattern, pass, format and machine; its text
    says what the results do hold and which command would measure the request.
    """
    everyone = list(records)
    records = [record for record in everyone if is_variant(record.contestant)]
    ground, related, notes = matching(records, request)
    scores = task_scores(everyone)
    tasks = [task for task in scores if task.pattern == request.pattern]
    rivals = Rivals(ground, related)
    case = Case(request, rivals, tasks, evidence_of(scores) if request.needs else [])
    found = [(one, n) for n in range(len(rivals.entrants)) for one in case.verdicts(n)]
    named = _named([one for one, _ in found])
    choices = [one for one in named if isinstance(one, Choice)]
    rejections = [one for one in named if isinstance(one, Rejection)]
    done = {
        one.contestant: runs_of(rivals.entrants[number], request, one.options)
        for one, (_, number) in zip(named, found, strict=True)
        if isinstance(one, Choice) and one.measured
    }
    rejections += _elsewhere(records, related)
    ranked = _ranked(choices, done)
    notes += _notes(ranked, rejections, request, has_accuracy=bool(tasks))
    candidates = [(one.contestant, one.variant, one.options) for one in ranked or rejections]
    candidates.sort(key=lambda candidate: contestant_order(candidate[0]))
    return Ranking(
        request=request,
        choices=tuple(ranked),
        rejections=tuple(rejections),
        verdict=verdict(ranked, rejections, request),
        notes=tuple(notes),
        command=sweep_command(candidates, request),
    )


def _named(found: Sequence[Choice | Rejection]) -> list[Choice | Rejection]:
    """With the options that differ behind the name, where it stands for several."""
    by_name: dict[str, list[Choice | Rejection]] = defaultdict(list)
    for one in found:
        by_name[one.contestant].append(one)
    renamed: list[Choice | Rejection] = []
    for one in found:
        twins = [{"variant": twin.variant, **twin.options} for twin in by_name[one.contestant]]
        shared = set.intersection(*(set(twin) for twin in twins)) - SURROUNDINGS
        mine = {"variant": one.variant, **one.options}
        differing = sorted(
            name for name in shared if any(str(twin[name]) != str(mine[name]) for twin in twins)
        )
        renamed.append(replace(one, contestant=one.contestant + suffix_of(mine, differing)))
    return renamed


def _elsewhere(records: list[Record], related: list[Record]) -> list[Rejection]:
    """Contestants that these results know only from other workloads."""
    here = {entry_name(record.contestant) for record in related}
    others = {
        record.contestant: record.variant
        for record in records
        if record.measure == "cost" and entry_name(record.contestant) not in here
    }
    return [
        Rejection(name, others[name], "no record of this workload")
        for name in sorted(others, key=contestant_order)
    ]


def _ranked(choices: list[Choice], done: dict[str, list[Record]]) -> list[Choice]:
    """Choices in order with ratios and ties. done: runs of the measured ones, newest first."""
    full = next((choice for choice in choices if choice.contestant == "full"), None)
    if full is not None:
        choices = [
            choice if choice is full else replace(choice, to_full=_ratio(choice, full, done))
            for choice in choices
        ]
    paired = all(
        choice.contestant == "full" or (choice.to_full is not None and choice.to_full.paired)
        for choice in choices
    )

    def place(choice: Choice) -> tuple[bool, float]:
        if not paired:
            return not choice.enough, choice.time.value
        return not choice.enough, choice.to_full.value if choice.to_full is not None else 1.0

    ordered = sorted(choices, key=place)
    return ordered[:1] + [_beside(choice, ordered[0], done) for choice in ordered[1:]]


def _beside(choice: Choice, best: Choice, done: dict[str, list[Record]]) -> Choice:
    to_best = _ratio(choice, best, done)
    return replace(
        choice, to_best=to_best, tied=to_best.low <= 1.0 and choice.enough == best.enough
    )


def _ratio(choice: Choice, other: Choice, done: dict[str, list[Record]]) -> Ratio:
    if choice.pair_width is not None and other.pair_width is not None:
        return spread(choice.time, other.time, math.hypot(choice.pair_width, other.pair_width))
    if not (choice.measured and other.measured):
        return quotient(choice.time, other.time)
    mine, theirs = done[choice.contestant], done[other.contestant]
    for record in mine:
        for partner in theirs:
            if partner.cell == record.cell:
                return ratio(record, partner)
    return divide(choice.time, other.time)


def _notes(
    ranked: list[Choice], rejections: list[Rejection], request: Request, *, has_accuracy: bool
) -> list[str]:
    notes = []
    if not has_accuracy:
        notes.append("no accuracy was measured for this pattern: the ranking is by cost alone")
    if ranked and not any(choice.contestant == "full" for choice in ranked):
        why = next((item.reason for item in rejections if item.contestant == "full"), None)
        notes.append(f"no ratio to full: {f'full {why}' if why else 'full was not measured'}")
    if any(not choice.measured for choice in ranked):
        notes.append(
            f"N={request.length} was not measured for every contestant: "
            "values marked ≈ are predictions"
        )
    ratios = [choice.to_full for choice in ranked if choice.measured and choice.to_full]
    if not all(found.paired for found in ratios):
        notes.append("some ratios compare medians of different runs (marked unpaired)")
    if request.need_weights:
        notes.append("times were taken without returning the weights; asking for them costs more")
    return notes
