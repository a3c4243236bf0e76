"""What the page is told: records as columns of plain data.

Rows name their contestant, group, status and so on by the number of an entry in a list, and floats
keep six significant digits: a hundred thousand records stay within a few megabytes.

    contestants   [name, variant, light colour, dark colour, marker, dashes]
    groups        {field: value}: pattern, pass and every field of `Setting`
    options, reasons, statuses, environments: what rows point at
    picker        see `evidence`
    costs         one list per column of `COLUMNS`, rows ordered by group, contestant and length
    crossovers    where a contestant becomes faster than full, in words
    others        [measure, what, contestant, status, reason, created] of every other record
    accuracy      tasks with their scores, as in `TaskScores`
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, get_args

from efficient_attn.analysis.accuracy import Score, TaskScores, task_scores
from efficient_attn.analysis.crossover import crossovers
from efficient_attn.analysis.ratios import Ratio, time_interval
from efficient_attn.analysis.roofline import roofline
from efficient_attn.analysis.scaling import peak_bytes
from efficient_attn.analysis.select import (
    PASS_NAMES,
    PATTERN_NAMES,
    Setting,
    contestant_order,
    costs,
    length_of,
    newest,
    pass_of,
    pattern_of,
)
from efficient_attn.bench.intervals import Interval
from efficient_attn.bench.record import Record
from efficient_attn.bench.workload import PASSES, PATTERNS, Dtype
from efficient_attn.plots.report.environments import circumstances, environments_of, seconds, short
from efficient_attn.plots.report.evidence import evidence
from efficient_attn.plots.report.rounds import Rounds
from efficient_attn.plots.style import dark, style_of

COLUMNS = (
    "contestant",
    "group",
    "length",
    "status",
    "median",  # ms, with the ends of its 95 % interval, null where they are unknown
    "low",
    "high",
    "ratio",  # of its time to full's, likewise
    "ratio_low",
    "ratio_high",
    "paired",  # 1 where that ratio was formed round by round
    "ties",  # rows than which it is not shown to be slower, as distances from its own, or null
    "noisy",
    "memory",  # bytes
    "resident",  # 1 where these are the resident set, since tensor bytes are unknown
    "flops",
    "share",  # of the machine's peak, 0 to 1 (above 1 in caches)
    "options",
    "reason",
    "entrant",  # of the picker's, null where it is not to be picked
    "environment",
    "created",  # seconds since 1970
)

_MEASURED = (
    *("median", "low", "high", "ratio", "ratio_low", "ratio_high", "paired"),
    *("noisy", "memory", "resident", "flops", "share"),
)

_DTYPES = get_args(Dtype)

Group = tuple[Setting, str, str]


class _Numbers:
    """Entries of a list by the order in which they are first asked for."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.entries: list[Any] = []

    def of(self, key: str, entry: Any = None) -> int:
        if key not in self.places:
            self.places[key] = len(self.entries)
            self.entries.append(key if entry is None else entry)
        return self.places[key]


def payload(records: Iterable[Record]) -> dict[str, Any]:
    """Everything the page shows, fit for JSON.

    Of cost records that answer the same question the newest is told; `superseded` counts the rest.
    """
    records = list(records)
    runs = costs(records)
    rows = newest(runs)
    groups, names = _groups(rows), _contestants(rows)
    rows.sort(key=lambda row: (groups[_group(row)][0], names[row.contestant], length_of(row)))
    tasks = task_scores(records)
    picker, entrants = evidence(records, tasks)
    beside = Rounds(runs, rows)
    environments = environments_of(records)
    tables = {name: _Numbers() for name in ("options", "reasons", "statuses")}
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for place, record in enumerate(rows):
        cells = {
            "contestant": names[record.contestant],
            "group": groups[_group(record)][0],
            "length": length_of(record),
            "status": tables["statuses"].of(record.status),
            "options": tables["options"].of(json.dumps(record.options, sort_keys=True)),
            "reason": tables["reasons"].of(record.reason) if record.reason else None,
            "entrant": entrants.get(record.key),
            "environment": environments[circumstances(record)]["number"],
            "created": seconds(record.created),
            "ties": _steps(place, beside.ties(place)) if record.key in entrants else None,
            **_results(record, beside.to_full(place)),
        }
        for name in COLUMNS:
            columns[name].append(cells[name])
    keys = {record.key: place for place, record in enumerate(rows)}
    for ground in picker["grounds"]:
        for entrant in ground["entrants"]:
            entrant["first"] = keys.get(entrant["first"])
    return {
        "measures": dict(Counter(record.measure for record in records)),
        "superseded": len(runs) - len(rows),
        "contestants": _looks(rows, tasks),
        "groups": [fields for _, fields in groups.values()],
        **{name: numbers.entries for name, numbers in tables.items()},
        "environments": list(environments.values()),
        "costs": columns,
        "picker": picker,
        "crossovers": [
            {
                "group": groups[found.setting, found.pattern, found.pass_][0],
                "contestant": found.contestant,
                "text": str(found),
            }
            for found in crossovers(rows)
        ],
        "others": [_other(record) for record in records if record.measure != "cost"],
        "accuracy": [_task(task) for task in tasks],
        "names": {"pattern": PATTERN_NAMES, "pass": PASS_NAMES},
    }


