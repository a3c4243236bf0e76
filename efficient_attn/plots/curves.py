"""Complexity curves: time and memory over length, one row of panels per pattern."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from efficient_attn.analysis.fastest import doubled, fits
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
from efficient_attn.plots.language import say
from efficient_attn.plots.style import (
    LOWER,
    Style,
    heading,
    length_axis,
    new_figure,
    plain_numbers,
    setting_of,
    style_of,
    tidy,
)

MIB = 2**20
GUIDE_COLOUR = "#9a9a9a"
# Share of a panel's height kept free above the curves for the marks of what failed.
_MARK_STEP = 0.055


def complexity_figure(
    records: Iterable[Record], setting: Setting | None = None, until: int | None = None
) -> Figure:
    """Log-log panels of forward time, forward+backward time and peak memory for every pattern.

    Lines are medians, bands their 95 % intervals (memory is exact and has none). A cross near the
    top edge marks a failure at its length, with its status; contestants that do not support a
    pattern are named at the foot of its panels. Dotted guides grow as N and N². What is predicted
    is dashed with hollow markers on a grey ground, its band the range of the prediction.

    setting: which of the measured settings to draw, the one with most records when None.
    until: predict at doubled lengths beyond the longest, up to this, from the scaling fits.
    ValueError when there is nothing to draw.
    """
    settings = by_setting(records)
    chosen = setting_of(settings, setting)
    drawn = settings[chosen]
    patterns = patterns_in(drawn)
    panels = _panels(drawn)
    figure = new_figure(4.1 * len(panels) + 2.6, 3.7 * len(patterns) + 0.7)
    grid = figure.subplots(len(patterns), len(panels), squeeze=False)
    for row, pattern in zip(grid, patterns, strict=True):
        here = [record for record in drawn if pattern_of(record) == pattern]
        for axes, (title, unit, pass_, quantity) in zip(row, panels, strict=True):
            chosen_pass = [record for record in here if pass_of(record) == pass_]
            _panel(axes, chosen_pass, quantity, until)
            axes.set_title(f"{title}\n{say(PATTERN_NAMES[pattern])}", fontsize=10)
            axes.set_ylabel(f"{unit}   {say(LOWER)}", fontsize=9)
    measured = [length_of(record) for record in drawn]
    _legend(figure, drawn, predicted=bool(doubled(measured, until)))
    heading(figure, say("Cost over length: medians, 95 % bands"), chosen)
    return figure


def _panels(records: list[Record]) -> list[tuple[str, str, str, str]]:
    """(title, unit, pass, quantity) of every column that the records can fill."""
    passes = passes_in(records)
    panels = [
        (f"{say('time')}, {say(PASS_NAMES[name])}", say("median ms"), name, "time")
        for name in passes
    ]
    known = [name for name in passes if any(_memory(r) for r in records if pass_of(r) == name)]
    if known:
        title = f"{say('peak memory')}, {say(PASS_NAMES[known[-1]])}"
        panels.append((title, "MiB", known[-1], "memory"))
    return panels


def _panel(axes: Axes, records: list[Record], quantity: str, until: int | None) -> None:
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
        axes.text(0.5, 0.5, say("nothing measured"), transform=axes.transAxes, ha="center")
        return
    beyond = doubled(lengths, until)
    if beyond:
        low, high = _predictions(axes, records, quantity, beyond, low, high)
    length_axis(axes, [*lengths, *beyond])
    axes.set_xlim(lengths[0] / 1.25, [*lengths, *beyond][-1] * 1.25)
    axes.set_yscale("log")
    failed = [record for record in records if not record.ok]
    broken = [record for record in failed if record.status != "unsupported"]
    marks = _marked(axes, broken, crowded=bool(beyond))
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


def _predictions(
    axes: Axes, records: list[Record], quantity: str, beyond: list[int], low: float, high: float
) -> tuple[float, float]:
    """Every fit from its last measured value on, on a ground of its own; the limits widened."""
    unit = 1.0 if quantity == "time" else MIB
    variants = {record.contestant: record.variant for record in records}
    for name, fit in fits(records, quantity).items():
        there = [fit.at(length) for length in beyond]
        look = style_of(name, variants[name])
        last = fit.lengths[-1], fit.curve.values[-1] / unit
        x = [last[0], *beyond]
        lows = [last[1], *(at.low / unit for at in there)]
        highs = [last[1], *(at.high / unit for at in there)]
        axes.fill_between(x, lows, highs, color=look.color, alpha=0.1, linewidth=0)
        axes.plot(
            x,
            [last[1], *(at.value / unit for at in there)],
            label=f"_{name} predicted",
            markevery=range(1, len(x)),
            markersize=5,
            **look.predicted(),
        )
        low, high = min(low, *lows), max(high, *highs)
    axes.axvspan(beyond[0] / 1.41, beyond[-1] * 2, color="#f4f4f4", zorder=0)
    return low, high


def _marked(axes: Axes, failed: list[Record], *, crowded: bool) -> int:
    """Crosses with their status below the top edge, stacked by length; the tallest stack.

    crowded: lengths stand too close for a status between two of them, so that all share a stack.
    """
    stacks: dict[int, int] = {}
    for record in sorted(failed, key=lambda record: (length_of(record), record.contestant)):
        length = length_of(record)
        stack = 0 if crowded else length
        height = 0.97 - _MARK_STEP * stacks.get(stack, 0)
        stacks[stack] = stacks.get(stack, 0) + 1
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
            say("unsupported:") + " " + ",\n".join(names),
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


def _legend(figure: Figure, records: list[Record], *, predicted: bool) -> None:
    variants = {record.contestant: record.variant for record in records}
    handles: list[Any] = []
    for name in contestants_in(records):
        look = style_of(name, variants[name]).to_dict()
        handles.append(Line2D([], [], label=name, linewidth=1.5, markersize=5, **look))
    handles.append(Line2D([], [], color=GUIDE_COLOUR, linestyle=":", label=say("growth as N, N²")))
    statuses = sorted({r.status for r in records if not r.ok and r.status != "unsupported"})
    if statuses:
        label = f"{say('failed:')} {', '.join(statuses)}"
        handles.append(Line2D([], [], color="#444444", marker="x", linestyle="none", label=label))
    if predicted:
        dashed = Style("#444444", "o").predicted()
        handles.append(Line2D([], [], label=say("dashed, hollow: predicted"), **dashed))
    figure.legend(
        handles=handles, loc="outside right upper", fontsize=9, frameon=False, handlelength=3.2
    )
