"""`efficient-attn compare`: what became slower, larger, worse or failed between two folders."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import cast

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from efficient_attn.analysis.compare import Change, Comparison, Place, Quantity, compare
from efficient_attn.analysis.terminal import ABSENT, GIB, MIB, console, number
from efficient_attn.bench.intervals import Interval
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store

NOTHING_WORSE, SOMETHING_WORSE = 0, 1
LISTED = ("worse", "changed", "better")
TITLES = {
    "worse": "worse in B",
    "changed": "failed in both, in different ways",
    "better": "better in B",
    "unclear": "unclear: the interval reaches over the threshold",
    "unknown": "not comparable",
    "same": "within the threshold",
}


def main(arguments: argparse.Namespace) -> int:
    """Print what changed; 1 when something is worse beyond the threshold."""
    sides = [_read(folder) for folder in (arguments.a, arguments.b)]
    comparison = compare(
        *sides,
        threshold=arguments.threshold,
        relative_to=arguments.relative_to,
        what=cast("Sequence[Quantity]", [name for name in arguments.what.split(",") if name]),
    )
    if arguments.json:
        print(json.dumps(comparison.to_dict(), indent=1))
    else:
        out = console()
        for name, folder, records in zip("AB", (arguments.a, arguments.b), sides, strict=True):
            _say(out, f"{name}: {folder}, {_origin(records)}")
        _print(comparison, out, everything=arguments.all)
    return SOMETHING_WORSE if comparison.worse else NOTHING_WORSE


def _read(folder: str) -> list[Record]:
    store = Store(folder)
    records = store.read()
    for warning in store.warnings:
        print(warning, file=sys.stderr)
    if not records:
        raise ValueError(f"no records in {folder}")
    return records


def _origin(records: list[Record]) -> str:
    """How many records of which code, and when they were taken."""
    days = sorted(record.created[:10] for record in records)
    revisions = sorted(
        {str(record.environment.get("git_revision") or "unknown") for record in records}
    )
    span = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return f"{len(records)} records of {span}, code {', '.join(revisions)}"


def _print(comparison: Comparison, out: Console, *, everything: bool) -> None:
    for note in comparison.notes:
        _say(out, f"NOTE: {note}", style="bold")
    settings = {change.place.setting for change in comparison.changes} - {""}
    if len(settings) == 1:
        _say(out, f"all with {min(settings)}")
    for verdict, title in TITLES.items():
        changes = [change for change in comparison.changes if change.verdict == verdict]
        if changes and (everything or verdict in LISTED):
            groups = [[change] for change in changes] if everything else _along_lengths(changes)
            out.print(_table(title, groups, comparison, with_setting=len(settings) > 1))
    for name, places in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        _print_lone(f"only in {name}", places, out)
    for line in _summary(comparison):
        _say(out, line)


def _along_lengths(changes: Iterable[Change]) -> list[list[Change]]:
    """Changes that differ in nothing but the length, the worst first; groups keep the order."""
    groups: dict[tuple[object, ...], list[Change]] = defaultdict(list)
    for change in changes:
        place = change.place
        status = (change.before, change.after) if change.quantity == "status" else ()
        key = (change.quantity, place.contestant, place.where, place.setting, *status)
        groups[key].append(change)
    return list(groups.values())


def _table(
    title: str, groups: list[list[Change]], comparison: Comparison, *, with_setting: bool
) -> Table:
    table = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("contestant", "what", "where"):
        table.add_column(heading, overflow="fold")
    for heading in ("A", "B", "B/A (95 %)"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for group in groups:
        first = group[0]
        relative = first.quantity == "time" and comparison.relative_to
        what = f"time / {comparison.relative_to}" if relative else first.quantity
        ends = [_value(first, side, comparison) for side in (first.before, first.after)]
        ratio = _with_ends(first.ratio) if first.ratio else ""
        where = _where(group, with_setting)
        table.add_row(*map(Text, (first.place.contestant, what, where, *ends, ratio, first.note)))
    return table


def _where(group: list[Change], with_setting: bool) -> str:
    """The place of the first, and which other lengths of it are in the group."""
    place = group[0].place
    parts = [place.where, f"N={place.length}"] if place.length else [place.where]
    others = sorted({change.place.length for change in group} - {place.length})
    if others:
        span = f"{others[0]}" if len(others) == 1 else f"{others[0]} … {others[-1]}"
        parts[-1] += f" (and {len(others)} more: {span})"
    if with_setting and place.setting:
        parts.append(place.setting)
    return ", ".join(parts)


def _value(change: Change, side: Interval | str | None, comparison: Comparison) -> str:
    if side is None:
        return ABSENT
    if isinstance(side, str):
        return side
    if change.quantity == "memory":
        return _bytes(side.value)
    if change.quantity == "accuracy":
        reach = f" ± {side.high - side.value:.3f}" if side.known else ""
        return f"{side.value:.3f}{reach}"
    return f"{number(side.value)} {'×' if comparison.relative_to else 'ms'}"


def _bytes(value: float) -> str:
    if value < MIB:
        return f"{value:,.0f} B"
    return f"{number(value / GIB)} GiB" if value >= GIB else f"{number(value / MIB)} MiB"


def _with_ends(ratio: Interval) -> str:
    if ratio.low == ratio.high:
        return number(ratio.value)
    if not ratio.known:
        return f"{number(ratio.value)} (?)"
    return f"{number(ratio.value)} ({number(ratio.low)}–{number(ratio.high)})"


def _print_lone(title: str, places: Sequence[Place], out: Console) -> None:
    """One line for each contestant and condition, with its lengths."""
    lengths: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for place in places:
        lengths[place.contestant, place.where, place.setting].add(place.length)
    for (contestant, where, setting), found in lengths.items():
        tokens = f", N={', '.join(map(str, sorted(found)))}" if any(found) else ""
        detail = f" ({setting})" if setting else ""
        _say(out, f"{title}: {contestant}, {where}{tokens}{detail}")


def _summary(comparison: Comparison) -> list[str]:
    percent = f"{100 * comparison.threshold:g} %"
    counts = comparison.counts()
    lines = []
    for quantity in ("status", "time", "memory", "accuracy"):
        found: Counter[str] = Counter(counts.get(quantity, {}))
        if found:
            parts = [f"{found[verdict]} {verdict}" for verdict in TITLES if found[verdict]]
            lines.append(f"{quantity}: {', '.join(parts)}")
    lone = f"{len(comparison.only_in_a)} only in A, {len(comparison.only_in_b)} only in B"
    verdict = "worse beyond" if comparison.worse else "nothing worse beyond"
    lines.append(f"{comparison.compared} compared, {lone}: {verdict} {percent}")
    return lines


def _say(out: Console, text: str, style: str = "") -> None:
    out.print(Text(text, style=style), soft_wrap=True)