def _group(record: Record) -> Group:
    return Setting.of(record), pattern_of(record), pass_of(record)


def _groups(rows: list[Record]) -> dict[Group, tuple[int, dict[str, Any]]]:
    """Number and fields of each group, the one with most records first."""
    sizes = Counter(map(_group, rows))

    def place(group: Group) -> tuple[Any, ...]:
        setting, pattern, pass_ = group
        usual = _DTYPES.index(setting.dtype)
        return -sizes[group], usual, PATTERNS.index(pattern), PASSES.index(pass_), str(setting)

    return {
        group: (number, {"pattern": group[1], "pass": group[2], **asdict(group[0])})
        for number, group in enumerate(sorted(sizes, key=place))
    }


def _contestants(rows: list[Record]) -> dict[str, int]:
    names = sorted({row.contestant for row in rows}, key=contestant_order)
    return {name: number for number, name in enumerate(names)}


def _looks(rows: list[Record], tasks: list[TaskScores]) -> list[list[Any]]:
    """Contestants of the cost records in their order, then those that only tasks know."""
    variants = {score.contestant: score.variant for task in tasks for score in task.scores}
    order = list(_contestants(rows))
    order += sorted(set(variants) - set(order), key=contestant_order)
    variants |= {row.contestant: row.variant for row in rows}
    looks = []
    for name in order:
        look = style_of(name, variants[name])
        dashes = [] if look.linestyle == "-" else list(look.linestyle[1])
        looks.append([name, variants[name], look.color, dark(look.color), look.marker, dashes])
    return looks


def _results(record: Record, to_full: Ratio | None) -> dict[str, Any]:
    if not record.ok:
        return dict.fromkeys(_MEASURED)
    reached = roofline(record)
    flops = record.result["flops"]
    return {
        **_interval("median", "low", "high", time_interval(record)),
        **_interval("ratio", "ratio_low", "ratio_high", to_full),
        "paired": int(to_full.paired) if to_full else None,
        "noisy": int(record.result["noisy"]),
        "memory": peak_bytes(record),
        "resident": int(record.result["peak_tensor_bytes"] is None),
        "flops": None if flops is None else short(flops),
        "share": None if reached is None else short(reached.share),
    }


def _steps(place: int, others: list[int] | None) -> list[int] | None:
    return None if others is None else [other - place for other in others]


def _interval(value: str, low: str, high: str, interval: Interval | None) -> dict[str, Any]:
    if interval is None:
        return {value: None, low: None, high: None}
    return {
        value: short(interval.value),
        low: short(interval.low),
        high: short(interval.high),
    }


def _other(record: Record) -> list[Any]:
    task = record.request.get("task") or {}
    what = f"{task.get('name', '')}, seed {record.request.get('seed', 0)}".removeprefix(", ")
    return [
        record.measure,
        what,
        record.contestant,
        record.status,
        record.reason,
        seconds(record.created),
    ]


def _task(task: TaskScores) -> dict[str, Any]:
    return {
        "label": task.label,
        "name": task.name,
        "length": task.length,
        "pattern": task.pattern,
        "capability": task.capability,
        "metric": task.metric,
        "direction": task.direction,
        "higher": task.higher_is_better,
        "baselines": {name: short(value) for name, value in task.baselines.items()},
        "scores": [_score(score) for score in task.scores],
    }


def _score(score: Score) -> dict[str, Any]:
    return {
        "contestant": score.contestant,
        "variant": score.variant,
        "options": score.options,
        "status": score.status,
        "reason": score.reason,
        "failures": score.failures,
        "value": _ends(score.value),
        "seeds": [short(value) for value in score.by_seed.values()],
        "price": _ends(score.price),
        "seconds": None if score.train_seconds is None else short(score.train_seconds),
        "parameters": score.parameters,
        "details": {
            use: {name: short(value) for name, value in figures.items()}
            for use, figures in score.details.items()
        },
    }


def _ends(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    return [short(interval.value), short(interval.low), short(interval.high)]
