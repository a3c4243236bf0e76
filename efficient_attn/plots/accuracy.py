"""Accuracy per task: means over seeds with intervals, beside what trivial predictors reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from efficient_attn.analysis.accuracy import TaskScores, task_scores
from efficient_attn.analysis.select import contestant_order
from efficient_attn.bench.record import Record
from efficient_attn.plots.language import say
from efficient_attn.plots.style import (
    HIGHER,
    LOWER,
    length_axis,
    new_figure,
    style_of,
    tidy,
    within_shares,
    wrapped,
)

GREY = "#8c8c8c"
_BASELINE_LOOKS = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))


def accuracy_figure(records: Iterable[Record]) -> Figure:
    """One panel per task: every contestant's mean with its 95 % interval and its single seeds.

    A task measured at several lengths shows accuracy over length, otherwise contestants stand one
    below the other. Grey lines are baselines, a band the interval of the trained one; who gave no
    score is named with its status.
    ValueError when there are no accuracy records.
    """
    panels = _panels(task_scores(records))
    if not panels:
        raise ValueError("there are no accuracy records to draw: run an accuracy sweep first")
    names = {score.contestant for panel in panels for task in panel for score in task.scores}
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    widest = max(map(len, names)) * 0.075
    heights = [
        max(map(_height, panels[row * columns : (row + 1) * columns])) for row in range(rows)
    ]
    figure = new_figure((3.6 + widest) * columns + 0.4, sum(heights) + 0.3)
    ratios = {"height_ratios": heights}
    grid = figure.subplots(rows, columns, squeeze=False, gridspec_kw=ratios).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        tidy(axes)
        if len(panel) > 1:
            _over_length(axes, panel)
        else:
            _side_by_side(axes, panel[0])
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    title = say("Accuracy: mean over seeds, 95 % interval, single seeds faint")
    figure.suptitle(title, fontsize=11)
    return figure


def _panels(tasks: list[TaskScores]) -> list[list[TaskScores]]:
    """Tasks that differ in nothing but length share a panel."""
    by_name: dict[str, list[TaskScores]] = defaultdict(list)
    for task in tasks:
        by_name[task.name].append(task)
    panels: list[list[TaskScores]] = []
    for twins in by_name.values():
        if len({task.length for task in twins}) == len(twins):
            panels.append(twins)
        else:
            panels += [[task] for task in twins]
    return panels


def _height(panel: list[TaskScores]) -> float:
    """Inches for a line of each contestant, below the other or in the legend."""
    return 0.34 * len({score.contestant for task in panel for score in task.scores}) + 2.4


def _side_by_side(axes: Axes, task: TaskScores) -> None:
    rows = sorted(task.scores, key=lambda score: contestant_order(score.contestant))[::-1]
    for y, score in enumerate(rows):
        look = style_of(score.contestant, score.variant)
        if score.value is None:
            axes.text(
                0.02,
                y,
                score.status,
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=8,
                style="italic",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            )
            continue
        seeds = list(score.by_seed.values())
        axes.plot(seeds, [y] * len(seeds), ".", color=look.color, alpha=0.35, zorder=2)
        reach = score.value.high - score.value.value if score.value.known else 0.0
        axes.errorbar(
            [score.value.value],
            [y],
            xerr=[reach],
            fmt=look.marker,
            color=look.color,
            capsize=3,
            markersize=7,
            label=score.contestant,
        )
    axes.set_yticks(range(len(rows)), [score.contestant for score in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    values = [value for score in rows for value in score.by_seed.values()]
    for control in task.controls:
        if control.value is not None and control.value.known:
            axes.axvspan(control.value.low, control.value.high, color=GREY, alpha=0.2, zorder=0)
    _baselines(axes, task.references, values, vertical=True)
    axes.set_xlim(within_shares(axes.get_xlim(), task.metric))
    direction = say(HIGHER if task.higher_is_better else LOWER)
    direction = direction.replace("↑", "→").replace("↓", "←")
    axes.set_xlabel(f"{task.metric}   {direction}", fontsize=9)
    axes.set_title(wrapped(task.label), fontsize=10)


def _over_length(axes: Axes, tasks: list[TaskScores]) -> None:
    tasks = sorted(tasks, key=lambda task: task.length)
    trained = {s.contestant for task in tasks for s in task.controls}
    names = sorted({s.contestant for task in tasks for s in task.scores}, key=contestant_order)
    silent = []
    for name in [*names, *sorted(trained)]:
        found = [(task.length, task.of(name)) for task in tasks]
        done = [(length, s) for length, s in found if s is not None and s.value is not None]
        if not done:
            status = next(score.status for _, score in found if score is not None)
            silent.append(f"{name}: {status}")
            continue
        look = style_of(name, done[0][1].variant)
        values = [score.value for _, score in done if score.value is not None]
        axes.errorbar(
            [length for length, _ in done],
            [value.value for value in values],
            yerr=[value.high - value.value if value.known else 0.0 for value in values],
            label=f"{name} (baseline)" if name in trained else name,
            capsize=3,
            markersize=6,
            **look.to_dict(),
        )
    length_axis(axes, [task.length for task in tasks])
    longest = tasks[-1]
    everything = [v for task in tasks for s in task.scores for v in s.by_seed.values()]
    _baselines(axes, longest.baselines, everything, vertical=False)
    axes.set_ylim(within_shares(axes.get_ylim(), longest.metric))
    direction = say(HIGHER if longest.higher_is_better else LOWER)
    axes.set_ylabel(f"{longest.metric}   {direction}", fontsize=9)
    axes.set_title("\n".join([longest.name, *silent]), fontsize=10)


def _baselines(
    axes: Axes, baselines: dict[str, float], values: list[float], *, vertical: bool
) -> None:
    """Grey lines, explained in a legend of their own since two of them often lie close."""
    visible = _in_view(baselines, values)
    lines = []
    for i, (name, value) in enumerate(baselines.items()):
        look: dict[str, Any] = {
            "color": GREY,
            "linestyle": _BASELINE_LOOKS[i % 4],
            "linewidth": 1.3,
        }
        label = f"{name} {value:.3g}"
        if name not in visible:
            lines.append(Line2D([], [], label=f"{label} {say('(off the axis)')}", **look))
        elif vertical:
            lines.append(axes.axvline(value, label=label, **look))
        else:
            lines.append(axes.axhline(value, label=label, **look))
    if vertical:
        figure = axes.get_figure(root=True)
        assert figure is not None
        below = ScaledTranslation(0, -34 / 72, figure.dpi_scale_trans)
        axes.legend(
            handles=lines,
            fontsize=8,
            frameon=False,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            bbox_transform=axes.transAxes + below,
            ncols=2,
        )
        return
    handles = [*axes.get_legend_handles_labels()[0], *(ln for ln in lines if ln.axes is None)]
    axes.legend(
        handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )


def _in_view(baselines: dict[str, float], values: list[float]) -> set[str]:
    """The nearest baseline always; farther ones while they at most double what is in view."""
    if not values:
        return set(baselines)
    low, high = min(values), max(values)
    visible: set[str] = set()
    for name in sorted(baselines, key=lambda name: _distance(baselines[name], low, high)):
        value = baselines[name]
        if visible and _distance(value, low, high) > high - low:
            continue
        visible.add(name)
        low, high = min(low, value), max(high, value)
    return visible


def _distance(value: float, low: float, high: float) -> float:
    return max(low - value, value - high, 0.0)
