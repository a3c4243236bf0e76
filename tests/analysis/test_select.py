"""Unlike records are kept apart: options, settings, machines, older measurements."""

from __future__ import annotations

import json

import pytest
from synthetic import ENVIRONMENT, accuracy, cells, cost, scores

from efficient_attn.analysis.accuracy import task_scores
from efficient_attn.analysis.select import (
    by_setting,
    contestants_in,
    entry_name,
    newest,
    relabel,
)
from efficient_attn.analysis.tables import frame


def window(size: int, **fields: object) -> dict:
    return {"options": {"window": size, "global_tokens": 0}, **fields}


def test_one_name_with_two_option_sets_becomes_two_contestants() -> None:
    records = [
        cost("local_window", 256, **window(64)),
        cost("local_window", 256, **window(128)),
        cost("local_window", 512, status="oom", options={"window": 128}),
        cost("local_window", 1024, status="oom", options={}),
    ]
    named = [record.contestant for record in relabel(records)]
    assert named == [
        "local_window (window=64)",
        "local_window (window=128)",
        "local_window (window=128)",
        "local_window",
    ]
    assert {entry_name(name) for name in named} == {"local_window"}


def test_options_that_follow_the_length_make_no_new_contestant() -> None:
    records = [cost("linformer", n, options={"k": 64, "max_len": n, "seed": n}) for n in (256, 512)]
    assert contestants_in(relabel(records)) == ["linformer"]


def test_relabelling_twice_changes_nothing() -> None:
    once = relabel([cost("local_window", **window(64)), cost("local_window", **window(8))])
    assert relabel(once) == once


def test_the_newest_of_equal_requests_counts() -> None:
    old = cost("full", median=9.0, created="2026-01-01T00:00:00")
    new = cost("full", median=1.0, created="2026-01-02T00:00:00")
    assert newest([new, old]) == [new]


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 2},
        {"head_dim": 32},
        {"dtype": "bfloat16"},
        {"threads": 1},
        {"scope": "module"},
        {"padding": 0.25},
        {"environment": {**ENVIRONMENT, "cpu": "Another", "device_name": "Another"}},
        {"pattern": "noncausal_cross", "key_length": 77},
    ],
    ids=str,
)
def test_settings_are_never_joined(change: dict) -> None:
    assert len(by_setting([cost(), cost(**change)])) == 2


def test_full_stands_first() -> None:
    names = contestants_in([cost("a"), cost("full_naive"), cost("full")])
    assert names == ["full", "full_naive", "a"]


def test_the_frame_has_a_row_for_every_record_and_survives_csv(tmp_path) -> None:
    records = cells((256, 512), fail={("full_naive", 512): "oom"}) + scores()
    table = frame(records)
    assert len(table) == len(records)
    row = table[(table.contestant == "local_window") & (table["pass"] == "forward")].iloc[0]
    assert json.loads(row.options) == {"window": 64, "global_tokens": 0}
    assert row.length in (256, 512)
    assert row["environment.cpu"] == "Example CPU"
    failed = table[table.status == "oom"]
    assert len(failed) == 4
    assert failed.median_ms.isna().all()
    trained = table[table.measure == "accuracy"].iloc[0]
    assert trained["task.name"] == "mqar"
    assert json.loads(trained.baselines) == {"chance": 0.1}
    table.to_csv(tmp_path / "records.csv")
    assert frame([]).empty


def test_scores_are_means_over_seeds_with_the_price_against_full() -> None:
    records = [accuracy("full", seed, value=0.9 + 0.02 * seed) for seed in range(3)]
    records += [accuracy("performer", seed, value=0.8 + 0.02 * seed) for seed in range(3)]
    records += [accuracy("linformer", 0, status="unsupported", reason="no causal form")]
    records += [
        accuracy("local_window", 0, value=0.5),
        accuracy("local_window", 1, status="crashed"),
    ]
    (task,) = task_scores(records)
    performer, linformer, local = map(task.of, ("performer", "linformer", "local_window"))
    assert performer is not None
    assert performer.value is not None
    assert performer.value.value == pytest.approx(0.82)
    # Seeds move both alike, so the paired difference is exact although the scores spread.
    assert performer.price is not None
    assert (performer.price.low, performer.price.high) == pytest.approx((0.1, 0.1))
    assert linformer is not None
    assert (linformer.value, linformer.status) == (None, "unsupported")
    assert linformer.reason == "no causal form"
    assert local is not None
    assert local.failures == {"crashed": 1}
    assert local.price is not None
    assert not local.price.known


def test_the_price_is_positive_for_worse_whichever_way_the_metric_points() -> None:
    fields = {"metric": "bits", "higher_is_better": False}
    records = [accuracy("full", seed, value=2.0, **fields) for seed in range(2)]
    records += [accuracy("performer", seed, value=2.5, **fields) for seed in range(2)]
    score = task_scores(records)[0].of("performer")
    assert score is not None
    assert score.price is not None
    assert score.price.value == pytest.approx(0.5)


def test_settings_of_one_task_are_told_apart() -> None:
    lengths = task_scores(scores(length=64) + scores(length=128))
    assert [task.label for task in lengths] == ["mqar (N=64)", "mqar (N=128)"]
    models = task_scores(scores() + scores(model={"d_model": 32}))
    assert {task.label for task in models} == {"mqar (model.d_model=64)", "mqar (model.d_model=32)"}
    uses = task_scores(
        scores(length=64, pattern="noncausal_cross") + scores(length=32, pattern="causal_self")
    )
    assert [task.label for task in uses] == [
        "mqar (N=32, causal self-attention)",
        "mqar (N=64, cross-attention)",
    ]
