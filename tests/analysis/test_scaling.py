"""The fit names the class that made the curve, and owns to the classes it cannot tell apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from synthetic import cost

from efficient_attn.analysis.scaling import (
    Curve,
    fit_scaling,
    flop_curve,
    memory_curve,
    time_curve,
)

TRUTHS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "constant": lambda n: 0.3 + 0 * n,
    "n": lambda n: 1e-3 * n,
    "overhead + n": lambda n: 0.2 + 1e-3 * n,
    "n log n": lambda n: 1e-4 * n * np.log2(n),
    "n^1.5": lambda n: 1e-4 * n**1.5,
    "n²": lambda n: 1e-6 * n**2,
}
# As large as the growing term at 512 tokens.
OVERHEADS = {
    "n log n": lambda n: 1 + n * np.log2(n) / 4608,
    "n^1.5": lambda n: 1 + (n / 512) ** 1.5,
    "n²": lambda n: 1 + (n / 512) ** 2,
}
SEVEN = [2**i for i in range(7, 14)]
EIGHT = [2**i for i in range(7, 15)]
SEVENTEEN = [round(2 ** (i / 2)) for i in range(12, 29)]


def noisy_curve(
    name: str,
    lengths: list[int],
    noise: float,
    seed: int,
    drift: float = 0.0,
    truths: dict[str, Callable[[np.ndarray], np.ndarray]] = TRUTHS,
) -> Curve:
    """drift: relative, moves all rounds of a length alike."""
    rng = np.random.default_rng(seed)
    truth = truths[name](np.asarray(lengths, dtype=float))
    truth = truth * np.exp(rng.normal(0, drift, len(lengths)))
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


@pytest.mark.parametrize("lengths", [EIGHT, SEVENTEEN], ids=["8-points", "17-points"])
@pytest.mark.parametrize("name", TRUTHS)
def test_drift_between_cells_makes_no_class(name: str, lengths: list[int]) -> None:
    """Repetition within a cell shows none of it."""
    found = [fit_scaling(noisy_curve(name, lengths, 0.03, seed, 0.03)).name for seed in range(60)]
    assert found.count(name) >= 57, found


@pytest.mark.parametrize("drift", [0.0, 0.03])
@pytest.mark.parametrize("name", OVERHEADS)
def test_overhead_does_not_hide_the_class(name: str, drift: float) -> None:
    found = [
        fit_scaling(noisy_curve(name, EIGHT, 0.03, seed, drift, OVERHEADS)).name
        for seed in range(60)
    ]
    assert found.count(name) >= 57, found


def test_classes_that_the_data_do_not_tell_apart_are_all_named() -> None:
    """Under 3 % of drift, 8 lengths do not tell overhead + n log n from n^1.5 with overhead."""
    fits = [
        fit_scaling(noisy_curve("n log n", EIGHT, 0.03, seed, 0.03, OVERHEADS))
        for seed in range(40)
    ]
    assert np.mean(["n^1.5" in fit.classes for fit in fits]) > 0.5
    assert np.mean(["n log n" in fit.classes for fit in fits]) >= 0.95
    clear = [fit_scaling(noisy_curve("n²", EIGHT, 0.03, seed, 0.03)) for seed in range(20)]
    assert all(fit.classes == ("n²",) for fit in clear)


def test_few_and_rough_lengths_do_not_turn_n_squared_into_n() -> None:
    """Cells that are off by 15 %, at five lengths: residuals alone would refute next to nothing."""
    found = [
        fit_scaling(noisy_curve("n²", [256 * 2**i for i in range(5)], 0.08, seed, 0.15)).name
        for seed in range(40)
    ]
    assert found.count("n²") >= 38, found


def test_tiles_and_edges_make_no_class_of_a_count() -> None:
    """Multiply-adds of a causal window of 64: rows at the start see fewer keys."""
    window = 64
    lengths = tuple(512 * 2**i for i in range(6))
    values = tuple(float(window * n - window * (window - 1) // 2) for n in lengths)
    fit = fit_scaling(Curve(lengths, values, tuple((value,) for value in values)))
    assert fit.name == "n"
    squares = tuple(float(n * (n + 1) // 2) for n in lengths)
    assert fit_scaling(Curve(lengths, squares, tuple((v,) for v in squares))).name == "n²"


@pytest.mark.parametrize("drift", [0.0, 0.03])
def test_intervals_of_coefficients_cover_them(drift: float) -> None:
    truths = {"overhead + n": lambda n: 0.2 + 1e-3 * n}
    hits = []
    for seed in range(200):
        fit = fit_scaling(noisy_curve("overhead + n", EIGHT, 0.03, seed, drift, truths))
        if fit.name != "overhead + n":
            continue
        found = fit.coefficients()
        assert list(found) == ["1", "n"]
        hits += [found["1"].encloses(0.2), found["n"].encloses(1e-3)]
    assert 0.92 <= np.mean(hits) <= 0.98
    assert len(hits) >= 380


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


def test_curves_come_from_the_ok_records_by_length() -> None:
    records = [
        cost("full", 512, median=2.0, noise=0, peak=2000),
        cost("full", 256, median=1.0, noise=0, peak=None),
        cost("full", 1024, status="oom"),
    ]
    assert time_curve(records).lengths == (256, 512)
    assert time_curve(records).values == (1.0, 2.0)
    assert memory_curve(records).lengths == (512,)
    assert flop_curve(records).lengths == ()
    counted = replace(records[0], result={**records[0].result, "flops": 7})
    assert flop_curve([counted, records[1]]) == Curve((512,), (7.0,), ((7.0,),))
