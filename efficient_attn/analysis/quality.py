"""What accuracy costs: scores of one variant over its own knob (window, features, k)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from efficient_attn.analysis.accuracy import Score, TaskScores, task_scores
from efficient_attn.analysis.select import NO_MIXING, SURROUNDINGS, contestant_order, entry_name
from efficient_attn.bench.record import Record


@dataclass(frozen=True)
class KnobLine:
    """The scores of one entry, by rising value of its knob.

    knob: the one option in which they differ; None for a single score, and where several options
    differ or their values are no numbers. values: of the knob; a pair counts as its sum.
    """

    name: str
    variant: str
    scores: tuple[Score, ...]
    knob: str | None
    values: tuple[float, ...]


@dataclass(frozen=True)
class TaskQuality:
    """A task with every entry that finished. baselines: the task's, and a model without mixing."""

    task: TaskScores
    lines: tuple[KnobLine, ...]
    baselines: dict[str, float]


def task_qualities(records: Iterable[Record]) -> list[TaskQuality]:
    """Every task on which something finished."""
    found = []
    for task in task_scores(records):
        entries: dict[str, list[Score]] = defaultdict(list)
        for score in task.scores:
            if score.value is not None:
                entries[entry_name(score.contestant)].append(score)
        baselines = dict(task.baselines)
        for score in task.controls:
            if score.value is not None:
                baselines[NO_MIXING] = score.value.value
        if entries:
            names = sorted(entries, key=contestant_order)
            lines = tuple(_line(name, entries[name]) for name in names)
            found.append(TaskQuality(task, lines, baselines))
    return found


def _line(name: str, scores: Sequence[Score]) -> KnobLine:
    differing = _differing([score.options for score in scores])
    if len(differing) == 1:
        pairs = [(_number(score.options[differing[0]]), score) for score in scores]
        known = sorted(
            ((value, score) for value, score in pairs if value is not None),
            key=lambda pair: pair[0],
        )
        if len(known) == len(pairs):
            values, ordered = zip(*known, strict=True)
            return KnobLine(name, scores[0].variant, ordered, differing[0], values)
    return KnobLine(name, scores[0].variant, tuple(scores), None, ())


def _differing(options: Sequence[dict[str, Any]]) -> list[str]:
    shared = set.intersection(*(set(one) for one in options)) - SURROUNDINGS
    return sorted(name for name in shared if len({json.dumps(one[name]) for one in options}) > 1)


def _number(value: Any) -> float | None:
    parts = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(part, (int, float)) for part in parts):
        return None
    return float(sum(parts))
