"""Maps and bars say what the records say: who is fastest, where it flips, what failed."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from synthetic import TIMES, cells, cost, counted, scores

from efficient_attn.analysis.crossover import crossovers
from efficient_attn.analysis.fastest import doubled, fastest
from efficient_attn.plots.crossover_map import EVEN, FASTER, SLOWER, crossover_figure, map_figure
from efficient_attn.plots.peak import peak_figure
from efficient_attn.plots.style import style_of

LENGTHS = (128, 512, 2048)


def boxes(axes: Axes, label: str) -> list[Rectangle]:
    return [patch for patch in axes.patches if patch.get_label() == label]


def words(figure: Figure) -> set[str]:
    texts = {text.get_text() for axes in figure.axes for text in axes.texts}
    return texts | {t.get_text() for legend in figure.legends for t in legend.get_texts()}


def quickest(length: int, *, causal: bool) -> str:
    able = [name for name in TIMES if not (causal and name == "linformer")]
    return min(able, key=lambda name: TIMES[name](length))


def test_the_fastest_is_the_one_the_formulas_say() -> None:
    for found in fastest(cells(LENGTHS, noise=0.001)):
        causal = found.pattern.startswith("causal")
        assert found.contestant == quickest(found.length, causal=causal)
        assert found.even == ()
        assert found.gain is not None
        gain = TIMES["full"](found.length) / TIMES[found.contestant](found.length)
        assert found.gain.value == pytest.approx(gain, rel=0.01)
        assert found.failed == ((("linformer", "unsupported"),) if causal else ())


def test_who_may_be_as_fast_is_named() -> None:
    full = cost("full", 512, median=1.0, noise=0.1)
    other = cost("performer", 512, median=1.001, noise=0.1)
    slow = cost("local_window", 512, median=9.0, noise=0.1)
    (found,) = fastest([full, other, slow])
    assert {found.contestant, *found.even} == {"full", "performer"}


def test_other_peoples_code_and_failures_are_never_the_fastest() -> None:
    records = [cost("full", 512, median=2.0), cost("peer:fast", 512, median=1.0)]
    records += [cost("performer", 512, status="oom"), cost("full", 1024, status="oom")]
    (found,) = fastest(records)
    assert (found.contestant, found.length) == ("full", 512)
    assert found.failed == (("performer", "oom"),)


def test_predictions_follow_the_measured_lengths_and_say_so() -> None:
    records = cells((256, 512, 1024, 2048), patterns=("noncausal_self",), passes=("forward",))
    found = fastest(records, until=9000)
    assert [cell.length for cell in found if cell.predicted] == [4096, 8192]
    assert [cell.length for cell in found if not cell.predicted] == [256, 512, 1024, 2048]
    beyond = found[-1]
    assert quickest(8192, causal=False) in {beyond.contestant, *beyond.even}
    assert beyond.gain is not None
    assert beyond.gain.confidence == 0
    assert doubled([256, 300], 2400) == [600, 1200, 2400]
    assert doubled([256], None) == []


def test_the_map_colours_each_cell_by_its_fastest() -> None:
    figure = map_figure(cells(LENGTHS, noise=0.001))
    assert [axes.get_title() for axes in figure.axes] == ["forward", "forward+backward"]
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["128", "512", "2048"]
    for column, length in enumerate(LENGTHS):
        name = quickest(length, causal=False)
        found = [b for b in boxes(axes, f"_{name}") if round(b.get_x() + 0.46) == column]
        assert any(to_hex(box.get_facecolor()) == style_of(name).color.lower() for box in found)
        assert all(box.get_linestyle() in ("-", "solid") for box in found)
    gain = TIMES["full"](2048) / TIMES[quickest(2048, causal=False)](2048)
    assert f"{gain:.1f}×" in {text.get_text() for text in axes.texts}
    assert "times as fast as full" in figure.get_suptitle()
    assert "never fastest:" in " ".join(words(figure))


def test_predicted_cells_are_dashed_and_hollow() -> None:
    records = cells((256, 512, 1024, 2048), patterns=("causal_self",), passes=("forward",))
    figure = map_figure(records, until=4096)
    (axes,) = figure.axes
    dashed = [p for p in axes.patches if p.get_linestyle() not in ("-", "solid")]
    assert [round(patch.get_x() + 0.46) for patch in dashed] == [4]
    markers = [line for line in axes.lines if "marker" in str(line.get_label())]
    assert [line.get_markerfacecolor() == "none" for line in markers] == [False] * 4 + [True]
    assert "dashed, pale: predicted" in words(figure)
    assert "dashed, pale: predicted" not in words(map_figure(records))


def test_bars_show_the_stretches_and_the_crossing() -> None:
    records = cells((128, 512, 2048), patterns=("noncausal_self",), passes=("forward",))
    (found,) = [f for f in crossovers(records) if f.contestant == "performer"]
    (axes,) = crossover_figure(records).axes
    colours = {"slower": SLOWER, "even": EVEN, "faster": FASTER}
    heights = {}
    for stretch in found.stretches:
        label = f"_performer {stretch.verdict}"
        ((bar,),) = [bars.patches for bars in axes.containers if bars.get_label() == label]
        assert bar.get_x() == pytest.approx(stretch.first)
        assert bar.get_x() + bar.get_width() == pytest.approx(stretch.last)
        assert to_hex(bar.get_facecolor()) == colours[stretch.verdict].lower()
        heights[stretch.verdict] = bar.get_height()
    assert heights["faster"] > heights["even"] > heights["slower"]
    (diamond,) = [line for line in axes.lines if line.get_label() == "_performer crossing"]
    assert diamond.get_xdata()[0] == found.length
    assert f"{found.length:.0f}" in {text.get_text() for text in axes.texts}


def test_bars_mark_what_failed_and_what_is_refused() -> None:
    fail = {("full_naive", 2048): "oom"}
    figure = crossover_figure(cells(LENGTHS, patterns=("causal_self",), fail=fail))
    axes = figure.axes[0]
    (cross,) = [line for line in axes.lines if line.get_label() == "_full_naive oom"]
    assert (cross.get_marker(), cross.get_xdata()[0]) == ("x", 2048)
    assert "oom" in {text.get_text() for text in axes.texts}
    both = crossover_figure(cells(LENGTHS, patterns=("noncausal_self", "causal_self")))
    refused = both.axes[2]
    assert "causal self-attention, forward" in refused.get_title()
    assert "unsupported" in {text.get_text() for text in refused.texts}
    naive = crossover_figure(cells(LENGTHS), baseline="full_naive")
    assert "faster than full_naive" in naive.get_suptitle()


def test_shares_are_the_limit_over_the_median() -> None:
    records = counted(cells(LENGTHS, patterns=("noncausal_self",), passes=("forward",)))
    figure = peak_figure(records)
    (axes,) = figure.axes
    assert "higher is better" in axes.get_ylabel()
    line = next(line for line in axes.lines if line.get_label() == "full")
    for length, share in zip(line.get_xdata(), line.get_ydata(), strict=True):
        record = next(r for r in records if (r.contestant, r.request["length"]) == ("full", length))
        limit_ms = max(2048 * length**2 / 1e11, 8192 * length / 1e10) * 1e3
        assert share == pytest.approx(100 * limit_ms / np.median(record.result["samples_ms"]))
    # 2048 N² at 1e11 against 8192 N at 1e10: arithmetic binds above N=40, so everywhere here.
    bound = {str(line.get_label()) for line in axes.lines if "bound" in str(line.get_label())}
    assert bound == {"_bound by compute"}
    assert {"bound by arithmetic", "bound by memory", "the limit"} <= words(figure)


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(ValueError, match="no cost records to draw"):
        map_figure(scores())
    with pytest.raises(ValueError, match="every contestant failed"):
        map_figure([cost(status="oom")])
    with pytest.raises(ValueError, match="no length was measured for full and another"):
        crossover_figure([cost("performer", 256)])
    with pytest.raises(ValueError, match="sweep again with this version"):
        peak_figure(cells((256,)))
