"""A whole model's time over length with each attention, beside what attention does alone."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from efficient_attn.analysis.whole_model import FULL, ORIGINAL, WITHOUT, Row
from efficient_attn.plots.style import length_axis, new_figure, plain_numbers, style_of, tidy


def whole_model_figure(found: Sequence[Row]) -> Figure:
    """Left: time of the model over that of the model as it is; right: of attention alone over full.

    Below 1 is faster. Bars are 95 % intervals. The dotted line is the model without attention,
    which no variant can be faster than.
    """
    lengths = sorted({row.length for row in found})
    names = [name for name in dict.fromkeys(row.contestant for row in found) if name != ORIGINAL]
    figure = new_figure(10.5, 4.4)
    left, right = figure.subplots(1, 2, sharey=True)
    for name in names:
        mine = [row for row in found if row.contestant == name]
        if name == WITHOUT:
            drawn = [row for row in mine if row.to_original is not None]
            left.plot(
                [row.length for row in drawn],
                [row.to_original.value for row in drawn if row.to_original],
                ":",
                color="#555555",
                label=f"{WITHOUT}: the limit",
            )
            continue
        _draw(left, name, [(row.length, row.to_original) for row in mine])
        if name != FULL:
            _draw(right, name, [(row.length, row.alone) for row in mine], label=False)
    for axes, title in ((left, "the whole model / as it is"), (right, "attention alone / full")):
        axes.axhline(1.0, color="#000000", linewidth=1.0)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(plain_numbers))
        length_axis(axes, lengths)
        axes.set_title(title, fontsize=10)
        tidy(axes)
    left.set_ylabel("time, ratio (↓ faster)", fontsize=9)
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    figure.suptitle("A swap of attention: what it does to the model", fontsize=11)
    return figure


def _draw(axes: Axes, name: str, points: Sequence[tuple[int, object]], label: bool = True) -> None:
    known = [(length, one) for length, one in points if one is not None]
    if not known:
        return
    x = [length for length, _ in known]
    y = [one.value for _, one in known]  # type: ignore[attr-defined]
    below = [one.value - one.low for _, one in known]  # type: ignore[attr-defined]
    above = [one.high - one.value for _, one in known]  # type: ignore[attr-defined]
    look = style_of(name).to_dict()
    axes.errorbar(x, y, [below, above], capsize=2, label=name if label else None, **look)
