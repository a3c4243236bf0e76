"""Intervals cover the truth as often as they say; ratios pair rounds where they can."""

from __future__ import annotations

import math

import numpy as np
import pytest
from synthetic import cost

from efficient_attn.analysis.ratios import divide, ratio
from efficient_attn.bench.intervals import Interval, mean_interval, median_interval


@pytest.mark.parametrize("n", [6, 9, 20, 101, 2000])
def test_the_order_statistics_are_the_tightest_that_reach_95_percent(n: int) -> None:
    found = median_interval(list(range(n)))
    assert found.value == np.median(range(n))
    rank = int(found.low) + 1
    assert found.high == n - rank

    def coverage(rank: int) -> float:
        return 1 - 2 * sum(math.comb(n, below) for below in range(rank)) / 2**n

    assert found.confidence == pytest.approx(coverage(rank))
    assert coverage(rank) >= 0.95 > coverage(rank + 1)


@pytest.mark.parametrize("n", [4, 6, 15, 40])
def test_the_median_interval_covers_a_skewed_truth(n: int) -> None:
    rng = np.random.default_rng(n)
    draws = np.exp(rng.normal(1.0, 0.5, (1000, n)))
    hits = [median_interval(row.tolist()).encloses(math.e) for row in draws]
    # Three standard errors of 1000 draws are 0.02.
    assert np.mean(hits) >= 0.93


def test_few_samples_give_wide_ends_and_one_gives_none() -> None:
    assert not median_interval([3.0]).known
    two = median_interval([1.0, 1.1])
    assert two.low < 0.7
    assert two.high > 1.6
    assert two.low <= two.value <= two.high


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        median_interval([])
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval([])


def test_the_mean_of_seeds_covers_the_truth() -> None:
    draws = np.random.default_rng(0).normal(0.9, 0.02, (1000, 3))
    hits = [mean_interval(row.tolist()).encloses(0.9) for row in draws]
    assert 0.92 <= np.mean(hits) <= 0.98
    assert not mean_interval([0.9]).known


def test_pairing_cancels_drift_that_unpaired_medians_keep() -> None:
    """The machine slows down fivefold during the cell; the ratio of 1.1 stays visible."""
    drift = np.geomspace(1, 5, 20)
    slow = cost("performer", median=1.1, drift=drift, noise=0.01, cell="c")
    fast = cost("full", median=1.0, drift=drift, noise=0.01, cell="c")
    paired = ratio(slow, fast)
    assert paired.paired
    assert paired.low < 1.1 < paired.high
    assert paired.high / paired.low < 1.03
    elsewhere = cost("full", median=1.0, drift=drift, noise=0.01, cell="other")
    unpaired = ratio(slow, elsewhere)
    assert not unpaired.paired
    assert unpaired.high / unpaired.low > 2


def test_rounds_that_do_not_match_are_not_paired() -> None:
    one = cost("performer", samples=[1.0, 2.0, 3.0], cell="c")
    other = cost("full", samples=[1.0, 2.0], cell="c")
    assert not ratio(one, other).paired


def test_the_paired_ratio_covers_the_truth() -> None:
    hits = []
    for seed in range(300):
        drift = np.exp(np.random.default_rng(seed).normal(0, 0.3, 15))
        one = cost("performer", median=0.8, noise=0.05, rounds=15, drift=drift, seed=seed)
        other = cost("full", median=1.0, noise=0.05, rounds=15, drift=drift, seed=seed)
        hits.append(ratio(one, other).encloses(0.8))
    assert np.mean(hits) >= 0.91


def test_dividing_keeps_the_ends_farthest_apart() -> None:
    one, other = Interval(2, 1, 3, 9, 0.95), Interval(4, 2, 8, 9, 0.95)
    found = divide(one, other)
    assert (found.value, found.low, found.high) == (0.5, 0.125, 1.5)
    unknown = divide(one, Interval(4, -math.inf, math.inf, 1, 0.0))
    assert (unknown.low, unknown.high) == (0.0, math.inf)


def test_unknown_ends_become_null() -> None:
    assert mean_interval([1.0]).to_dict() == {
        "value": 1.0,
        "low": None,
        "high": None,
        "n": 1,
        "confidence": 0.0,
    }
