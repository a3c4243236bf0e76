"""What the terminal shows: the closing tables of a sweep, the slopes, a ranking.

Functions named ``*_table`` return something rich can print; ``print_*`` print it. Outside a
terminal the text is plain and as wide as it needs, so that no name is cut or folded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TextIO

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from efficient_attn.analysis.accuracy import task_scores
from efficient_attn.analysis.accuracy_text import accuracy_parts
from efficient_attn.analysis.crossover import crossovers
from efficient_attn.analysis.ranking_text import print_ranking
from efficient_attn.analysis.ratios import time_interval
from efficient_attn.analysis.roofline import roofline
from efficient_attn.analysis.scaling import (
    MIN_LENGTHS,
    Curve,
    fit_scaling,
    memory_curve,
    peak_bytes,
    time_curve,
    top_slope,
)
from efficient_attn.analysis.select import (
    PASS_NAMES,
    PATTERN_NAMES,
    by_setting,
    contestants_in,
    costs,
    length_of,
    newest,
    pass_of,
    passes_in,
    pattern_of,
    patterns_in,
    relabel,
    setting_names,
)
from efficient_attn.analysis.terminal import (
    ABSENT,
    MIB,
    console,
    new_table,
    number,
    number_column,
)
from efficient_attn.bench.intervals import Interval
from efficient_attn.bench.record import Record

__all__ = [
    "closing_table",
    "crossover_table",
    "print_closing",
    "print_ranking",
    "print_slopes",
    "slopes_table",
]


def print_closing(records: Iterable[Record], file: TextIO | None = None) -> None:
    console(file).print(closing_table(records))


def print_slopes(records: Iterable[Record], file: TextIO | None = None) -> None:
    """Slopes and classes, then the crossovers with full."""
    records = list(records)
    out = console(file)
    out.print(slopes_table(records))
    out.print(crossover_table(records))


def print_samples(records: Iterable[Record], file: TextIO | None = None) -> None:
    """What the models wrote, one text for each contestant and task."""
    out = console(file)
    texts: dict[str, str] = {}
    for record in relabel(records):
        if record.result.get("sample"):
            title = f"{record.request['task']['name']} by {record.contestant}"
            texts.setdefault(title, record.result["sample"])
    for title, text in texts.items():
        out.print(f"--- {title}\n{text}\n", markup=False)


def closing_table(records: Iterable[Record]) -> RenderableType:
    """All tables of a sweep: cost of every pattern, accuracy, and every failure with its reason.

    Cost: contestants × lengths, medians of each pass, peak memory, decoding state and how near the
    machine's limit a pass ran; what failed shows its status in its place, ``~`` marks a median
    that missed its target precision, ``·`` what was not asked. Accuracy: mean ± half of the 95 %
    interval over seeds, above the baselines, what training took, and who ties.
    """
    records = list(records)
    parts: list[RenderableType] = []
    groups = by_setting(records)
    names = setting_names(groups)
    for setting, members in groups.items():
        for pattern in patterns_in(members):
            here = [record for record in members if pattern_of(record) == pattern]
            parts += _cost_tables(here, f"{PATTERN_NAMES[pattern]}; {names[setting]}")
    tasks = task_scores(records)
    if tasks:
        parts += accuracy_parts(tasks)
    parts += _failures(records)
    return Group(*parts) if parts else Text("no records")


def slopes_table(records: Iterable[Record]) -> RenderableType:
    """Log-log slope over the top two octaves with its interval, and the fitted class.

    A slope of 1 doubles the cost when the length doubles, 2 quadruples it.
    """
    parts: list[RenderableType] = []
    groups = by_setting(records)
    names = setting_names(groups)
    for setting, members in groups.items():
        table = new_table(f"growth with length; {names[setting]}")
        for title in ("pattern", "quantity"):
            table.add_column(title, no_wrap=True)
        for title in ("slope", "95 %", "class", "lengths"):
            number_column(table, title)
        for pattern in patterns_in(members):
            for pass_ in passes_in(members):
                here = [r for r in members if (pattern_of(r), pass_of(r)) == (pattern, pass_)]
                _slope_rows(table, here, PATTERN_NAMES[pattern], PASS_NAMES[pass_])
        if table.row_count:
            parts.append(table)
    return (
        Group(*parts)
        if parts
        else Text("no slopes: they take two measured lengths at most two octaves apart")
    )


def crossover_table(records: Iterable[Record]) -> RenderableType:
    """From which length on each contestant is faster than full, with the interval's ends."""
    table = new_table("faster than full from which length on")
    for title in ("pattern", "pass", "crossover", "setting"):
        table.add_column(title, overflow="fold")
    crossings = crossovers(records)
    names = setting_names(dict.fromkeys(found.setting for found in crossings))
    for found in crossings:
        place = str(found) + ("" if found.paired else " (unpaired)")
        where = PATTERN_NAMES[found.pattern], PASS_NAMES[found.pass_]
        table.add_row(Text(found.contestant), *where, place, Text(names[found.setting]))
    return table if table.row_count else Text("no length was measured for full and another")


