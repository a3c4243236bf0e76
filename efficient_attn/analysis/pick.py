"""Which variant for this workload: ranked by measured time, with evidence, limits and price.

At a measured length the evidence is the measurement. At any other length it is the scaling fit,
marked ``interpolated`` or ``extrapolated``. Whoever cannot be ranked is rejected with a reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from efficient_attn.analysis.accuracy import task_scores
from efficient_attn.analysis.choice import AccuracyEvidence, Choice, Ranking, Rejection
from efficient_attn.analysis.judge import judge
from efficient_attn.analysis.ratios import Ratio, divide, ratio
from efficient_attn.analysis.request import NothingMeasured, Request, matching, sweep_command
from efficient_attn.analysis.select import (
    contestant_order,
    contestants_in,
    entry_name,
    is_variant,
    length_of,
    newest,
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

    Other people's implementations and the no-mixing baseline have no part in it.

    Raises NothingMeasured when no record is about this workload at any length; its text says
    what the results do hold and which command would measure the request.
    """
    everyone = list(records)
    records = [record for record in everyone if is_variant(record.contestant)]
    related, notes = matching(records, request)
    tasks = [scores for scores in task_scores(everyone) if scores.pattern == request.pattern]
    by_contestant: dict[str, list[Record]] = defaultdict(list)
    for record in related:
        by_contestant[record.contestant].append(record)

    choices: list[Choice] = []
    rejections: list[Rejection] = []
    for name in contestants_in(related):
        found = judge(newest(by_contestant[name]), request, tasks)
        if isinstance(found, Choice):
            choices.append(found)
        else:
            rejections.append(found)
    rejections += _elsewhere(records, related)
    done = [record for record in related if record.ok and length_of(record) == request.length]
    ranked = _ranked(choices, done)
    notes += _notes(ranked, rejections, request, has_accuracy=bool(tasks))
    names = [choice.contestant for choice in ranked] or contestants_in(related)
    return Ranking(
        request=request,
        choices=tuple(ranked),
        rejections=tuple(rejections),
        verdict=verdict(ranked, rejections),
        notes=tuple(notes),
        command=sweep_command(sorted(names, key=contestant_order), request),
    )


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


def _ranked(choices: list[Choice], done: list[Record]) -> list[Choice]:
    """Choices from fastest to slowest with their ratios and ties.

    Where everyone was measured in one cell with full, the paired ratios decide the order: they
    are free of the drift that separate medians carry. `done`: ok records at the requested length.
    """
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

    def cost(choice: Choice) -> float:
        if not paired:
            return choice.time.value
        return choice.to_full.value if choice.to_full is not None else 1.0

    ordered = sorted(choices, key=cost)
    return ordered[:1] + [_beside(choice, ordered[0], done) for choice in ordered[1:]]


def _beside(choice: Choice, best: Choice, done: list[Record]) -> Choice:
    to_best = _ratio(choice, best, done)
    return replace(choice, to_best=to_best, tied=to_best.low <= 1.0)


def _ratio(choice: Choice, other: Choice, done: list[Record]) -> Ratio:
    if choice.measured and other.measured:
        mine = _records_of(choice, done)
        theirs = _records_of(other, done)
        for record in mine:
            for partner in theirs:
                if partner.cell == record.cell:
                    return ratio(record, partner)
        return ratio(mine[0], theirs[0])
    return divide(choice.time, other.time)


def _records_of(choice: Choice, done: list[Record]) -> list[Record]:
    """The measurements of a choice at the requested length, newest first."""
    mine = [record for record in done if record.contestant == choice.contestant]
    return sorted(mine, key=lambda record: record.created, reverse=True)


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
