"""Share of the machine's peak over length: how much faster any implementation could be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from efficient_attn.analysis.roofline import Roofline, roofline
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
from efficient_attn.bench.record import Record
from efficient_attn.plots.language import say
from efficient_attn.plots.style import (
    HIGHER,
    heading,
    length_axis,
    new_figure,
    setting_of,
    style_of,
    tidy,
)


def peak_figure(records: Iterable[Record], setting: Setting | None = None) -> Figure:
    """Limit of the roofline over the measured median, in per cent; rows are patterns, columns
    passes.

    A filled marker is bound by arithmetic, one with a white half by memory. Bands are the medians'
    95 % intervals. Above the line at 100 % the data fit in a cache. ValueError when no record
    knows its FLOPs, its bytes and the machine's peak.
    """
    settings = by_setting(records)
    chosen = setting_of(settings, setting)
    drawn = with_peak(settings[chosen])
    if not drawn:
        raise ValueError(
            "no record knows its FLOPs, its bytes and the machine's peak: sweep again with this "
            "version"
        )
    passes, patterns = passes_in(drawn), patterns_in(drawn)
    figure = new_figure(4.1 * len(passes) + 2.6, 3.2 * len(patterns) + 0.8)
    grid = figure.subplots(len(patterns), len(passes), squeeze=False, sharey=True)
    for row, pattern in zip(grid, patterns, strict=True):
        for axes, pass_ in zip(row, passes, strict=True):
            here = [r for r in drawn if (pattern_of(r), pass_of(r)) == (pattern, pass_)]
            _panel(axes, here)
            axes.set_title(f"{say(PATTERN_NAMES[pattern])}, {say(PASS_NAMES[pass_])}", fontsize=10)
        row[0].set_ylabel(f"{say('share of the limit, %')}   {say(HIGHER)}", fontsize=9)
    _legend(figure, drawn)
    heading(figure, say("Share of what the machine's measured peaks allow"), chosen)
    return figure


def with_peak(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if roofline(record) is not None]


def _panel(axes: Axes, records: list[Record]) -> None:
    tidy(axes)
    if not records:
        axes.text(0.5, 0.5, say("nothing measured"), transform=axes.transAxes, ha="center")
        return
    for name in contestants_in(records):
        mine = sorted((r for r in records if r.contestant == name), key=length_of)
        look = style_of(name, mine[0].variant)
        found = [(record, limit) for record in mine if (limit := roofline(record)) is not None]
        x = [length_of(record) for record, _ in found]
        axes.fill_between(
            x,
            [100 * limit.limit_ms / record.result["high_ms"] for record, limit in found],
            [100 * limit.limit_ms / record.result["low_ms"] for record, limit in found],
            color=look.color,
            alpha=0.2,
            linewidth=0,
        )
        y = [100 * limit.share for _, limit in found]
        axes.plot(x, y, color=look.color, linestyle=look.linestyle, linewidth=1.5, label=name)
        for length, (_, limit) in zip(x, found, strict=True):
            _marker(axes, length, limit, look.color, look.marker)
    axes.axhline(100, color="#9a9a9a", linestyle=":", linewidth=1.2, label="_limit")
    length_axis(axes, sorted({length_of(record) for record in records}))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _marker(axes: Axes, length: int, limit: Roofline, colour: str, marker: str) -> None:
    axes.plot(
        [length],
        [100 * limit.share],
        marker=marker,
        markersize=6,
        color=colour,
        fillstyle="full" if limit.bound == "compute" else "left",
        markerfacecoloralt="white",
        linestyle="none",
        label=f"_bound by {limit.bound}",
    )


def _legend(figure: Figure, records: list[Record]) -> None:
    variants = {record.contestant: record.variant for record in records}
    handles = []
    for name in contestants_in(records):
        look = style_of(name, variants[name]).to_dict()
        handles.append(Line2D([], [], label=name, linewidth=1.5, markersize=6, **look))
    fills: list[tuple[str, Literal["full", "left"]]] = [
        (say("bound by arithmetic"), "full"),
        (say("bound by memory"), "left"),
    ]
    for label, fill in fills:
        handles.append(
            Line2D(
                [],
                [],
                color="#444444",
                marker="o",
                fillstyle=fill,
                markerfacecoloralt="white",
                linestyle="none",
                label=label,
            )
        )
    handles.append(Line2D([], [], color="#9a9a9a", linestyle=":", label=say("the limit")))
    figure.legend(
        handles=handles, loc="outside right upper", fontsize=9, frameon=False, handlelength=3.2
    )
