"""What the terminal shows: the closing tables of a sweep, the slopes, a ranking.

Functions named ``*_table`` return something rich can print; ``print_*`` print it. Outside a
terminal the text is plain and as wide as it needs, so that no name is cut or folded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TextIO

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from efficient_attn.analysis.accuracy import Score, TaskScores, task_scores
from efficient_attn.analysis.growth_text import crossover_table, slopes_table
from efficient_attn.analysis.ranking_text import print_ranking
from efficient_attn.analysis.ratios import time_interval
from efficient_attn.analysis.roofline import roofline
from efficient_attn.analysis.scaling import peak_bytes
from efficient_attn.analysis.select import (
    PASS_NAMES,
    PATTERN_NAMES,
    by_setting,
    contestant_order,
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
from efficient_attn.analysis.terminal import ABSENT, MIB, console, number
from efficient_attn.bench.record import Record

__all__ = [
    "accuracy_table",
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
    """All tables of a sweep: cost of every pattern, accuracy, and every failure with its reason.

    Cost: contestants × lengths, medians of each pass, peak memory, decoding state and how near the
    machine's limit a pass ran; what failed shows its status in its place, ``~`` marks a median
    that missed its target precision, ``·`` what was not asked. Accuracy: mean ± half of the 95 %
    interval over seeds, above the baselines.
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
        parts.append(accuracy_table(tasks))
        parts += [details_table(task) for task in tasks if any(s.details for s in task.scores)]
    parts += _failures(records)
    return Group(*parts) if parts else Text("no records")


def accuracy_table(tasks: list[TaskScores]) -> Table:
    """Contestants × tasks, then the baselines of each task."""
    table = _table("accuracy: mean ± half of the 95 % interval over seeds")
    for task in tasks:
        arrow = "↑" if task.higher_is_better else "↓"
        _number_column(table, f"{task.label}\n{task.metric} {arrow}")
    for name in _contestants(tasks):
        row = [task.of(name) for task in tasks]
        table.add_row(Text(name), *(Text(_score_cell(score)) for score in row))
    table.add_section()
    for name in sorted({name for task in tasks for name in task.baselines}):
        cells = [_plain(task.baselines.get(name)) for task in tasks]
        table.add_row(Text(f"({name})", style="dim"), *(Text(cell, style="dim") for cell in cells))
    return table


def details_table(task: TaskScores) -> Table:
    """Contestants and the ways their models were used × further figures of one task."""
    table = _table(f"{task.label}: test split in detail, mean over seeds")
    table.add_column("decoding")
    uses = [
        (score.contestant, use, figures)
        for score in task.scores
        for use, figures in score.details.items()
    ]
    columns = list(dict.fromkeys(name for _, _, figures in uses for name in figures))
    for name in columns:
        _number_column(table, name)
    for contestant, use, figures in uses:
        table.add_row(Text(contestant), use, *(_plain(figures.get(name)) for name in columns))
    return table


def _contestants(tasks: list[TaskScores]) -> list[str]:
    """Every contestant of the tasks once, in the order in which tables list them."""
    names: dict[str, None] = {}
    for task in tasks:
        names.update(dict.fromkeys(score.contestant for score in task.scores))
    return sorted(names, key=contestant_order)


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
    table = _table(title)
    for length in lengths:
        _number_column(table, f"N={length}")
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


def _score_cell(score: Score | None) -> str:
    if score is None:
        return ABSENT
    if score.value is None:
        return score.status
    reach = score.value.high - score.value.value
    cell = f"{score.value.value:.3f} ± {reach:.3f}" if score.value.known else ""
    cell = cell or f"{score.value.value:.3f} (1 seed)"
    total = len(score.by_seed) + sum(score.failures.values())
    failed = [f"{count} of {total} {status}" for status, count in sorted(score.failures.items())]
    return f"{cell} ({', '.join(failed)})" if failed else cell


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
    table = _table("not measured, and why")
    for title in ("status", "where", "reason"):
        table.add_column(title, overflow="fold")
    for (name, status, reason), found in sorted(places.items()):
        unique = list(dict.fromkeys(found))
        where = "; ".join(unique) if len(unique) <= 2 else f"{unique[0]} and {len(unique) - 1} more"
        table.add_row(Text(name), Text(status), Text(where), Text(reason))
    return [table]


def _table(title: str) -> Table:
    table = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("contestant", overflow="fold")
    return table


def _number_column(table: Table, title: str) -> None:
    table.add_column(Text(title), justify="right", overflow="fold")


def _plain(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"
