"""Slopes, classes, doubts and crossovers as tables of the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from efficient_attn.analysis.crossover import FUSED, NAIVE, crossovers
from efficient_attn.analysis.growth import Growth, growths
from efficient_attn.analysis.select import PASS_NAMES, PATTERN_NAMES, setting_names
from efficient_attn.analysis.terminal import new_table, number_column
from efficient_attn.bench.record import Record


def slopes_table(records: Iterable[Record]) -> RenderableType:
    """Log-log slope over the top two octaves with its interval, and the fitted class.

    A slope of 1 doubles the cost when the length doubles, 2 quadruples it. Where more than one
    class may be true, the others follow in brackets. Curves that look implausible are listed below
    with the reason.
    """
    found = [growth for growth in growths(records) if growth.slope is not None]
    names = setting_names(dict.fromkeys(growth.setting for growth in found))
    parts: list[RenderableType] = []
    for setting, name in names.items():
        table = new_table(f"growth with length; {name}")
        for title in ("pattern", "quantity"):
            table.add_column(title, no_wrap=True)
        for title in ("slope", "95 %", "class", "lengths"):
            number_column(table, title)
        here = [growth for growth in found if growth.setting == setting]
        for growth in here:
            table.add_row(Text(growth.contestant), *_growth_cells(growth))
        parts += [table, *_doubts_table(here)]
    return (
        Group(*parts)
        if parts
        else Text("no slopes: they take two measured lengths at most two octaves apart")
    )


def crossover_table(records: Iterable[Record]) -> RenderableType:
    """Where each contestant becomes faster or slower than full, fused and naive, with intervals."""
    crossings = crossovers(records, (FUSED, NAIVE))
    if not crossings:
        return Text("no length was measured for full and another")
    table = new_table("faster than full from which length on, with the ends of 95 % intervals")
    for title in ("against", "pattern", "pass", "crossover", "setting"):
        table.add_column(title, overflow="fold")
    names = setting_names(dict.fromkeys(found.setting for found in crossings))
    for found in crossings:
        place = str(found) + ("" if found.paired else " (unpaired)")
        where = PATTERN_NAMES[found.pattern], PASS_NAMES[found.pass_]
        row = (Text(found.contestant), Text(found.baseline), *where, place)
        table.add_row(*row, Text(names[found.setting]))
    return table


def _growth_cells(growth: Growth) -> list[str]:
    slope, count = growth.slope, len(growth.curve.lengths)
    assert slope is not None
    exact = slope.confidence == 1.0
    ends = "exact" if exact else f"{slope.low:.2f} to {slope.high:.2f}" if slope.known else "?"
    fitted = "too few lengths"
    if growth.fit is not None:
        name, *others = growth.fit.classes
        fitted = f"{name} (or {', '.join(others)})" if others else name
    quantity = f"{PASS_NAMES[growth.pass_]} {growth.quantity}"
    lengths = f"{count} up to {growth.curve.lengths[-1]}"
    return [PATTERN_NAMES[growth.pattern], quantity, f"{slope.value:.2f}", ends, fitted, lengths]


def _doubts_table(found: list[Growth]) -> list[RenderableType]:
    doubtful = [growth for growth in found if growth.doubts]
    if not doubtful:
        return []
    table = new_table("curves that look implausible")
    for title in ("pattern", "quantity", "why"):
        table.add_column(title, overflow="fold")
    for growth in doubtful:
        quantity = f"{PASS_NAMES[growth.pass_]} {growth.quantity}"
        why = "\n".join(growth.doubts)
        table.add_row(Text(growth.contestant), PATTERN_NAMES[growth.pattern], quantity, Text(why))
    return [table]
