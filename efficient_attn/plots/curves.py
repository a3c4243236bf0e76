"""Complexity curves: time and memory over length, one row of panels per pattern."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from efficient_attn.analysis.ratios import time_interval
from efficient_attn.analysis.scaling import peak_bytes
from efficient_attn.analysis.select import (
    PASS_NAMES,
    PATTERN_NAMES,
    Setting,
    by_setting,
    contestants_in,
    length_of,
    pass_of,
    passes_in,
    pattern_of,
    patterns_in,
)
from efficient_attn.bench.intervals import Interval
from efficient_attn.bench.record import Record
from efficient_attn.plots.style import (
    LOWER,
    length_axis,
    new_figure,
    plain_numbers,
    style_of,
    tidy,
)

MIB = 2**20
GUIDE_COLOUR = "#9a9a9a"
# Share of a panel's height kept free above the curves for the marks of what failed.
_MARK_STEP = 0.055


def complexity_figure(records: Iterable[Record], setting: Setting | None = None) -> Figure:
    """Log-log panels of forward time, forward+backward time and peak memory for every pattern.

    Lines are medians, bands their 95 % intervals (memory is exact and has none). A cross near the
    top edge marks a failure at its length, with its status; contestants that do not support a
    pattern are named at the foot of its panels. Dotted guides grow as N and N².

    setting: which of the measured settings to draw, the one with most records when None.
    ValueError when there is nothing to draw.
    """
    settings = by_setting(records)
    if not settings:
        raise ValueError("there are no cost records to draw: run a sweep first")
    chosen = next(iter(settings)) if setting is None else setting
    if chosen not in settings:
        raise ValueError(f"no cost records of {chosen}; there are: {'; '.join(map(str, settings))}")
    drawn = settings[chosen]
    patterns = patterns_in(drawn)
    panels = _panels(drawn)
    figure = new_figure(4.1 * len(panels) + 2.6, 3.7 * len(patterns) + 0.7)
    grid = figure.subplots(len(patterns), len(panels), squeeze=False)
    for row, pattern in zip(grid, patterns, strict=True):
        here = [record for record in drawn if pattern_of(record) == pattern]
        for axes, (title, unit, pass_, quantity) in zip(row, panels, strict=True):
            chosen_pass = [record for record in here if pass_of(record) == pass_]
            _panel(axes, chosen_pass, quantity)
            axes.set_title(f"{title}\n{PATTERN_NAMES[pattern]}", fontsize=10)
            axes.set_ylabel(f"{unit}   {LOWER}", fontsize=9)
    _legend(figure, drawn)
    title = f"Cost over length: {chosen}"
    figure.suptitle(title + (f"\n{chosen.machine}" if chosen.machine else ""), fontsize=11)
    return figure


def _panels(records: list[Record]) -> list[tuple[str, str, str, str]]:
    """(title, unit, pass, quantity) of every column that the records can fill."""
    passes = passes_in(records)
    panels = [(f"time, {PASS_NAMES[name]}", "median ms", name, "time") for name in passes]
    known = [name for name in passes if any(_memory(r) for r in records if pass_of(r) == name)]
    if known:
        panels.append((f"peak memory, {PASS_NAMES[known[-1]]}", "MiB", known[-1], "memory"))
    return panels


def _panel(axes: Axes, records: list[Record], quantity: str) -> None:
    tidy(axes)
    lengths = sorted({length_of(record) for record in records})
    low, high = math.inf, 0.0
    for name in contestants_in(records):
        mine = sorted((r for r in records if r.contestant == name and r.ok), key=length_of)
        points = [(length_of(record), _value(record, quantity)) for record in mine]
        found = [(length, value) for length, value in points if value is not None]
        if not found:
            continue
        _draw(axes, name, mine[0].variant, found)
        low = min(low, *(value.low for _, value in found))
        high = max(high, *(value.high for _, value in found))
    if not high:
        axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center")
        return
    length_axis(axes, lengths)
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    axes.set_yscale("log")
    failed = [record for record in records if not record.ok]
    marks = _marked(axes, [record for record in failed if record.status != "unsupported"])
    _unsupported(axes, [record for record in failed if record.status == "unsupported"])
    _limits(axes, low, high, marks)
    _guides(axes, lengths, low, high)


def _value(record: Record, quantity: str) -> Interval | None:
    if quantity == "time":
        inner = time_interval(record)
        if inner.known:
            return inner
        return Interval(inner.value, inner.value, inner.value, inner.n, 0.0)
    peak = _memory(record)
    return Interval(peak, peak, peak, 1, 1.0) if peak else None


def _memory(record: Record) -> float | None:
    peak = peak_bytes(record) if record.ok else None
    return peak / MIB if peak else None


def _draw(axes: Axes, name: str, variant: str, points: list[tuple[int, Interval]]) -> None:
    look = style_of(name, variant)
    x = [length for length, _ in points]
    axes.fill_between(
        x,
        [value.low for _, value in points],
        [value.high for _, value in points],
        color=look.color,
        alpha=0.2,
        linewidth=0,
    )
    y = [value.value for _, value in points]
    axes.plot(x, y, label=name, linewidth=1.5, markersize=5, **look.to_dict())


def _marked(axes: Axes, failed: list[Record]) -> int:
    """Crosses with their status below the top edge, stacked by length; the tallest stack."""
    stacks: dict[int, int] = {}
    for record in sorted(failed, key=lambda record: (length_of(record), record.contestant)):
        length = length_of(record)
        height = 0.97 - _MARK_STEP * stacks.get(length, 0)
        stacks[length] = stacks.get(length, 0) + 1
        axes.plot(
            [length],
            [height],
            transform=axes.get_xaxis_transform(),
            marker="x",
            markersize=6,
            markeredgewidth=1.8,
            linestyle="none",
            color=style_of(record.contestant, record.variant).color,
            label=f"_{record.contestant} {record.status}",
        )
        axes.annotate(
            record.status,
            (length, height),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-6, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=7,
            color=style_of(record.contestant, record.variant).color,
        )
    return max(stacks.values(), default=0)


def _unsupported(axes: Axes, records: list[Record]) -> None:
    names = contestants_in(records)
    if names:
        axes.text(
            0.98,
            0.02,
            "unsupported: " + ",\n".join(names),
            transform=axes.transAxes,
            ha="right",
            va="bottom",
            fontsize=8,
            style="italic",
        )


def _limits(axes: Axes, low: float, high: float, marks: int) -> None:
    """Room for the failure marks above the data, measured in decades since the axis is log."""
    bottom, top = math.log10(low) - 0.15, math.log10(high) + 0.1
    if top - bottom < 1:
        top, bottom = top + (1 - top + bottom) / 2, bottom - (1 - top + bottom) / 2
    band = _MARK_STEP * marks + (0.03 if marks else 0.0)
    axes.set_ylim(10**bottom, 10 ** (bottom + (top - bottom) / (1 - band)))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if top - bottom > 2 else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(plain_numbers))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _guides(axes: Axes, lengths: list[int], low: float, high: float) -> None:
    """Lines that grow as N and N² from the lower left corner, for the eye to compare slopes."""
    if len(lengths) < 2:
        return
    start, base = lengths[0], 0.85 * low
    for power, name in ((1, "N"), (2, "N²")):
        # It ends where the data end, so that it never runs into the marks of what failed.
        end = min(lengths[-1] / start, (high / base) ** (1 / power))
        axes.plot(
            [start, start * end],
            [base, base * end**power],
            color=GUIDE_COLOUR,
            linestyle=":",
            linewidth=1.2,
            zorder=1,
            label=f"_guide {name}",
        )
        axes.annotate(
            f"∝ {name}",
            (start * end, base * end**power),
            xytext=(8, 3) if power == 2 else (8, -8),
            textcoords="offset points",
            fontsize=8,
            color=GUIDE_COLOUR,
        )


def _legend(figure: Figure, records: list[Record]) -> None:
    variants = {record.contestant: record.variant for record in records}
    handles: list[Any] = []
    for name in contestants_in(records):
        look = style_of(name, variants[name]).to_dict()
        handles.append(Line2D([], [], label=name, linewidth=1.5, markersize=5, **look))
    handles.append(Line2D([], [], color=GUIDE_COLOUR, linestyle=":", label="growth as N, N²"))
    statuses = sorted({r.status for r in records if not r.ok and r.status != "unsupported"})
    if statuses:
        label = f"failed: {', '.join(statuses)}"
        handles.append(Line2D([], [], color="#444444", marker="x", linestyle="none", label=label))
    figure.legend(handles=handles, loc="outside right upper", fontsize=9, frameon=False)
