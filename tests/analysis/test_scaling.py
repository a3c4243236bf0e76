"""The fit names the class that made the curve; the slope's interval covers the true slope."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from synthetic import cost

from efficient_attn.analysis.scaling import (
    Curve,
    fit_scaling,
    memory_curve,
    time_curve,
    top_slope,
)

TRUTHS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "constant": lambda n: 0.3 + 0 * n,
    "n": lambda n: 1e-3 * n,
    "overhead + n": lambda n: 0.2 + 1e-3 * n,
    "n log n": lambda n: 1e-4 * n * np.log2(n),
    "n^1.5": lambda n: 1e-4 * n**1.5,
    "n²": lambda n: 1e-6 * n**2,
}
SEVEN = [2**i for i in range(7, 14)]
SEVENTEEN = [round(2 ** (i / 2)) for i in range(12, 29)]


def noisy_curve(name: str, lengths: list[int], noise: float, seed: int) -> Curve:
    rng = np.random.default_rng(seed)
    truth = TRUTHS[name](np.asarray(lengths, dtype=float))
    samples = truth[:, None] * np.exp(rng.normal(0, noise, (len(lengths), 15)))
    values = tuple(float(value) for value in np.median(samples, axis=1))
    return Curve(tuple(lengths), values, tuple(map(tuple, samples.tolist())))


@pytest.mark.parametrize("lengths", [SEVEN, SEVENTEEN], ids=["7-points", "17-points"])
@pytest.mark.parametrize("noise", [0.02, 0.06])
@pytest.mark.parametrize("name", TRUTHS)
def test_the_class_is_the_one_that_made_the_curve(
    name: str, noise: float, lengths: list[int]
) -> None:
    found = [fit_scaling(noisy_curve(name, lengths, noise, seed)).name for seed in range(40)]
    assert found.count(name) >= 38, found


def test_overhead_is_not_taken_for_a_logarithm() -> None:
    """Linear cost above 200 µs, which common big-O fitters call constant."""
    n = np.asarray([64, 128, 256, 512, 1024], dtype=float)
    values = tuple((0.2 + 1e-4 * n).tolist())
    fit = fit_scaling(Curve((64, 128, 256, 512, 1024), values, tuple((v,) for v in values)))
    assert fit.name == "overhead + n"
    assert fit.chosen.coefficients == pytest.approx((0.2, 1e-4), rel=1e-3)


@pytest.mark.parametrize("name", TRUTHS)
def test_predictions_are_near_and_their_range_encloses_the_truth(name: str) -> None:
    hits = []
    for seed in range(15):
        fit = fit_scaling(noisy_curve(name, SEVEN, 0.03, seed))
        for length, kind in ((700, "interpolated"), (32768, "extrapolated"), (100, "extrapolated")):
            there = fit.at(length)
            truth = float(TRUTHS[name](np.asarray(float(length))))
            assert there.kind == kind
            assert there.low <= there.value <= there.high
            assert there.value == pytest.approx(truth, rel=0.35)
            hits.append(there.low <= truth <= there.high)
    assert np.mean(hits) >= 0.95


def test_the_range_grows_with_the_distance_from_what_was_measured() -> None:
    fit = fit_scaling(noisy_curve("overhead + n", SEVEN, 0.05, 1))
    widths = [there.high / there.low for there in map(fit.at, (4096, 16384, 131072))]
    assert widths == sorted(widths)
    assert widths[-1] > widths[0]


def test_three_lengths_are_the_least() -> None:
    fit = fit_scaling(noisy_curve("n²", [256, 512, 1024], 0.01, 0))
    assert fit.name == "n²"
    with pytest.raises(ValueError, match="3 measured lengths, here are 2"):
        fit_scaling(noisy_curve("n", [256, 512], 0.01, 0))


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_slope_interval_covers_the_slope(power: float) -> None:
    hits = []
    lengths = (256, 512, 1024, 2048)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        truth = 1e-3 * np.asarray(lengths, dtype=float) ** power
        samples = truth[:, None] * np.exp(rng.normal(0, 0.05, (4, 15)))
        values = tuple(np.median(samples, axis=1).tolist())
        slope = top_slope(Curve(lengths, values, tuple(map(tuple, samples.tolist()))))
        assert slope is not None
        hits.append(slope.encloses(power))
    assert 0.88 <= np.mean(hits) <= 1.0


def test_the_slope_looks_at_the_top_two_octaves_only() -> None:
    lengths = (64, 128, 1024, 2048, 4096)
    values = (5.0, 5.0, 1.0, 4.0, 16.0)
    slope = top_slope(Curve(lengths, values, tuple((value,) for value in values)))
    assert slope is not None
    assert slope.value == pytest.approx(2.0)
    assert (slope.low, slope.high) == (slope.value, slope.value)
    assert top_slope(Curve((64, 1024), (1.0, 2.0), ((1.0,), (2.0,)))) is None


def test_curves_come_from_the_ok_records_by_length() -> None:
    records = [
        cost("full", 512, median=2.0, noise=0, peak=2000),
        cost("full", 256, median=1.0, noise=0, peak=None),
        cost("full", 1024, status="oom"),
    ]
    assert time_curve(records).lengths == (256, 512)
    assert time_curve(records).values == (1.0, 2.0)
    assert memory_curve(records).lengths == (512,)
