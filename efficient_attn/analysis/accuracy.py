"""Accuracy records by task and contestant: means over seeds, baselines, the price against full."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from efficient_attn.analysis.select import (
    NO_MIXING,
    asked,
    contestant_order,
    entry_name,
    length_of,
    pattern_of,
    relabel,
)
from efficient_attn.bench.intervals import Interval, mean_interval
from efficient_attn.bench.record import Record


@dataclass(frozen=True)
class Score:
    """What one contestant reached on one task.

    value: mean over the seeds that finished with Student's interval; None when none finished.
    by_seed: the metric of each seed that finished.
    failures: how many seeds ended with each other status; `reason` is that of one of them.
    price: how much worse than `full` in the metric's own units (positive is worse, whichever
        direction is better), seed by seed where seeds are shared; None for full and without it.
    train_seconds: median over seeds.
    details: further figures for each way of using the model, mean over the seeds.
    learning_rates: the rate that validation picked, by seed; rates_tried: all of them.
    peak_tensor_bytes, peak_rss_bytes: of one update and of all the training, median over the seeds
        where known.
    """

    contestant: str
    variant: str
    options: dict[str, Any]
    value: Interval | None
    by_seed: dict[int, float]
    failures: dict[str, int]
    reason: str | None
    price: Interval | None
    train_seconds: float | None
    parameters: int | None
    details: dict[str, dict[str, float]] = field(default_factory=dict)
    learning_rates: dict[int, float] = field(default_factory=dict)
    rates_tried: tuple[float, ...] = ()
    peak_tensor_bytes: float | None = None
    peak_rss_bytes: float | None = None

    @property
    def at_edge(self) -> int:
        """How many seeds picked the lowest or highest of several rates: a better one may lie
        beyond."""
        if len(self.rates_tried) < 2:
            return 0
        ends = min(self.rates_tried), max(self.rates_tried)
        return sum(rate in ends for rate in self.learning_rates.values())

    @property
    def status(self) -> str:
        """``ok`` as soon as one seed finished, else what most seeds ended with."""
        if self.value is not None:
            return "ok"
        return max(self.failures, key=lambda status: (self.failures[status], status))


@dataclass(frozen=True)
class TaskScores:
    """One task in one setting (sizes, model, training) with every contestant's score.

    label: the task's name, with whatever tells it from the other tasks shown beside it.
    baselines: metric of trivial predictors, mean over the records.
    scores: of the variants. controls: of the trained baseline, `select.NO_MIXING`.
    capability: what of attention the task asks for; None in records that do not tell.
    """

    name: str
    label: str
    length: int
    pattern: str
    metric: str
    higher_is_better: bool
    baselines: dict[str, float]
    scores: tuple[Score, ...]
    controls: tuple[Score, ...] = ()
    capability: str | None = None

    def of(self, contestant: str) -> Score | None:
        everyone = (*self.scores, *self.controls)
        return next((score for score in everyone if score.contestant == contestant), None)

    @property
    def references(self) -> dict[str, float]:
        """Trivial predictors and the trained baseline: what a score is held against."""
        trained = {score.contestant: score.value.value for score in self.controls if score.value}
        return {**self.baselines, **trained}

    @property
    def direction(self) -> str:
        return "higher is better" if self.higher_is_better else "lower is better"


def task_scores(records: Iterable[Record]) -> list[TaskScores]:
    """Scores of every task and setting in the records, by task name and length."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in _newest(relabel(record for record in records if record.measure == "accuracy")):
        groups[_setting(record)].append(record)
    members = sorted(groups.values(), key=lambda group: (_name(group[0]), length_of(group[0])))
    labels = _labels([group[0] for group in members])
    return [_scores(label, group) for label, group in zip(labels, members, strict=True)]


def _scores(label: str, records: list[Record]) -> TaskScores:
    finished = [record for record in records if record.ok]
    first = records[0]
    result = finished[0].result if finished else {}
    higher = bool(result.get("higher_is_better", True))
    by_contestant: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_contestant[record.contestant].append(record)
    full = _by_seed(by_contestant.get("full", []))
    names = sorted(by_contestant, key=contestant_order)
    scores = [_score(name, by_contestant[name], full, higher) for name in names]
    return TaskScores(
        name=_name(first),
        label=label,
        length=length_of(first),
        pattern=pattern_of(first),
        metric=str(result.get("metric", first.request["task"].get("metric", "metric"))),
        higher_is_better=higher,
        baselines=_baselines(finished),
        scores=tuple(one for one in scores if entry_name(one.contestant) != NO_MIXING),
        controls=tuple(one for one in scores if entry_name(one.contestant) == NO_MIXING),
        capability=next(filter(None, (r.request["task"].get("capability") for r in records)), None),
    )


