"""How long a sweep may take: predicted from its settings and earlier records, never measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from efficient_attn.bench.accuracy_cell import AccuracyCell
from efficient_attn.bench.cell import Cell, Contestant
from efficient_attn.bench.cost_cell import CostCell
from efficient_attn.bench.record import Record

START_S = 0.4
"""Per contestant: starting its process, building the module, and the untimed pass for memory."""

_SURROUNDINGS = ("seed", "max_len", "grid")


@dataclass(frozen=True)
class Estimate:
    """seconds: None when nothing is known. source: what it is predicted from."""

    seconds: float | None
    source: str


def estimate(cell: Cell, contestants: Sequence[Contestant], earlier: Iterable[Record]) -> Estimate:
    """Time that a cell may take for these contestants, given what was measured before.

    earlier: records of any folder. Rather too long than too short: samples end earlier where they
    agree before the budget is spent.
    """
    if not contestants:
        return Estimate(0.0, "complete")
    if isinstance(cell, CostCell):
        return _cost(cell, contestants, [record for record in earlier if record.ok])
    if isinstance(cell, AccuracyCell) and cell.measure == "accuracy":
        return _accuracy(cell, contestants, [record for record in earlier if record.ok])
    return Estimate(None, "unknown")


def _cost(cell: CostCell, contestants: Sequence[Contestant], earlier: list[Record]) -> Estimate:
    if cell.workload.contradiction:
        return Estimate(0.0, "unsupported")
    how = cell.how
    calls = [_call_ms(cell, one, earlier) for one in contestants]
    known = sum(call is not None for call in calls)
    round_s = sum(max(how.sample_ms, call or 0.0) for call in calls) / 1e3
    race = min(max(how.budget_s, how.min_rounds * round_s), how.max_rounds * round_s)
    start = sum(START_S + how.warm_up_s + 2 * (call or 0.0) / 1e3 for call in calls)
    source = "settings"
    if known:
        source += f" and records of {known} of {len(calls)} contestants"
    return Estimate(start + race, source)


def _call_ms(cell: CostCell, contestant: Contestant, earlier: list[Record]) -> float | None:
    """Time of one pass, scaled from the nearest length measured; None without such a record.

    Along the slope of the two lengths nearest; from a single one by n² to longer sequences and by
    n to shorter ones.
    """
    asked = _question(cell.request)
    points: dict[int, list[float]] = {}
    for record in earlier:
        same = record.measure == "cost" and _question(record.request) == asked
        if same and _answers(record, contestant):
            points.setdefault(record.request["length"], []).append(record.result["median_ms"])
    if not points:
        return None
    length = cell.workload.length
    near = sorted(points, key=lambda known: abs(math.log(known / length)))
    nearest = median(points[near[0]])
    if len(near) > 1:
        grown = math.log(median(points[near[1]]) / nearest)
        slope = max(0.0, grown / math.log(near[1] / near[0]))
    else:
        slope = 2.0 if length > near[0] else 1.0
    return nearest * (length / near[0]) ** slope


def _accuracy(
    cell: AccuracyCell, contestants: Sequence[Contestant], earlier: list[Record]
) -> Estimate:
    """Longest training first, as many side by side as the cell runs."""
    seconds = [_training_s(cell, one, earlier) for one in contestants]
    known = [value for value in seconds if value is not None]
    if len(known) < len(seconds):
        return Estimate(None, f"unknown: no record of {len(seconds) - len(known)} contestants")
    return Estimate(
        max(max(known), sum(known) / cell.at_once), f"records of {len(known)} contestants"
    )


def _training_s(cell: AccuracyCell, contestant: Contestant, earlier: list[Record]) -> float | None:
    """Time of all learning rates, by that of the picked one with as many steps."""
    task, training = cell.request["task"], cell.request["training"]
    times = [
        record.result["train_seconds"] * training["steps"] / record.result["steps"]
        for record in earlier
        if record.measure == "accuracy"
        and _answers(record, contestant)
        and record.request["task"].get("name") == task["name"]
        and record.request["task"].get("length") == task.get("length")
        and record.request.get("model") == cell.request["model"]
    ]
    return median(times) * len(training["learning_rates"]) if times else None


def _question(request: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in request.items() if name not in ("length", "seed")}


def _answers(record: Record, contestant: Contestant) -> bool:
    """Whether the record is of this variant with these options, what the workload sets aside."""
    return record.variant == contestant.variant and all(
        record.options.get(name) == value
        for name, value in contestant.options.items()
        if name not in _SURROUNDINGS and value is not None
    )