def _cost_tables(records: list[Record], where: str) -> list[RenderableType]:
    """Time of every pass, then whatever else is known of any record of the pass."""
    lengths = sorted({length_of(record) for record in records})
    tables: list[RenderableType] = []
    for title, cell in _QUANTITIES.items():
        for pass_ in passes_in(records):
            taken = [record for record in records if pass_of(record) == pass_]
            if cell is _time or any(record.ok and cell(record) is not None for record in taken):
                tables.append(_grid(taken, lengths, f"{PASS_NAMES[pass_]} {title} — {where}", cell))
    return tables


def _grid(
    records: list[Record], lengths: list[int], title: str, cell: Callable[[Record], str | None]
) -> Table:
    table = new_table(title)
    for length in lengths:
        number_column(table, f"N={length}")
    found = {(record.contestant, length_of(record)): record for record in records}
    for name in contestants_in(records):
        cells = [_cost_cell(found.get((name, length)), cell) for length in lengths]
        table.add_row(Text(name), *cells)
    return table


def _cost_cell(record: Record | None, cell: Callable[[Record], str | None]) -> Text:
    if record is None:
        return Text(ABSENT, style="dim")
    if not record.ok:
        return Text(record.status, style="dim" if record.status == "unsupported" else "red")
    return Text(cell(record) or "unknown")


def _time(record: Record) -> str:
    return ("~" if record.result["noisy"] else "") + number(time_interval(record).value)


def _memory(record: Record) -> str | None:
    peak = peak_bytes(record)
    return None if peak is None else number(peak / MIB)


def _state(record: Record) -> str | None:
    size = record.result["state_bytes"]
    return None if size is None else number(size / MIB)


def _limit(record: Record) -> str | None:
    found = roofline(record)
    return None if found is None else f"{found.share:.0%} {found.bound[0]}"


_QUANTITIES: dict[str, Callable[[Record], str | None]] = {
    "time, median ms": _time,
    "peak memory, MiB": _memory,
    "state, MiB": _state,
    "share of the machine's limit in arithmetic (c) or memory (m)": _limit,
}


def _slope_rows(table: Table, records: list[Record], pattern: str, pass_: str) -> None:
    for name in contestants_in(records):
        mine = [record for record in records if record.contestant == name]
        curves = {f"{pass_} time": time_curve(mine), f"{pass_} memory": memory_curve(mine)}
        for quantity, curve in curves.items():
            slope = top_slope(curve) if curve.lengths else None
            if slope is not None:
                table.add_row(Text(name), pattern, quantity, *_slope_cells(curve, slope))


def _slope_cells(curve: Curve, slope: Interval) -> list[str]:
    exact = slope.confidence == 1.0
    ends = "exact" if exact else f"{slope.low:.2f} to {slope.high:.2f}" if slope.known else "?"
    count = len(curve.lengths)
    fitted = fit_scaling(curve).name if count >= MIN_LENGTHS else "too few lengths"
    return [f"{slope.value:.2f}", ends, fitted, f"{count} up to {curve.lengths[-1]}"]


def _failures(records: list[Record]) -> list[RenderableType]:
    """One line per contestant, status and reason, with where it happened."""
    places: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for record in newest(costs(records)):
        if not record.ok:
            where = f"{PATTERN_NAMES[pattern_of(record)]}, {PASS_NAMES[pass_of(record)]}"
            key = (record.contestant, record.status, record.reason or "")
            places[key].append(f"{where}, N={length_of(record)}")
    for record in records:
        if record.measure == "accuracy" and not record.ok:
            task, seed = record.request["task"]["name"], record.request.get("seed")
            key = (record.contestant, record.status, record.reason or "")
            places[key].append(f"{task}, seed {seed}")
    if not places:
        return []
    table = new_table("not measured, and why")
    for title in ("status", "where", "reason"):
        table.add_column(title, overflow="fold")
    for (name, status, reason), found in sorted(places.items()):
        unique = list(dict.fromkeys(found))
        where = "; ".join(unique) if len(unique) <= 2 else f"{unique[0]} and {len(unique) - 1} more"
        table.add_row(Text(name), Text(status), Text(where), Text(reason))
    return [table]
