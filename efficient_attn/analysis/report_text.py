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
from efficient_attn.analysis.fidelity import fidelity_tables, swap_tables
from efficient_attn.analysis.growth_text import crossover_table, slopes_table
from efficient_attn.analysis.ranking_text import print_ranking
from efficient_attn.analysis.ratios import time_interval
from efficient_attn.analysis.roofline import roofline
from efficient_attn.analysis.scaling import peak_bytes
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
    """Slopes and classes with what looks implausible, then the crossovers with full."""
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
    """All tables of a sweep: cost of every pattern, accuracy, fidelity, swaps, and every failure.

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
    parts += fidelity_tables(records)
    parts += swap_tables(records)
    parts += _failures(records)
    return Group(*parts) if parts else Text("no records")


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


def _failures(records: list[Record]) -> list[RenderableType]:
    """One line per contestant, status and reason, with where it happened."""
    places: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for record in newest(costs(records)):
        if not record.ok:
            where = f"{PATTERN_NAMES[pattern_of(record)]}, {PASS_NAMES[pass_of(record)]}"
            key = (record.contestant, record.status, record.reason or "")
            places[key].append(f"{where}, N={length_of(record)}")
    for record in records:
        if record.measure != "cost" and not record.ok:
            key = (record.contestant, record.status, record.reason or "")
            places[key].append(_place(record))
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


def _place(record: Record) -> str:
    """Where a record that is none of cost failed."""
    if "task" in record.request:
        return f"{record.request['task']['name']}, seed {record.request.get('seed')}"
    return f"{PATTERN_NAMES[pattern_of(record)]}, N={length_of(record)}"
