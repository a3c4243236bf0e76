"""Accuracy against time or memory: who pays for accuracy, and who pays for nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from efficient_attn.analysis.accuracy import Score, TaskScores, task_scores
from efficient_attn.analysis.ratios import time_interval
from efficient_attn.analysis.scaling import peak_bytes
from efficient_attn.analysis.select import (
    Setting,
    by_setting,
    contestant_order,
    length_of,
    pass_of,
    pattern_of,
    shared_difference,
)
from efficient_attn.bench.record import Record
from efficient_attn.plots.language import say, say_setting
from efficient_attn.plots.style import (
    HIGHER,
    LOWER,
    new_figure,
    plain_numbers,
    style_of,
    tidy,
    within_shares,
    wrapped,
)

FADED = 0.35
MIB = 2**20

Quantity = Literal["time", "memory"]


@dataclass(frozen=True)
class Point:
    """One contestant on one task. cost: as the panel's axis says (ms, s or MiB)."""

    contestant: str
    cost: float
    score: Score

    @property
    def accuracy(self) -> float:
        return self.score.value.value if self.score.value else math.nan


def front_figure(records: Iterable[Record], quantity: Quantity = "time") -> Figure:
    """One panel per task that two contestants or more have a score on: mean accuracy over cost, the
    Pareto front solid and the rest faded.

    Cost is the forward+backward median time, or the peak of tensor memory, of the same contestants,
    with the options they were trained with, at the measured length nearest to the task's, all from
    one setting. Where some contestant has none, training seconds serve for all as time, and the
    task has no panel of memory. ValueError when there is nothing to draw.
    """
    records = list(records)
    tasks = contested(task_scores(records))
    if not tasks:
        raise ValueError(
            "no task has accuracy scores of two contestants: run an accuracy sweep first"
        )
    if quantity == "memory":
        tasks = tasks_with_memory(tasks, records)
    if not tasks:
        raise ValueError(
            "no task has the peak memory of all its contestants: sweep their forward_backward pass "
            "at about the task's length, with the options they were trained with"
        )
    columns = min(len(tasks), 3)
    rows = -(-len(tasks) // columns)
    figure = new_figure(4.6 * columns + 2.4, 3.9 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, task in zip(grid, tasks, strict=False):
        found = weighed(task, records) if quantity == "memory" else timed(task, records)
        assert found is not None
        points, label = found
        _panel(axes, task, points, label)
    for axes in grid[len(tasks) :]:
        axes.set_visible(False)
    _legend(figure, tasks)
    title = (
        "Accuracy against memory: the front solid, the rest faded"
        if quantity == "memory"
        else "Accuracy against time: the front solid, the rest faded"
    )
    figure.suptitle(say(title), fontsize=11)
    return figure


def contested(tasks: Iterable[TaskScores]) -> list[TaskScores]:
    """Tasks with the scores of at least two contestants."""
    return [task for task in tasks if sum(score.value is not None for score in task.scores) > 1]


def timed(task: TaskScores, records: Iterable[Record]) -> tuple[list[Point], str]:
    """The scored contestants of a task with their times, and what that time is."""
    found = _costed(task, records, lambda record: time_interval(record).value, "ms")
    if found is not None:
        return found
    scored = [score for score in task.scores if score.value is not None]
    return [
        Point(score.contestant, score.train_seconds or math.nan, score) for score in scored
    ], say("training, s")


def weighed(task: TaskScores, records: Iterable[Record]) -> tuple[list[Point], str] | None:
    """The scored contestants of a task with their peak memory, and at which length; None where
    somebody's is not known."""
    return _costed(task, records, _mebibytes, "MiB")


def tasks_with_memory(tasks: list[TaskScores], records: list[Record]) -> list[TaskScores]:
    return [task for task in tasks if weighed(task, records) is not None]


def _costed(
    task: TaskScores,
    records: Iterable[Record],
    cost: Callable[[Record], float | None],
    unit: str,
) -> tuple[list[Point], str] | None:
    """At the length and in the setting nearest to the task that has the cost of everybody."""
    scored = [score for score in task.scores if score.value is not None]
    best: tuple[float, list[Point], str] | None = None
    for setting, members in by_setting(records).items():
        for length, costs in _costs(members, task, cost).items():
            if scored and all(score.contestant in costs for score in scored):
                distance = abs(math.log(length / max(task.length, 1)))
                if best is None or distance < best[0]:
                    points = [Point(s.contestant, costs[s.contestant], s) for s in scored]
                    best = distance, points, _label(length, setting, unit)
    return None if best is None else best[1:]


def _mebibytes(record: Record) -> float | None:
    peak = peak_bytes(record)
    return peak / MIB if peak else None


def pareto(points: list[Point], *, higher_is_better: bool) -> list[Point]:
    """Points that no other beats in both cost and accuracy, by rising cost."""
    sign = 1.0 if higher_is_better else -1.0
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -sign * point.accuracy)):
        if not front or sign * point.accuracy > sign * front[-1].accuracy:
            front.append(point)
    return front


