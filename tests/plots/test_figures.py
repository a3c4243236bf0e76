"""Figures hold what they promise: every contestant, failures, guides, baselines, the front."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from synthetic import TIMES, accuracy, cells, cost, scores

from efficient_attn.analysis.accuracy import Score, task_scores
from efficient_attn.analysis.select import by_setting
from efficient_attn.bench.intervals import mean_interval
from efficient_attn.plots.accuracy import accuracy_figure
from efficient_attn.plots.curves import complexity_figure
from efficient_attn.plots.front import Point, front_figure, pareto, timed
from efficient_attn.plots.style import style_of

LONG = "a_contestant_with_a_really_long_name_for_a_test"


def curves(axes: Axes) -> dict[str, np.ndarray]:
    return {
        str(line.get_label()): np.asarray(line.get_xydata())
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def hidden(axes: Axes, word: str) -> list:
    return [line for line in axes.lines if word in str(line.get_label())]


def legend_texts(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of visible texts whose boxes share more than a sliver."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = []
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text.get_visible() and text.get_text().strip():
            box = text.get_window_extent(renderer)
            if box.width > 0 and box.x1 > 0 and box.y1 > 0:
                boxes.append((text.get_text(), box))
    pairs = []
    for i, (one, a) in enumerate(boxes):
        for other, b in boxes[i + 1 :]:
            width = min(a.x1, b.x1) - max(a.x0, b.x0)
            height = min(a.y1, b.y1) - max(a.y0, b.y0)
            if width > 2 and height > 2:
                pairs.append((one, other))
    return pairs


def test_every_pattern_has_its_three_panels_on_log_axes() -> None:
    figure = complexity_figure(cells())
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 6
    for start in ("time, forward\n", "time, forward+backward\n", "peak memory"):
        assert sum(title.startswith(start) for title in titles) == 2
    for axes in figure.axes:
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert "lower is better" in axes.get_ylabel()
    assert list(figure.axes[0].get_xticks()) == [256, 512, 1024, 2048]


def test_lines_are_medians_and_bands_their_intervals() -> None:
    records = cells(patterns=("noncausal_self",), passes=("forward",))
    axes = complexity_figure(records).axes[0]
    lines = curves(axes)
    assert set(lines) == set(TIMES)
    for record in records:
        points = dict(map(tuple, lines[record.contestant]))
        assert points[record.request["length"]] == pytest.approx(record.result["median_ms"])
    assert len(axes.collections) == len(TIMES)
    assert next(line for line in axes.lines if line.get_label() == "full").get_color() == (
        style_of("full").color
    )


def test_guides_grow_as_n_and_n_squared() -> None:
    axes = complexity_figure(cells()).axes[0]
    slopes = []
    for line in hidden(axes, "_guide"):
        (x0, y0), (x1, y1) = line.get_xydata()
        slopes.append(np.log(y1 / y0) / np.log(x1 / x0))
    assert slopes == pytest.approx([1.0, 2.0])


def test_failures_are_marked_at_their_length_near_the_top() -> None:
    fail = {("full_naive", 2048): "oom", ("performer", 2048): "timeout"}
    figure = complexity_figure(cells(fail=fail))
    axes = figure.axes[0]
    for name, status in (("full_naive", "oom"), ("performer", "timeout")):
        (mark,) = hidden(axes, f"{name} {status}")
        assert mark.get_marker() == "x"
        assert mark.get_xdata()[0] == 2048
        assert mark.get_ydata()[0] > 0.85
        assert mark.get_color() == style_of(name).color
        assert 2048 not in curves(axes)[name][:, 0]
    top = axes.transAxes.inverted().transform(axes.transData.transform(curves(axes)["full"]))
    assert top[:, 1].max() < 0.88
    texts = {text.get_text() for text in axes.texts}
    assert {"oom", "timeout"} <= texts
    assert "failed: oom, timeout" in legend_texts(figure)


def test_unsupported_is_said_in_words() -> None:
    figure = complexity_figure(cells())
    causal = [axes for axes in figure.axes if "causal" in axes.get_title()]
    assert len(causal) == 3
    for axes in causal:
        assert "unsupported: linformer" in {text.get_text() for text in axes.texts}
        assert "linformer" not in curves(axes)


def test_unknown_memory_is_left_out_not_drawn_as_zero() -> None:
    records = [cost("full", n) for n in (256, 512)]
    records += [cost("performer", n, peak=None) for n in (256, 512)]
    memory = complexity_figure(records).axes[1]
    assert set(curves(memory)) == {"full"}
    timed_only = complexity_figure([cost("performer", n, peak=None) for n in (256, 512)])
    assert len(timed_only.axes) == 1


@pytest.mark.parametrize("records", [[cost()], [cost(status="oom")]], ids=["one", "failed"])
def test_one_record_is_enough(records: list) -> None:
    figure = complexity_figure(records)
    FigureCanvasAgg(figure).draw()
    assert figure.axes


def test_predictions_are_dashed_hollow_and_named() -> None:
    records = cells((256, 512, 1024, 2048), patterns=("noncausal_self",), passes=("forward",))
    figure = complexity_figure(records, until=10_000)
    axes = figure.axes[0]
    assert set(curves(axes)) == set(TIMES)
    for name in TIMES:
        (line,) = hidden(axes, f"_{name} predicted")
        # Starts at the last measured value, then at doubled lengths up to the one asked for.
        assert list(line.get_xdata()) == [2048, 4096, 8192]
        assert line.get_ydata()[0] == curves(axes)[name][-1, 1]
        assert line.get_markerfacecolor() == "white"
        assert line.get_linestyle() == "--"
        assert line.get_color() == style_of(name).color
    assert "dashed, hollow: predicted" in legend_texts(figure)
    assert not hidden(complexity_figure(records).axes[0], "predicted")
    fail = {("full_naive", 1024): "timeout", ("full_naive", 2048): "oom"}
    one = cells(patterns=("causal_self",), fail=fail)
    assert overlapping(complexity_figure(one, until=16_384)) == []


def test_one_setting_is_drawn_at_a_time() -> None:
    records = cells((256, 512)) + cells((256,), batch=4)
    settings = list(by_setting(records))
    assert "batch 1" in str(complexity_figure(records).get_suptitle())
    assert "batch 4" in str(complexity_figure(records, settings[1]).get_suptitle())
    with pytest.raises(ValueError, match="no cost records"):
        complexity_figure(scores())


def test_the_legend_stands_outside_the_panels() -> None:
    figure = complexity_figure(cells(contestants=(*TIMES, LONG)))
    FigureCanvasAgg(figure).draw()
    legend = figure.legends[0].get_window_extent()
    assert {*TIMES, LONG} <= set(legend_texts(figure))
    for axes in figure.axes:
        assert axes.get_window_extent().x1 <= legend.x0
    assert legend.x1 <= figure.bbox.x1 + 1


def test_texts_do_not_cover_each_other() -> None:
    fail = {("full_naive", 1024): "timeout", ("full_naive", 2048): "oom", (LONG, 2048): "oom"}
    records = cells((128, 256, 512, 1024, 2048), contestants=(*TIMES, LONG), fail=fail)
    records += scores({"full": 0.9, "local_window": 0.3, "linformer": 0.5, LONG: 0.4})
    records += scores(task="digits", pattern="noncausal_self")
    for figure in (complexity_figure(records), accuracy_figure(records), front_figure(records)):
        assert overlapping(figure) == []


def test_accuracy_shows_intervals_seeds_baselines_and_statuses() -> None:
    records = scores(baselines={"chance": 0.02, "majority": 0.03})
    figure = accuracy_figure(records)
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()][::-1] == [
        "full",
        "full_naive",
        "linformer",
        "local_window",
        "performer",
        "shifted_window",
    ]
    assert "unsupported" in {text.get_text() for text in axes.texts}
    assert len(axes.containers) == 5
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["chance 0.02", "majority 0.03"]
    assert "higher is better" in axes.get_xlabel()
    full = next(item for item in axes.containers if item.get_label() == "full")
    (mean,) = task_scores(records)[0].scores[:1]
    assert mean.value is not None
    assert full.lines[0].get_xdata()[0] == pytest.approx(mean.value.value)


def test_several_lengths_become_accuracy_over_length() -> None:
    records = [r for n in (64, 128, 256) for r in scores(length=n)]
    (axes,) = accuracy_figure(records).axes
    assert list(axes.get_xticks()) == [64, 128, 256]
    assert "linformer: unsupported" in axes.get_title()
    full = next(item for item in axes.containers if item.get_label() == "full")
    assert list(full.lines[0].get_xdata()) == [64, 128, 256]


def test_a_far_baseline_does_not_flatten_the_scores() -> None:
    records = scores(
        {"full": 2.1, "performer": 2.3},
        task="byte_lm",
        metric="bits_per_byte",
        higher_is_better=False,
        baselines={"unigram": 4.6, "uniform": 80.0},
    )
    (axes,) = accuracy_figure(records).axes
    assert axes.get_xlim()[1] < 10
    assert axes.get_xlim()[1] > 4.6
    legend = axes.get_legend()
    assert legend is not None
    assert "uniform 80 (off the axis)" in [text.get_text() for text in legend.get_texts()]
    assert "← lower is better" in axes.get_xlabel()


def test_one_seed_draws_a_point_without_an_interval() -> None:
    (axes,) = accuracy_figure([accuracy("full"), accuracy("performer")]).axes
    FigureCanvasAgg(axes.figure).draw()  # type: ignore[arg-type]
    assert np.isfinite(axes.get_xlim()).all()


def point(name: str, cost: float, value: float) -> Point:
    score = Score(name, name, {}, mean_interval([value, value]), {}, {}, None, None, 1.0, 1)
    return Point(name, cost, score)


def test_the_front_holds_what_nothing_else_beats() -> None:
    points = [
        point("slow_good", 9, 0.9),
        point("fast_bad", 1, 0.2),
        point("dominated", 5, 0.1),
        point("middle", 4, 0.5),
        point("same_time_worse", 4, 0.4),
    ]
    front = [p.contestant for p in pareto(points, higher_is_better=True)]
    assert front == ["fast_bad", "middle", "slow_good"]
    lower = [p.contestant for p in pareto(points, higher_is_better=False)]
    assert lower == ["fast_bad", "dominated"]


def test_the_front_is_solid_and_the_rest_faded() -> None:
    records = cells() + scores({"full": 0.9, "performer": 0.5, "local_window": 0.2})
    (axes,) = front_figure(records).axes
    alphas = {item.get_label(): item.lines[0].get_alpha() for item in axes.containers}
    # At N=256, the length nearest to the task's 64, full is both fastest and best.
    assert alphas == {"full": 1.0, "performer": 0.35, "local_window": 0.35}
    assert "forward+backward at N=256, ms" in axes.get_xlabel()


def test_time_is_the_nearest_measured_length_or_training_for_all() -> None:
    (task,) = task_scores(scores({"full": 0.9, "performer": 0.5}, length=600))
    points, label = timed(task, cells())
    assert "N=512" in label
    by_name = {p.contestant: p.cost for p in points}
    assert by_name["full"] == pytest.approx(3 * TIMES["full"](512), rel=0.3)
    without = [record for record in cells() if record.contestant != "performer"]
    points, label = timed(task, without)
    assert label == "training, s"
    assert {p.cost for p in points} == {6.0}


def test_times_of_other_options_than_those_trained_do_not_count() -> None:
    (task,) = task_scores(scores({"full": 0.9, "performer": 0.5}, length=600))
    others = [
        replace(record, options={**record.options, "num_features": 8})
        if record.contestant == "performer"
        else record
        for record in cells()
    ]
    assert timed(task, others)[1] == "training, s"


def test_memory_has_a_front_where_everybody_has_a_peak() -> None:
    measured = scores({"full": 0.9, "performer": 0.5}, length=600)
    (axes,) = front_figure(cells() + measured, "memory").axes
    assert "forward+backward at N=512, MiB" in axes.get_xlabel()
    places = {item.get_label(): item.lines[0].get_xdata()[0] for item in axes.containers}
    # 2048 and 9000 bytes per token.
    assert places == pytest.approx({"full": 1.0, "performer": 9000 * 512 / 2**20})
    unknown = cells(peak=None)
    with pytest.raises(ValueError, match="no task has the peak memory"):
        front_figure(unknown + measured, "memory")


def test_one_contestant_makes_no_front() -> None:
    lone = [accuracy("full", task="digits")]
    both = [accuracy("full"), accuracy("performer")]
    (axes,) = front_figure(lone + both).axes
    assert axes.get_title() == "mqar"
    with pytest.raises(ValueError, match="two contestants"):
        front_figure(lone)


def test_panels_are_as_tall_as_their_contestants_need() -> None:
    tasks = [accuracy("full", task=f"task{i}") for i in range(3)]
    many = [accuracy(f"variant_{i}", task="wide") for i in range(12)]
    figure = accuracy_figure(tasks + many)
    FigureCanvasAgg(figure).draw()
    heights = {axes.get_title(): axes.get_position().height for axes in figure.axes}
    assert heights["wide"] > 2 * heights["task0"]


def test_an_interval_of_a_share_does_not_stretch_the_axis() -> None:
    seeds = [accuracy("full", 0, value=0.1), accuracy("full", 1, value=0.6)]
    (axes,) = accuracy_figure(seeds).axes
    assert axes.get_xlim()[0] >= -0.05
    assert axes.get_xlim()[1] <= 1.07


@pytest.mark.parametrize("draw", [accuracy_figure, front_figure])
def test_nothing_to_draw_is_said(draw) -> None:
    with pytest.raises(ValueError, match="run an accuracy sweep first"):
        draw(cells((256,)))
