"""Crossovers are read between measured lengths, and never invented beyond them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from synthetic import TIMES, cells, cost

from efficient_attn.analysis.crossover import FUSED, NAIVE, Crossover, crossovers
from efficient_attn.bench.record import Record


def curve(name: str, values: dict[int, float], noise: float = 0.01) -> list[Record]:
    return [cost(name, length, median=value, noise=noise) for length, value in values.items()]


def only(records: list[Record]) -> Crossover:
    (found,) = crossovers(records)
    return found


def true_crossing(contestant: str, baseline: str = "full") -> float:
    n = np.arange(64, 20_000)
    return float(n[np.argmax(TIMES[contestant](n) < TIMES[baseline](n))])


def test_the_crossing_lies_where_the_truth_crosses() -> None:
    records = cells((128, 256, 512, 1024, 2048), passes=("forward",), noise=0.01)
    for found in crossovers(records):
        assert found.paired
        if found.contestant == "full_naive":
            assert found.length is None
            continue
        truth = true_crossing(found.contestant)
        (crossing,) = found.crossings
        assert found.length == crossing.length == pytest.approx(truth, rel=0.03)
        assert crossing.faster
        assert crossing.high is not None
        assert 0 < crossing.low <= crossing.length <= crossing.high
        assert str(found).startswith(f"faster beyond N={found.length:.0f} (")


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Rounds drift together, and the truth lies between two lengths where the ratio bends."""
    truth = true_crossing("local_window")
    hits = []
    for seed in range(300):
        drift = np.exp(np.cumsum(np.random.default_rng(seed).normal(0, 0.05, 20)))
        records = [
            cost(name, length, noise=0.03, drift=drift, seed=seed)
            for name in ("full", "local_window")
            for length in (128, 256, 512, 1024, 2048)
        ]
        (crossing,) = only(records).crossings
        hits.append(crossing.low <= truth <= (crossing.high or math.inf))
    assert 0.92 <= np.mean(hits) <= 0.98


def test_not_reached_is_an_answer() -> None:
    records = curve("full", {256: 1, 512: 2}) + curve("performer", {256: 4, 512: 6})
    found = only(records)
    assert found.length is None
    assert found.crossings == ()
    assert [stretch.verdict for stretch in found.stretches] == ["slower"]
    assert str(found) == "not up to N=512"


def test_faster_everywhere_gives_no_length() -> None:
    records = curve("full", {256: 4, 512: 6}) + curve("performer", {256: 1, 512: 2})
    found = only(records)
    assert found.length == 0
    assert found.crossings == ()
    assert str(found) == "faster from N=256 to N=512"


def test_every_passage_is_told() -> None:
    full = dict.fromkeys((128, 256, 512, 1024), 1.0)
    other = {128: 2.0, 256: 0.5, 512: 2.0, 1024: 0.5}
    found = only(curve("full", full) + curve("performer", other))
    assert [crossing.faster for crossing in found.crossings] == [True, False, True]
    places = [crossing.length for crossing in found.crossings]
    assert 128 < places[0] < 256 < places[1] < 512 < places[2] < 1024
    # Halfway in the logarithm, by symmetry of the values.
    assert places[1] == pytest.approx(362, rel=0.03)
    assert found.length == places[-1]
    verdicts = [s.verdict for s in found.stretches if s.verdict != "even"]
    assert verdicts == ["slower", "faster", "slower", "faster"]
    borders = [(s.first, s.last) for s in found.stretches]
    assert (borders[0][0], borders[-1][1]) == (128, 1024)
    assert all(one[1] == other[0] for one, other in pairwise(borders))
    assert str(found).count("beyond N=") == 3
    back = only(curve("full", {128: 2.0, 256: 1.0}) + curve("performer", {128: 1.0, 256: 2.0}))
    assert back.length is None
    assert str(back).startswith("slower beyond N=181")