def _costs(
    records: list[Record], task: TaskScores, cost: Callable[[Record], float | None]
) -> dict[int, dict[str, float]]:
    """Training passes of the contestants as they were trained: other options have other costs."""
    options = {score.contestant: score.options for score in task.scores}
    costs: dict[int, dict[str, float]] = defaultdict(dict)
    for record in records:
        if not record.ok or record.contestant not in options:
            continue
        fits = pattern_of(record) == task.pattern and pass_of(record) == "forward_backward"
        if fits and not shared_difference(record.options, options[record.contestant]):
            value = cost(record)
            if value is not None:
                costs[length_of(record)][record.contestant] = value
    return costs


def _label(length: int, setting: Setting, unit: str) -> str:
    what = say("forward+backward at N={length}, {unit}", length=length, unit=unit)
    return f"{what}\n{say_setting(setting)}"


def _panel(axes: Axes, task: TaskScores, points: list[Point], label: str) -> None:
    tidy(axes)
    front = pareto(points, higher_is_better=task.higher_is_better)
    axes.plot(
        [point.cost for point in front],
        [point.accuracy for point in front],
        color="#555555",
        linewidth=1.2,
        drawstyle="steps-post",
        zorder=1,
        label="_front",
    )
    for point in points:
        look = style_of(point.contestant, point.score.variant)
        value = point.score.value
        reach = value.high - value.value if value is not None and value.known else 0.0
        axes.errorbar(
            [point.cost],
            [point.accuracy],
            yerr=[reach],
            fmt=look.marker,
            color=look.color,
            alpha=1.0 if point in front else FADED,
            capsize=3,
            markersize=8,
            label=point.contestant,
        )
    axes.set_xscale("log")
    axes.margins(x=0.12, y=0.1)
    axes.set_ylim(within_shares(axes.get_ylim(), task.metric))
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(plain_numbers))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"{label}\n{say(LOWER).replace('↓', '←')}", fontsize=8)
    direction = say(HIGHER if task.higher_is_better else LOWER)
    axes.set_ylabel(f"{task.metric}   {direction}", fontsize=9)
    silent = [f"{s.contestant}: {s.status}" for s in task.scores if s.value is None]
    axes.set_title("\n".join([wrapped(task.label), *silent]), fontsize=10)


def _legend(figure: Figure, tasks: list[TaskScores]) -> None:
    variants = {s.contestant: s.variant for task in tasks for s in task.scores if s.value}
    handles = []
    for name in sorted(variants, key=contestant_order):
        look = style_of(name, variants[name])
        handles.append(
            Line2D([], [], color=look.color, marker=look.marker, linestyle="none", label=name)
        )
    figure.legend(handles=handles, loc="outside right upper", fontsize=9, frameon=False)