def _score(name: str, records: list[Record], full: Mapping[int, float], higher: bool) -> Score:
    by_seed = _by_seed(records)
    finished = [record for record in records if record.ok]
    failed = [record for record in records if not record.ok]
    failures: dict[str, int] = defaultdict(int)
    for record in failed:
        failures[record.status] += 1
    example = finished[0] if finished else records[0]
    return Score(
        contestant=name,
        variant=example.variant,
        options=example.options,
        value=mean_interval(list(by_seed.values())) if by_seed else None,
        by_seed=by_seed,
        failures=dict(failures),
        reason=failed[0].reason if failed else None,
        price=None if name == "full" else loss_against(full, by_seed, higher_is_better=higher),
        train_seconds=(
            statistics.median(float(record.result["train_seconds"]) for record in finished)
            if finished
            else None
        ),
        parameters=int(example.result["parameters"]) if finished else None,
        details=_details(finished),
        learning_rates={seed_of(r): float(r.result["learning_rate"]) for r in finished},
        rates_tried=tuple(
            sorted({float(t["learning_rate"]) for r in finished for t in r.result["trials"]})
        ),
        peak_tensor_bytes=_median(finished, "peak_tensor_bytes"),
        peak_rss_bytes=_median(finished, "peak_rss_bytes"),
    )


def _median(records: Iterable[Record], name: str) -> float | None:
    """Over the records that know it; None when none does."""
    known = [value for record in records if (value := record.result.get(name)) is not None]
    return statistics.median(known) if known else None


def _details(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    """By name, 4 before 10."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for use, figures in record.result.get("details", {}).items():
            for name, value in figures.items():
                found.setdefault(use, {}).setdefault(name, []).append(float(value))
    return {
        use: {name: statistics.fmean(values) for name, values in figures.items()}
        for use, figures in sorted(found.items(), key=lambda item: _by_number(item[0]))
    }


def _by_number(name: str) -> list[tuple[str, int]]:
    return [(text, int(part or 0)) for text, part in re.findall(r"(\D*)(\d*)", name)]


def loss_against(
    best: Mapping[int, float], mine: Mapping[int, float], *, higher_is_better: bool
) -> Interval | None:
    """How much worse than `best`: paired by seed where two or more are shared, else of the means.

    None where one of them has no score.
    """
    if not mine or not best:
        return None
    sign = 1.0 if higher_is_better else -1.0
    shared = sorted(set(mine) & set(best))
    if len(shared) >= 2:
        return mean_interval([sign * (best[seed] - mine[seed]) for seed in shared])
    one, other = mean_interval(list(best.values())), mean_interval(list(mine.values()))
    reach = math.hypot(one.high - one.value, other.high - other.value)
    value = sign * (one.value - other.value)
    known = 0.0 if math.isinf(reach) else min(one.confidence, other.confidence)
    return Interval(value, value - reach, value + reach, min(one.n, other.n), known)


def _by_seed(records: Iterable[Record]) -> dict[int, float]:
    found = {seed_of(record): float(record.result["value"]) for record in records if record.ok}
    return dict(sorted(found.items()))


def seed_of(record: Record) -> int:
    return int(record.request.get("seed") or 0)


def _baselines(records: list[Record]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, value in record.result["baselines"].items():
            values[name].append(float(value))
    return {name: statistics.fmean(found) for name, found in sorted(values.items())}


def _newest(records: Iterable[Record]) -> list[Record]:
    kept: dict[tuple[str, str, int], Record] = {}
    for record in records:
        place = (record.contestant, _setting(record), seed_of(record))
        if place not in kept or kept[place].created <= record.created:
            kept[place] = record
    return list(kept.values())


def _name(record: Record) -> str:
    return str(record.request["task"]["name"])


def _setting(record: Record) -> str:
    return json.dumps(_fields(record), sort_keys=True, default=str)


def _fields(record: Record) -> dict[str, Any]:
    """The request flattened one level: ``task.length``, ``model.d_model``."""
    flat: dict[str, Any] = {}
    for group, values in asked(record).items():
        if isinstance(values, Mapping):
            flat.update({f"{group}.{name}": value for name, value in values.items()})
        else:
            flat[group] = values
    return flat


def _labels(examples: list[Record]) -> list[str]:
    """Task names; settings of one task carry their length, or else all fields that differ."""
    return [_label(example, examples) for example in examples]


def _label(example: Record, examples: list[Record]) -> str:
    twins = [other for other in examples if _name(other) == _name(example)]
    if len(twins) == 1:
        return _name(example)
    if len({length_of(twin) for twin in twins}) == len(twins):
        return f"{_name(example)} (N={length_of(example)})"
    fields = _fields(example)
    others = [_fields(twin) for twin in twins]
    shown = [
        f"{_short(name)}={value}"
        for name, value in sorted(fields.items())
        if any(other.get(name) != value for other in others)
    ]
    return f"{_name(example)} ({', '.join(shown)})"


def _short(name: str) -> str:
    return "N" if name == "task.length" else name.removeprefix("task.")
