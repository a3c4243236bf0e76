"""Figures of what accuracy costs: over state and over a knob."""

from __future__ import annotations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from synthetic import accuracy, cells
from test_figures import overlapping

from efficient_attn.analysis.quality import task_qualities
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.plots.quality import knob_figure, state_figure
from efficient_attn.plots.render import plot
from efficient_attn.plots.style import style_of

WINDOWS = (4, 8, 16, 32)
FEATURES = (16, 64, 256)


def recall() -> list[Record]:
    """Windows recall more the wider they are, features more the more; two seeds."""
    records = []
    for seed in (0, 1):
        shift = 0.01 * seed
        for w in WINDOWS:
            records.append(
                accuracy(
                    "local_window",
                    seed,
                    value=0.02 * w + shift,
                    options={"window": w},
                    state_bytes=1024 * w,
                    train_seconds=4.0 + w / 8,
                )
            )
        for m in FEATURES:
            records.append(
                accuracy(
                    "performer",
                    seed,
                    value=0.2 + 0.003 * m + shift,
                    options={"num_features": m},
                    state_bytes=2048 * m,
                )
            )
        records.append(accuracy("full", seed, value=0.99 + shift, state_bytes=128 * 1024))
        records.append(accuracy("no_mixing", seed, value=0.05, options={"window": 0}))
    return records


def containers(axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        item.get_label(): tuple(list(values) for values in item.lines[0].get_data())
        for item in axes.containers
    }


def test_one_line_per_entry_over_the_bytes_of_its_state() -> None:
    (axes,) = state_figure(recall()).axes
    drawn = containers(axes)
    assert set(drawn) == {"full", "local_window, window", "performer, num_features"}
    sizes, values = drawn["local_window, window"]
    assert sizes == [4, 8, 16, 32]  # KiB
    assert values == pytest.approx([0.02 * w + 0.005 for w in WINDOWS])
    assert drawn["performer, num_features"][0] == [32, 128, 512]
    assert drawn["full"][0] == [128]
    assert axes.get_xscale() == "log"
    assert "after 64 tokens, KiB" in axes.get_xlabel()
    assert "higher is better" in axes.get_ylabel()
    texts = [text.get_text() for text in axes.texts]
    assert texts == [str(value) for value in (*WINDOWS, *FEATURES)]
    colours = {item.get_label(): item.lines[0].get_color() for item in axes.containers}
    assert colours["performer, num_features"] == style_of("performer").color


def test_baselines_are_dashed_and_no_mixing_is_one_of_them() -> None:
    (axes,) = state_figure(recall()).axes
    legend = axes.get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[-2:] == ["chance 0.1", "no_mixing 0.05"]
    flat = {line.get_label(): line for line in axes.lines if " 0." in str(line.get_label())}
    assert {line.get_ydata()[0] for line in flat.values()} == {0.1, 0.05}
    assert all(line.get_linestyle() != "-" for line in flat.values())


def test_a_knob_is_the_one_option_that_differs() -> None:
    (task,) = task_qualities(recall())
    assert {line.name: line.knob for line in task.lines} == {
        "full": None,
        "local_window": "window",
        "performer": "num_features",
    }
    pairs = [accuracy("local_window", options={"window": [w, 0]}) for w in (9, 3)]
    (line,) = task_qualities(pairs)[0].lines
    assert line.values == (3.0, 9.0)
    two = [accuracy("performer", options={"num_features": m, "x": m}) for m in (8, 16)]
    (line,) = task_qualities(two)[0].lines
    assert (line.knob, len(line.scores)) == (None, 2)


def test_a_row_for_each_knob_with_what_it_costs() -> None:
    figure = knob_figure(recall())
    assert len(figure.axes) == 6
    quality, seconds, memory = figure.axes[:3]
    assert containers(quality)["local_window"][0] == list(WINDOWS)
    assert list(seconds.lines[0].get_ydata()) == [4.5, 5.0, 6.0, 8.0]
    assert list(seconds.lines[1].get_ydata()) == [6.0, 6.0]  # full
    assert seconds.get_xlabel() == "window"
    assert "lower is better" in seconds.get_ylabel()
    assert [text.get_text() for text in memory.texts] == ["unknown"]


def test_texts_do_not_cover_each_other() -> None:
    for figure in (state_figure(recall()), knob_figure(recall())):
        FigureCanvasAgg(figure).draw()
        for axes in figure.axes:  # labels of ticks out of sight stand anywhere
            low, high = axes.get_ylim()
            axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= high])
        assert overlapping(figure) == []


def test_figures_are_drawn_where_there_is_something_to_draw(tmp_path) -> None:
    store = Store(tmp_path)
    for record in recall():
        store.write(record)
    written = {path.name for path in plot(tmp_path)}
    assert {"state.svg", "state.png", "knobs.svg", "knobs.png"} <= written


@pytest.mark.parametrize("draw", [state_figure, knob_figure])
def test_nothing_to_draw_is_said(draw) -> None:
    for records in ([], cells((256,)), [accuracy("full"), accuracy("performer")]):
        with pytest.raises(ValueError, match=r"no (accuracy record|entry)"):
            draw(records)
