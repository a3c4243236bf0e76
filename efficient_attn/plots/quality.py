"""What accuracy costs: over the state that decoding carries, and over a variant's own knob."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from efficient_attn.analysis.accuracy import Score
from efficient_attn.analysis.quality import KnobLine, TaskQuality, task_qualities
from efficient_attn.analysis.terminal import MIB
from efficient_attn.bench.record import Record
from efficient_attn.plots.language import say
from efficient_attn.plots.style import (
    HIGHER,
    LOWER,
    SHARES,
    new_figure,
    plain_numbers,
    style_of,
    tidy,
)

BASELINE_COLOUR = "#8c8c8c"
_BASELINE_LOOKS = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))


def state_figure(records: Iterable[Record]) -> Figure:
    """One panel per task: accuracy over the bytes that the model carries from token to token.

    One line per entry over its knob, whose values stand at the points; bars are 95 % intervals
    over seeds. Dashed grey lines: trivial predictors, and a model whose tokens see themselves
    alone. ValueError when no record knows its state.
    """
    tasks = with_state(records)
    if not tasks:
        raise ValueError(
            "no accuracy record knows the bytes of its state: train variants that decode on a "
            "causal task, e.g. +experiment=recall_state"
        )
    columns = min(len(tasks), 2)
    rows = -(-len(tasks) // columns)
    figure = new_figure(6.4 * columns + 0.4, 4.4 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, task in zip(grid, tasks, strict=False):
        _state_panel(axes, task)
    for axes in grid[len(tasks) :]:
        axes.set_visible(False)
    title = say("Accuracy against the state of decoding: mean, 95 % interval")
    figure.suptitle(title, fontsize=11)
    return figure


def with_state(records: Iterable[Record]) -> list[TaskQuality]:
    """Tasks on which at least two scores know the bytes of their state."""
    return [
        task
        for task in task_qualities(records)
        if sum(bool(score.state_bytes) for line in task.lines for score in line.scores) > 1
    ]


def knob_figure(records: Iterable[Record]) -> Figure:
    """A row for each task and entry with a knob: accuracy, training time and peak memory over it.

    ValueError when no entry was trained with several values of one option.
    """
    rows = with_knob(records)
    if not rows:
        raise ValueError(
            "no entry was trained with several values of one option: sweep one, e.g. "
            "attention.local_window.window=4,8,16"
        )
    figure = new_figure(11.4, 3.2 * len(rows) + 0.5)
    grid = figure.subplots(len(rows), 3, squeeze=False, sharex="row")
    for panels, (task, line) in zip(grid, rows, strict=True):
        _knob_row(list(panels), task, line)
    figure.suptitle(say("What a knob buys and what it costs: mean, 95 % interval"), fontsize=11)
    return figure


def with_knob(records: Iterable[Record]) -> list[tuple[TaskQuality, KnobLine]]:
    return [(task, line) for task in task_qualities(records) for line in task.lines if line.knob]


def _state_panel(axes: Axes, task: TaskQuality) -> None:
    tidy(axes)
    for line in task.lines:
        points = [(score.state_bytes, score) for score in line.scores if score.state_bytes]
        if not points:
            continue
        points.sort(key=lambda point: point[0])
        label = line.name if line.knob is None else f"{line.name}, {line.knob}"
        sizes = [size / 1024 for size, _ in points]
        _draw(axes, line, sizes, [score for _, score in points], label)
        values = dict(zip(map(id, line.scores), line.values, strict=False))
        for size, score in points:
            if id(score) in values and score.value is not None:
                axes.annotate(
                    f"{values[id(score)]:g}",
                    (size / 1024, score.value.value),
                    xytext=(5, -9),
                    textcoords="offset points",
                    ha="left",
                    fontsize=7,
                    color=style_of(line.name, line.variant).color,
                )
    _baselines(axes, task)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_major_formatter(FuncFormatter(plain_numbers))
    axes.margins(x=0.08, y=0.12)
    after = say("state of decoding after {length} tokens, KiB", length=task.task.length)
    axes.set_xlabel(after, fontsize=9)
    axes.set_ylabel(_metric(task), fontsize=9)
    _keep_to_shares(axes, task)
    axes.set_title(task.task.label, fontsize=10)
    handles = axes.get_legend_handles_labels()[0]
    handles.sort(key=lambda handle: isinstance(handle, Line2D))  # baselines last
    axes.legend(
        handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )


def _keep_to_shares(axes: Axes, task: TaskQuality) -> None:
    """A share lies in [0, 1]; intervals over few seeds reach beyond and would flatten curves."""
    if task.task.metric in SHARES:
        axes.set_ylim(-0.04, 1.06)


def _knob_row(panels: list[Axes], task: TaskQuality, line: KnobLine) -> None:
    """Accuracy beside full and the baselines, then what each value costs beside full."""
    full = next((one for one in task.lines if one.name == "full"), None)
    _draw(panels[0], line, list(line.values), list(line.scores), line.name)
    if full is not None and full.scores[0].value is not None:
        panels[0].axhline(full.scores[0].value.value, color="#000000", label="full", linewidth=1.0)
    _baselines(panels[0], task)
    panels[0].set_ylabel(_metric(task), fontsize=9)
    _keep_to_shares(panels[0], task)
    panels[0].set_title(f"{task.task.label}: {line.name}", fontsize=10)
    costs: list[tuple[str, Callable[[Score], float | None]]] = [
        ("training, s", lambda score: score.train_seconds),
        ("peak memory, MiB", lambda score: score.memory_bytes and score.memory_bytes / MIB),
    ]
    look = style_of(line.name, line.variant).to_dict()
    for axes, (title, cost) in zip(panels[1:], costs, strict=True):
        found = [(x, y) for x, s in zip(line.values, line.scores, strict=True) if (y := cost(s))]
        axes.plot([x for x, _ in found], [y for _, y in found], markersize=6, **look)
        beside = None if full is None else cost(full.scores[0])
        if beside:
            axes.axhline(beside, color="#000000", linewidth=1.0)
        seen = [y for _, y in found] + ([beside] if beside else [])
        axes.set_ylim(0.0, 1.12 * max(seen, default=1.0))
        axes.set_ylabel(f"{say(title)}   {say(LOWER)}", fontsize=9)
        if not found:
            axes.set_yticks([])
            axes.text(0.5, 0.5, say("unknown"), transform=axes.transAxes, ha="center", fontsize=9)
    for axes in panels:
        tidy(axes)
        if min(line.values) > 0:
            axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(list(line.values)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(plain_numbers))
        axes.set_xlabel(line.knob or "", fontsize=9)
    panels[0].legend(
        fontsize=7, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2)
    )


def _draw(axes: Axes, line: KnobLine, x: list[float], scores: list[Score], label: str) -> None:
    values = [score.value for score in scores if score.value is not None]
    axes.errorbar(
        x,
        [value.value for value in values],
        yerr=[value.high - value.value if value.known else 0.0 for value in values],
        label=label,
        capsize=3,
        markersize=6,
        linewidth=1.5,
        **style_of(line.name, line.variant).to_dict(),
    )


def _baselines(axes: Axes, task: TaskQuality) -> None:
    """Grey lines; those far from every score would flatten the panel and are left to the legend."""
    values = [v for line in task.lines for s in line.scores for v in s.by_seed.values()]
    low, high = min(values), max(values)
    reach = max(high - low, 0.1 * abs(high))
    for i, (name, value) in enumerate(task.baselines.items()):
        look: dict[str, Any] = {
            "color": BASELINE_COLOUR,
            "linestyle": _BASELINE_LOOKS[i % 4],
            "linewidth": 1.3,
        }
        label = f"{name} {value:.3g}"
        if low - reach <= value <= high + reach:
            axes.axhline(value, label=label, **look)
        else:
            axes.plot([], [], label=f"{label} {say('(off the axis)')}", **look)


def _metric(task: TaskQuality) -> str:
    return f"{task.task.metric}   {say(HIGHER if task.task.higher_is_better else LOWER)}"
