"""Who is fastest at which length, and where each contestant crosses full."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from efficient_attn.analysis.crossover import FUSED, Crossover, Verdict, crossovers
from efficient_attn.analysis.fastest import Fastest, fastest
from efficient_attn.analysis.select import (
    PASS_NAMES,
    PATTERN_NAMES,
    Setting,
    by_setting,
    contestant_order,
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
    PREDICTED_DASHES,
    heading,
    length_axis,
    new_figure,
    setting_of,
    style_of,
    tidy,
)

FASTER, SLOWER, EVEN = "#0072B2", "#D55E00", "#bdbdbd"
_BARS: dict[Verdict, tuple[str, float]] = {
    "faster": (FASTER, 0.62),
    "even": (EVEN, 0.36),
    "slower": (SLOWER, 0.14),
}


def map_figure(
    records: Iterable[Record], setting: Setting | None = None, until: int | None = None
) -> Figure:
    """Length × pattern, one panel per pass: colour and marker of the fastest variant.

    The number is the time of full over the time of the fastest, ``≈`` where others may be as fast,
    which stand as stripes below. Dashed, pale cells are predicted. White ones were not measured.

    until: predict at doubled lengths up to this. ValueError when there is nothing to draw.
    """
    settings = by_setting(records)
    chosen = setting_of(settings, setting)
    cells = fastest(settings[chosen], until)
    if not cells:
        raise ValueError("no cost record has a time to draw: every contestant failed")
    passes, patterns = passes_in(settings[chosen]), patterns_in(settings[chosen])
    lengths = sorted({cell.length for cell in cells})
    figure = new_figure((0.62 * len(lengths) + 1.0) * len(passes) + 3.6, 0.62 * len(patterns) + 1.9)
    row = figure.subplots(1, len(passes), squeeze=False, sharey=True)[0]
    for axes, pass_ in zip(row, passes, strict=True):
        for cell in cells:
            if cell.pass_ == pass_:
                _cell(axes, cell, lengths.index(cell.length), patterns.index(cell.pattern))
        axes.set_xlim(-0.5, len(lengths) - 0.5)
        axes.set_ylim(len(patterns) - 0.5, -0.5)
        axes.set_xticks(range(len(lengths)), [str(length) for length in lengths], rotation=45)
        axes.set_yticks(range(len(patterns)), [say(PATTERN_NAMES[p]) for p in patterns])
        axes.tick_params(labelsize=9, length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(say("length N"), fontsize=9)
        axes.set_title(say(PASS_NAMES[pass_]), fontsize=10)
    _map_legend(figure, cells, settings[chosen])
    heading(figure, say("Fastest variant by length; number: times as fast as full"), chosen)
    return figure


def _cell(axes: Axes, cell: Fastest, column: int, row: int) -> None:
    names = [cell.contestant, *cell.even]
    look = style_of(cell.contestant)
    pale = 0.25 if cell.predicted else 0.85
    height = 0.9 if len(names) == 1 else 0.66
    axes.add_patch(
        Rectangle(
            (column - 0.46, row - 0.45),
            0.92,
            height,
            facecolor=(look.color, pale),
            edgecolor=look.color,
            linestyle=PREDICTED_DASHES if cell.predicted else "-",
            label=f"_{cell.contestant}",
        )
    )
    for i, name in enumerate(names[1:]):
        width = 0.92 / len(names[1:])
        axes.add_patch(
            Rectangle(
                (column - 0.46 + i * width, row + 0.25),
                width,
                0.2,
                facecolor=(style_of(name).color, pale),
                edgecolor="white",
                label=f"_even {name}",
            )
        )
    ink = "black" if cell.predicted or _is_light(look.color) else "white"
    middle = row - 0.45 + height / 2
    axes.plot(
        [column],
        [middle - 0.13],
        marker=look.marker,
        markersize=5,
        color=ink,
        markerfacecolor="none" if cell.predicted else ink,
        linestyle="none",
        label=f"_{cell.contestant} marker",
    )
    if cell.gain is not None:
        about = "≈" if cell.even else ""
        text = f"{about}{_factor(cell.gain.value)}×"
        axes.text(column, middle + 0.15, text, ha="center", va="center", fontsize=7, color=ink)


def _factor(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def _is_light(colour: str) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140


def _map_legend(figure: Figure, cells: list[Fastest], records: list[Record]) -> None:
    shown = {name for cell in cells for name in (cell.contestant, *cell.even)}
    handles: list[Patch | Line2D] = []
    for name in sorted(shown, key=contestant_order):
        look = style_of(name)
        handles.append(
            Line2D(
                [],
                [],
                color=look.color,
                marker=look.marker,
                markersize=8,
                linestyle="none",
                label=name,
            )
        )
    never = [name for name in contestants_in(records) if name not in shown]
    if any(cell.even for cell in cells):
        handles.append(Patch(facecolor=EVEN, label=say("stripe: may be as fast")))
    if any(cell.predicted for cell in cells):
        handles.append(
            Patch(
                facecolor="#eeeeee",
                edgecolor="#555555",
                linestyle=PREDICTED_DASHES,
                label=say("dashed, pale: predicted"),
            )
        )
    if never:
        label = say("never fastest:") + "\n" + "\n".join(never)
        handles.append(Line2D([], [], linestyle="none", label=label))
    figure.legend(handles=handles, loc="outside right upper", fontsize=9, frameon=False)


def crossover_figure(
    records: Iterable[Record], setting: Setting | None = None, baseline: str = FUSED
) -> Figure:
    """One bar per contestant over length: thick and blue where it is faster than `baseline`, thin
    and orange where it is slower, grey where no difference is shown.

    A diamond marks a crossing, the line through it its 95 % interval; a cross a failure at its
    length, with its status. One row of panels per pattern, one column per pass. ValueError when
    nothing was measured beside the baseline.
    """
    settings = by_setting(records)
    chosen = setting_of(settings, setting)
    found = crossovers(settings[chosen], (baseline,))
    if not found:
        raise ValueError(f"no length was measured for {baseline} and another")
    passes = [name for name in PASS_NAMES if any(item.pass_ == name for item in found)]
    patterns = [name for name in PATTERN_NAMES if any(item.pattern == name for item in found)]
    names = sorted({item.contestant for item in found}, key=contestant_order)
    lengths = sorted({length for item in found for length in item.lengths})
    figure = new_figure(4.2 * len(passes) + 3.4, (0.34 * len(names) + 1.0) * len(patterns) + 0.9)
    grid = figure.subplots(len(patterns), len(passes), squeeze=False, sharey=True)
    for row, pattern in zip(grid, patterns, strict=True):
        for axes, pass_ in zip(row, passes, strict=True):
            here = [item for item in found if (item.pattern, item.pass_) == (pattern, pass_)]
            tried = [
                record
                for record in settings[chosen]
                if (pattern_of(record), pass_of(record)) == (pattern, pass_)
            ]
            _bars(axes, here, names, lengths)
            _failures(axes, tried, names)
            axes.set_title(f"{say(PATTERN_NAMES[pattern])}, {say(PASS_NAMES[pass_])}", fontsize=10)
    _bar_legend(figure)
    title = say("Where each is faster than {baseline}", baseline=baseline)
    heading(figure, title, chosen)
    return figure


def _bars(axes: Axes, found: list[Crossover], names: list[str], lengths: list[int]) -> None:
    tidy(axes)
    by_name = {item.contestant: item for item in found}
    for place, name in enumerate(names):
        item = by_name.get(name)
        if item is None:
            continue
        for stretch in item.stretches:
            colour, height = _BARS[stretch.verdict]
            axes.barh(
                place,
                stretch.last - stretch.first,
                height,
                left=stretch.first,
                color=colour,
                label=f"_{name} {stretch.verdict}",
            )
        if all(stretch.verdict == "even" for stretch in item.stretches):
            continue
        for crossing in item.crossings:
            low, high = crossing.low or item.lengths[0], crossing.high or item.lengths[-1]
            axes.plot([low, high], [place, place], color="black", linewidth=1.3, label="_interval")
            axes.plot(
                [crossing.length],
                [place],
                marker="D",
                markersize=5,
                color="black",
                markerfacecolor="white",
                label=f"_{name} crossing",
            )
        _placed(axes, item, place)
    length_axis(axes, lengths)
    axes.set_xlim(lengths[0] / 1.1, lengths[-1] * 1.1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)


def _placed(axes: Axes, item: Crossover, place: int) -> None:
    """The length of every crossing, in tokens, above the thin bar, where there is room for it."""
    shown = [crossing.length for crossing in item.crossings]
    if any(other < 1.8 * one for one, other in pairwise(shown)):
        return
    for crossing in item.crossings:
        axes.annotate(
            f"{crossing.length:.0f}",
            (crossing.length, place),
            xytext=(-4 if crossing.faster else 4, 4),
            textcoords="offset points",
            ha="right" if crossing.faster else "left",
            fontsize=7,
        )


def _failures(axes: Axes, records: list[Record], names: list[str]) -> None:
    """Crosses at the lengths that failed, with the first status; words where all is refused."""
    for place, name in enumerate(names):
        mine = sorted((r for r in records if r.contestant == name), key=length_of)
        failed = [record for record in mine if not record.ok]
        if not mine or len(failed) == len(mine):
            words = ", ".join(sorted({record.status for record in failed}))
            words = words or say("not measured")
            left = axes.get_xlim()[0] * 1.1
            axes.text(left, place, words, va="center", fontsize=8, style="italic")
            continue
        for i, record in enumerate(failed):
            axes.plot(
                [length_of(record)],
                [place],
                marker="x",
                markersize=6,
                markeredgewidth=1.8,
                color="#444444",
                linestyle="none",
                label=f"_{name} {record.status}",
            )
            if i == 0 or record.status != failed[i - 1].status:
                axes.annotate(
                    record.status,
                    (length_of(record), place),
                    xytext=(0, 5),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                    color="#444444",
                )


def _bar_legend(figure: Figure) -> None:
    words = {
        "faster": say("faster (thick)"),
        "even": say("no difference shown"),
        "slower": say("slower (thin)"),
    }
    handles: list[Patch | Line2D] = [
        Line2D([], [], color=colour, linewidth=11 * height, label=words[verdict])
        for verdict, (colour, height) in _BARS.items()
    ]
    handles.append(
        Line2D(
            [],
            [],
            color="black",
            marker="D",
            markersize=5,
            markerfacecolor="white",
            linewidth=1.3,
            label=say("crossing, 95 % interval"),
        )
    )
    figure.legend(handles=handles, loc="outside right upper", fontsize=9, frameon=False)