def test_a_crossing_at_the_edge_has_an_open_end() -> None:
    spread = np.exp(np.linspace(-0.3, 0.3, 20))

    def against_one(ratios: dict[int, float]) -> Crossover:
        full = [cost("full", n, samples=[1.0] * 20) for n in ratios]
        return only(
            full + [cost("performer", n, samples=list(r * spread)) for n, r in ratios.items()]
        )

    (late,) = against_one({128: 4.0, 256: 3.0, 512: 2.0, 1024: 0.97}).crossings
    assert (late.faster, late.high) == (True, None)
    assert 512 < late.low < late.length < 1024
    (early,) = against_one({128: 1.03, 256: 0.5, 512: 0.25, 1024: 0.1}).crossings
    assert (early.faster, early.low) == (True, 0)
    assert early.high is not None
    assert 128 < early.length < early.high < 256
    near = against_one({128: 4.0, 256: 3.0, 512: 2.0, 1024: 1.03})
    assert near.crossings == ()
    slower, even = str(near).split("; ")
    assert slower.startswith("slower from N=128 to N=")
    assert even.startswith("no difference shown from N=")
    assert even.endswith(" to N=1024")


def test_a_ratio_that_noise_hides_shows_no_difference() -> None:
    full = {256: 1.0, 512: 2.0, 1024: 4.0}
    found = only(curve("full", full, 0.3) + curve("performer", full, 0.3))
    assert [stretch.verdict for stretch in found.stretches] == ["even"]
    assert str(found) == "no difference shown from N=256 to N=1024"


def test_without_noise_a_crossing_is_a_point() -> None:
    found = only(curve("full", {256: 1, 512: 2}, 0) + curve("performer", {256: 2, 512: 1}, 0))
    (crossing,) = found.crossings
    assert crossing.low == pytest.approx(crossing.length)
    assert crossing.high == pytest.approx(crossing.length)
    assert crossing.length == pytest.approx(256 * math.sqrt(2))


def test_one_round_is_sure_of_nothing() -> None:
    full = [cost("full", n, samples=[t]) for n, t in ((256, 1.0), (512, 4.0), (1024, 16.0))]
    other = [cost("performer", n, samples=[t]) for n, t in ((256, 2.0), (512, 2.0), (1024, 2.0))]
    found = only(full + other)
    assert [stretch.verdict for stretch in found.stretches] == ["even"]
    assert [(c.low, c.high) for c in found.crossings] == [(0, None)]
    many = [
        *curve("full", {128: 1.0, 256: 1.0})[:1],
        *full[1:],
        *curve("performer", {128: 2.0})[:1],
        *other[1:],
    ]
    verdicts = [s.verdict for s in only(many).stretches]
    assert verdicts == ["slower", "even"] or verdicts == ["even"]


def test_noise_widens_the_interval() -> None:
    full = {256: 1.0, 512: 2.0, 1024: 4.0}
    other = {256: 1.3, 512: 1.95, 1024: 3.0}
    (sharp,) = only(curve("full", full) + curve("performer", other)).crossings
    (blurred,) = only(curve("full", full, 0.1) + curve("performer", other, 0.1)).crossings
    assert sharp.high is not None
    assert (blurred.high or 1024) - (blurred.low or 256) > sharp.high - sharp.low


def test_both_baselines_are_told_apart() -> None:
    records = cells((128, 512, 2048), patterns=("causal_self",), passes=("forward",), noise=0.01)
    found = crossovers(records, (FUSED, NAIVE))
    pairs = {(item.contestant, item.baseline) for item in found}
    assert ("full_naive", "full") in pairs
    assert ("full", "full_naive") not in pairs
    naive = next(f for f in found if (f.contestant, f.baseline) == ("performer", "full_naive"))
    assert naive.length == pytest.approx(true_crossing("performer", "full_naive"), rel=0.05)
    assert {item.baseline for item in crossovers(records)} == {"full"}


def test_cells_of_different_runs_are_not_paired() -> None:
    full = curve("full", {256: 1.0, 512: 2.0})
    other = [replace(r, cell=f"again {r.cell}") for r in curve("performer", {256: 2.0, 512: 1.0})]
    found = only(full + other)
    assert not found.paired
    assert found.length == pytest.approx(362, rel=0.03)


def test_lengths_that_failed_take_no_part() -> None:
    records = curve("full", {256: 1.0, 512: 4.0}) + curve("performer", {256: 2.0, 512: 2.0})
    records.append(cost("performer", 1024, status="oom"))
    assert only(records).lengths == (256, 512)
    assert crossovers(curve("performer", {256: 1.0})) == []
    lone = only([cost("full", 256), cost("performer", 256)])
    assert lone.lengths == (256,)
    assert str(lone) == "not up to N=256"
