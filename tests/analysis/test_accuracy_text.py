"""What the closing tables say of accuracy: ties, baselines, parameters, what is missing."""

from __future__ import annotations

import io
import math
import statistics
from dataclasses import replace

import pytest
from scipy import stats
from synthetic import accuracy, cells

from efficient_attn.analysis.accuracy import TaskScores, task_scores
from efficient_attn.analysis.accuracy_text import remarks
from efficient_attn.analysis.pick import Request, pick
from efficient_attn.analysis.report_text import print_closing
from efficient_attn.analysis.standing import standing
from efficient_attn.bench.record import Record
from efficient_attn.plots.accuracy import accuracy_figure
from efficient_attn.plots.front import front_figure

FULL = (0.90, 0.94, 0.92, 0.96)


def entered(name: str, values: tuple[float, ...], **fields) -> list[Record]:
    return [accuracy(name, seed, value=value, **fields) for seed, value in enumerate(values)]


def with_result(record: Record, **fields) -> Record:
    return replace(record, result={**record.result, **fields})


def closing(records: list[Record]) -> str:
    out = io.StringIO()
    print_closing(records, out)
    return out.getvalue()


def rows(text: str, name: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.split()[:1] == [name]]


def only(records: list[Record]) -> TaskScores:
    (task,) = task_scores(records)
    return task


def test_ties_are_those_of_the_paired_t_test() -> None:
    """Against scipy's: the interval of the difference includes 0 where p > 5 %."""
    others = {
        "performer": (0.89, 0.95, 0.90, 0.955),  # up and down: a tie
        "linformer": (0.88, 0.92, 0.90, 0.94),  # always 0.02 lower, or nearly: none
        "local_window": (0.2, 0.3, 0.25, 0.28),
    }
    records = entered("full", FULL)
    for name, values in others.items():
        records += entered(name, values)
    found = standing(only(records))
    assert found is not None
    assert found.first == "full"
    tied = {n for n, values in others.items() if stats.ttest_rel(FULL, values).pvalue > 0.05}
    assert tied == {"performer"}
    assert found.ties == dict.fromkeys(tied, 4)
    assert found.untold == ()
    text = closing(records)
    assert "mqar: tied with full, the best mean, as the 95 % interval" in text
    assert "performer (4 seeds)." in text
    price = [a - b for a, b in zip(FULL, others["performer"], strict=True)]
    reach = stats.t.ppf(0.975, 3) * statistics.stdev(price) / math.sqrt(4)
    mean = statistics.fmean(price)
    expected = f"{mean:.3f} ({mean - reach:.3f} to {mean + reach:.3f}) tie"
    assert expected in rows(text, "performer")[1]
    assert "tie" not in rows(text, "linformer")[1]


def test_where_lower_is_better_the_lowest_comes_first() -> None:
    lower = {"metric": "bits_per_byte", "higher_is_better": False}
    records = entered("full", (2.0, 2.1, 2.2), **lower)
    records += entered("performer", (2.5, 2.6, 2.71), **lower)
    found = standing(only(records))
    assert found is not None
    assert (found.first, found.ties) == ("full", {})
    (row,) = rows(closing(records), "performer")[1:]
    assert "0.503 (" in row, "worse is positive"


def test_one_seed_has_no_interval() -> None:
    records = entered("full", (0.9,)) + entered("performer", (0.8,))
    text = closing(records)
    assert "mqar: one seed: no interval tells performer from full." in text
    assert "0.100 (?)" in text
    assert "tied" not in text


def test_the_trained_baseline_stands_with_the_baselines() -> None:
    bare = entered("no_mixing", (0.20, 0.22, 0.21, 0.23))
    records = entered("full", FULL) + bare + entered("local_window", (0.2, 0.25, 0.19, 0.24))
    task = only(records)
    assert [score.contestant for score in task.scores] == ["full", "local_window"]
    assert [score.contestant for score in task.controls] == ["no_mixing"]
    assert task.references == pytest.approx({"chance": 0.1, "no_mixing": 0.215})
    text = closing(records)
    scores = [" ".join(line.split()) for line in text.splitlines()]
    assert not rows(text, "no_mixing")
    place = scores.index("(no_mixing) 0.215 ± 0.021")
    assert scores[place - 1] == ""
    assert scores[place + 1].startswith("(chance)")
    assert "mqar: not shown to be better than no_mixing: local_window (4 seeds)." in text


def test_a_baseline_that_wins_is_not_first() -> None:
    found = standing(only(entered("no_mixing", (0.99, 0.98)) + entered("full", (0.5, 0.6))))
    assert found is not None
    assert found.first == "full"
    assert found.level == {"full": 2}
    assert standing(only(entered("no_mixing", (0.9,)))) is None


