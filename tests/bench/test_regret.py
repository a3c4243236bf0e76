"""benchmarks/regret.py: draws, bounds and sums; the measuring itself is the sweep's."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from pathlib import Path

import pytest
from synthetic import cells, cost

from efficient_attn.analysis.pick import Request, pick

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "regret.py"


@pytest.fixture(scope="module")
def regret():
    spec = importlib.util.spec_from_file_location("regret", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["regret"] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def bounds(**more) -> argparse.Namespace:
    given = {"workloads": 8, "seed": 0, "threads": None, "longest": 12000}
    return argparse.Namespace(**{**given, "most_ms": 1e9, "most_gb": 1e9, **more})


PATTERNS = ("noncausal_self", "causal_self", "noncausal_cross", "causal_cross")


def test_the_same_seed_draws_the_same_workloads_within_the_bounds(regret) -> None:
    records = cells((256, 1024, 4096), ("full", "linformer"), PATTERNS)
    kept, left_out = regret._workloads(records, bounds())
    again, _ = regret._workloads(records, bounds())
    assert [one.request for one in kept] == [one.request for one in again]
    assert len(kept) == 8
    assert left_out == 0
    for ranking in kept:
        request = ranking.request
        assert 200 <= request.length <= 12000
        assert 1 <= request.batch <= 8
        assert 4 <= request.heads <= 16
        assert 32 <= request.head_dim <= 128
    few, left_out = regret._workloads(records, bounds(most_ms=50.0))
    assert left_out > 0
    for ranking in few:
        full = next(one for one in ranking.choices if one.contestant == "full")
        assert full.time.value <= 50


def test_regret_is_the_time_of_the_advised_over_the_fastest(regret) -> None:
    records = cells((256, 512, 2048), ("full", "linformer", "performer"))
    ranking = pick(records, Request(1024))
    advised = ranking.advised
    assert advised is not None
    times = {"full": 3.0, "linformer": 2.0, "performer": 1.0}
    measured = {name: cost(name, median=ms, noise=1e-6, cell="now") for name, ms in times.items()}
    outcome = regret._outcome(ranking, advised, measured)
    assert outcome.best == "performer"
    assert outcome.regret == pytest.approx(times[advised.contestant], rel=1e-3)
    assert outcome.place == sorted(times, key=times.__getitem__).index(advised.contestant) + 1
    for choice in ranking.choices:
        error = math.log(choice.time.value / times[choice.contestant])
        assert outcome.errors[choice.contestant] == pytest.approx(error, abs=1e-3)
        inside = choice.time.low <= times[choice.contestant] <= choice.time.high
        assert outcome.covered[choice.contestant] == inside


def test_the_summary_counts_what_it_says(regret) -> None:
    made = [
        regret.Outcome("w", "a", "a", 1.0, 1, {"a": math.log(1.1)}, {"a": True}),
        regret.Outcome("w", "a", "b", 1.5, 2, {"a": math.log(0.5)}, {"a": False}),
    ]
    summary = regret._summary(made)
    assert summary["workloads"] == 2
    assert summary["median regret"] == pytest.approx(1.25)
    assert summary["share of picks that were fastest"] == 0.5
    assert summary["coverage of their ranges"] == 0.5
    assert regret._summary([]) == {}
