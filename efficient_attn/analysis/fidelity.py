"""Closing tables of fidelity and of swaps: how far from full attention, and what that costs."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from efficient_attn.analysis.select import (
    PATTERN_NAMES,
    contestants_in,
    length_of,
    pattern_of,
    relabel,
)
from efficient_attn.analysis.terminal import ABSENT, new_table, number
from efficient_attn.bench.intervals import mean_interval
from efficient_attn.bench.record import Record


def fidelity_tables(records: Iterable[Record]) -> list[Table]:
    """Contestants × lengths and standard deviations, one table for each workload besides.

    Cells are ‖out − full‖ / ‖full‖, mean ± half of the 95 % interval over draws.
    """
    tables = []
    for members in _groups(records, "fidelity", aside=("length", "scale")):
        table = new_table(f"relative error to full on random q, k, v — {_workload(members[0])}")
        found = {
            (record.contestant, length_of(record), float(record.request["scale"])): record
            for record in members
        }
        columns = sorted({place[1:] for place in found}, key=lambda place: (place[0], -place[1]))
        for length, scale in columns:
            table.add_column(Text(f"N={length}\nstd {scale:g}"), justify="right", overflow="fold")
        for name in contestants_in(members):
            cells = [_fidelity_cell(found.get((name, *column))) for column in columns]
            table.add_row(Text(name), *cells)
        tables.append(table)
    return tables


def swap_tables(records: Iterable[Record]) -> list[Table]:
    """One table for each task and fine-tune: what each contestant makes of the trained full model.

    Error: relative error of attention on the full model's own q, k, v, mean over layers and heads.
    Loss to full: against full after the same fine-tune, seed by seed, in the metric's own units;
    positive is worse whichever direction is better.
    """
    tables = []
    for members in _groups(records, "swap", aside=("seed",)):
        done = [record for record in members if record.ok]
        steps = members[0].request["finetune"]["steps"]
        task = members[0].request["task"]["name"]
        table = new_table(
            f"{task}, N={length_of(members[0])}: attention of a trained full model replaced, "
            "mean ± half of the 95 % interval over seeds"
        )
        metric = _metric(done)
        titles = ["error of\nattention", f"right after\n{metric}"]
        titles += [f"after {steps} steps\n{metric}", "loss to full\nso tuned"] if steps else []
        for title in titles:
            table.add_column(Text(title), justify="right", overflow="fold")
        for name in contestants_in(members):
            mine = [record for record in members if record.contestant == name]
            table.add_row(Text(name), *_swap_cells(mine, done)[: len(titles)])
        table.add_section()
        for name, value in _yardsticks(done).items():
            cells = ["", f"{value:.3f}", *[""] * (len(titles) - 2)]
            table.add_row(Text(f"({name})", style="dim"), *(Text(c, style="dim") for c in cells))
        tables.append(table)
    return tables


def _swap_cells(mine: Sequence[Record], done: Sequence[Record]) -> list[str]:
    ok = {record.request["seed"]: record for record in mine if record.ok}
    if not ok:
        return [mine[0].status] + [""] * 3
    tuned = _by_seed(ok.values(), "tuned")
    full = _by_seed((record for record in done if record.contestant == "full"), "tuned")
    sign = 1.0 if next(iter(ok.values())).result["higher_is_better"] else -1.0
    losses = [sign * (full[seed] - tuned[seed]) for seed in sorted(set(full) & set(tuned))]
    is_full = mine[0].contestant == "full"
    return [
        number(statistics.fmean(layer_error(record) for record in ok.values())),
        _mean(list(_by_seed(ok.values(), "swapped").values())),
        _mean(list(tuned.values())) if tuned else "diverged",
        ABSENT if is_full or not losses else _mean(losses, sign="+"),
    ]


def layer_error(record: Record) -> float:
    """Relative error of attention after a swap, mean over layers and heads."""
    layers = record.result["layers"]
    return statistics.fmean(error for layer in layers for error in layer["relative_error"])


def _yardsticks(done: Sequence[Record]) -> dict[str, float]:
    """The full model as it was trained, and trivial predictors; means over the records."""
    values: dict[str, list[float]] = defaultdict(list)
    for record in done:
        values["full, as trained"].append(record.result["before"])
        for name, value in sorted(record.result["baselines"].items()):
            values[name].append(float(value))
    return {name: statistics.fmean(found) for name, found in values.items()}


def _by_seed(records: Iterable[Record], name: str) -> dict[int, float]:
    return {
        record.request["seed"]: float(record.result[name])
        for record in records
        if record.result[name] is not None
    }


def _metric(done: Sequence[Record]) -> str:
    if not done:
        return ""
    result = done[0].result
    return f"{result['metric']} {'↑' if result['higher_is_better'] else '↓'}"


def _mean(values: Sequence[float], sign: str = "") -> str:
    interval = mean_interval(values)
    if not interval.known:
        return f"{interval.value:{sign}.3f} (1 seed)"
    return f"{interval.value:{sign}.3f} ± {interval.high - interval.value:.3f}"


def _fidelity_cell(record: Record | None) -> Text:
    if record is None:
        return Text(ABSENT, style="dim")
    if not record.ok:
        return Text(record.status, style="dim" if record.status == "unsupported" else "red")
    result = record.result
    error = number(result["relative_error"])
    if result["error_high"] is None:
        return Text(f"{error} (1 draw)")
    return Text(f"{error} ± {number(result['error_high'] - result['relative_error'])}")


def _workload(record: Record) -> str:
    asked = record.request
    parts = [
        PATTERN_NAMES[pattern_of(record)],
        f"batch {asked['batch']}",
        f"{asked['heads']} heads × {asked['head_dim']}",
        asked["dtype"],
    ]
    if asked["padding"]:
        parts.append(f"{asked['padding']:.0%} padding")
    if asked["key_length"] is not None:
        parts.append(f"{asked['key_length']} keys")
    return f"{', '.join(parts)}; {asked['draws']} draws"


def _groups(records: Iterable[Record], measure: str, aside: tuple[str, ...]) -> list[list[Record]]:
    """Records of a measure by what they were asked, `aside` excepted, the newest of each."""
    kept: dict[tuple[str, str], Record] = {}
    for record in relabel(record for record in records if record.measure == measure):
        place = (record.contestant, _text(record.request))
        if place not in kept or kept[place].created <= record.created:
            kept[place] = record
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in kept.values():
        asked = {name: value for name, value in record.request.items() if name not in aside}
        groups[_text(asked)].append(record)
    return [groups[asked] for asked in sorted(groups)]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