def test_what_is_missing_for_a_comparison_is_said() -> None:
    both = entered("full", (0.9, 0.8)) + entered("no_mixing", (0.1, 0.2))
    without = entered("performer", (0.5, 0.6), task="byte_lm")
    said = remarks(task_scores(both + without))
    assert "No full to compare with on byte_lm: add attention=[full,...]." in said
    assert any("on byte_lm: add attention=[no_mixing,...]." in line for line in said)
    assert not any("compare with" in line or "add attention" in line for line in remarks(
        task_scores(both)
    ))  # fmt: skip


def test_parameters_stand_with_their_difference_to_full() -> None:
    records = [with_result(accuracy("full"), parameters=117_000)]
    records += [with_result(accuracy("linformer"), parameters=125_190)]
    records += [with_result(accuracy("performer"), parameters=117_000)]
    records += [with_result(accuracy("local_window"), parameters=116_100)]
    records = [
        replace(r, status="ok", request={**r.request, "task": {"name": "t", "length": 8}})
        for r in records
    ]
    text = closing(records)
    assert "125.2 k +8.2 k (+7 %)" in rows(text, "linformer")[1]
    assert "117.0 k same" in rows(text, "performer")[1]
    assert "116.1 k −900 (−0.77 %)" in rows(text, "local_window")[1]


def test_a_rate_at_an_end_of_the_grid_is_marked() -> None:
    def picked(name: str, *rates: float, grid=(1e-3, 3e-3, 1e-2)) -> list[Record]:
        trials = [{"learning_rate": r, "validation": 0.5, "status": "ok"} for r in grid]
        return [
            with_result(accuracy(name, seed), learning_rate=rate, trials=trials)
            for seed, rate in enumerate(rates)
        ]

    records = picked("full", 3e-3, 3e-3) + picked("performer", 1e-2, 1e-2)
    records += picked("local_window", 3e-3, 1e-3) + picked("linformer", 4e-3, grid=(4e-3,))
    text = closing(records)
    assert "0.003 50.0 k" in rows(text, "full")[1]
    assert "0.01 * 50.0 k" in rows(text, "performer")[1]
    assert "0.001–0.003 *1 of 2 50.0 k" in rows(text, "local_window")[1]
    assert "0.004 50.0 k" in rows(text, "linformer")[1], "one rate is no grid"


def test_memory_is_told_where_it_is_known() -> None:
    known = {"peak_tensor_bytes": 3 * 2**20, "peak_rss_bytes": 70 * 2**20}
    text = closing([with_result(accuracy("full"), **known), accuracy("performer")])
    assert rows(text, "full")[1].endswith("6.00 3.00 70.0")
    assert rows(text, "performer")[1].endswith("6.00 unknown unknown")


def test_records_of_earlier_versions_answer_the_same_question() -> None:
    old = accuracy("full", 0, value=0.5)
    task = {**old.request["task"], "capability": "recall"}
    model = {**old.request["model"], "dropout": 0.0}
    new = accuracy("full", 1, value=0.7)
    new = replace(new, request={**new.request, "task": task, "model": model})
    assert only([old, new]).scores[0].by_seed == {0: 0.5, 1: 0.7}
    other = replace(new, request={**new.request, "model": {**model, "dropout": 0.1}})
    assert len(task_scores([old, other])) == 2


def test_the_baseline_is_never_picked() -> None:
    contestants = ("full", "no_mixing", "performer")
    records = cells((512, 1024), contestants, ("causal_self",))
    records += entered("no_mixing", FULL) + entered("full", FULL)
    ranking = pick(records, Request(1024, pattern="causal_self"))
    names = [c.contestant for c in ranking.choices] + [r.contestant for r in ranking.rejections]
    assert set(names) == {"full", "performer"}
    assert "no_mixing" not in ranking.command
    full = next(choice for choice in ranking.choices if choice.contestant == "full")
    assert full.accuracy[0].baselines["no_mixing"] == pytest.approx(0.93)


def test_figures_show_the_baseline_as_one() -> None:
    records = entered("full", FULL) + entered("no_mixing", (0.2, 0.22, 0.21, 0.23))
    (axes,) = accuracy_figure(records).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["full"]
    legend = axes.get_legend()
    assert legend is not None
    assert "no_mixing 0.215" in [text.get_text() for text in legend.get_texts()]
    front = front_figure(records + entered("performer", FULL))
    assert "no_mixing" not in [t.get_text() for one in front.legends for t in one.get_texts()]
    lengths = [r for n in (64, 128) for r in entered("full", FULL, length=n)]
    lengths += [r for n in (64, 128) for r in entered("no_mixing", FULL, length=n)]
    (axes,) = accuracy_figure(lengths).axes
    assert "no_mixing (baseline)" in axes.get_legend_handles_labels()[1]
