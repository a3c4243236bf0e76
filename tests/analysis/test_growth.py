"""Slopes hold the truth as often as they say, and curves that cannot be true are called out."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import cells, cost

from efficient_attn.analysis.growth import Growth, doubts, growths, top_slope
from efficient_attn.analysis.scaling import Curve, fit_scaling

EIGHT = tuple(2**i for i in range(7, 15))


def sampled(
    lengths: tuple[int, ...], truth: np.ndarray, noise: float, drift: float, seed: int
) -> Curve:
    rng = np.random.default_rng(seed)
    moved = truth * np.exp(rng.normal(0, drift, len(lengths)))
    rounds = moved[:, None] * np.exp(rng.normal(0, noise, (len(lengths), 15)))
    values = tuple(np.median(rounds, axis=1).tolist())
    return Curve(lengths, values, tuple(map(tuple, rounds.tolist())))


def exact(lengths: tuple[int, ...], values: tuple[float, ...]) -> Curve:
    return Curve(lengths, values, tuple((value,) for value in values))


def judged(curve: Curve, *, may_be_flat: bool = False) -> str:
    fit = fit_scaling(curve)
    return " ".join(doubts(curve, top_slope(curve, fit), fit, may_be_flat=may_be_flat))


@pytest.mark.parametrize("drift", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("kind", ["overhead + n", "n²"])
def test_the_slope_interval_covers_the_slope(kind: str, drift: float) -> None:
    """Against the slope between two lengths worked out by hand from the formula."""
    n = np.asarray(EIGHT, dtype=float)
    truth = 0.2 + 1e-3 * n if kind == "overhead + n" else 1e-6 * n**2
    # Least squares over three lengths in equal ratio is the slope between the outer two.
    true = np.log(truth[-1] / truth[-3]) / np.log(4)
    found = [top_slope(sampled(EIGHT, truth, 0.03, drift, seed)) for seed in range(400)]
    hits = [slope is not None and slope.encloses(true) for slope in found]
    assert 0.92 <= np.mean(hits) <= 0.98
    assert all(slope is not None and slope.confidence == 0.95 for slope in found)


def test_the_slope_looks_at_the_top_two_octaves_only() -> None:
    curve = exact((64, 128, 1024, 2048, 4096), (5.0, 5.0, 1.0, 4.0, 16.0))
    slope = top_slope(curve)
    assert slope is not None
    assert slope.value == pytest.approx(2.0)
    assert (slope.low, slope.high) == (slope.value, slope.value)
    assert top_slope(exact((64, 1024), (1.0, 2.0))) is None


def test_two_lengths_tell_no_drift() -> None:
    curve = sampled((512, 1024), np.asarray([1.0, 2.0]), 0.01, 0.0, 0)
    slope = top_slope(curve)
    assert slope is not None
    assert slope.value == pytest.approx(1.0, abs=0.05)
    assert not slope.known
    assert slope.confidence == 0.0


def test_what_is_plausible_raises_no_doubt() -> None:
    n = np.asarray(EIGHT, dtype=float)
    for truth in (1e-6 * n**2, 0.2 + 1e-3 * n, 1e-4 * n):
        assert not judged(sampled(EIGHT, truth, 0.03, 0.03, 3))


def test_a_flat_curve_is_called_out_unless_it_may_be_flat() -> None:
    curve = sampled(EIGHT, np.full(8, 0.3), 0.02, 0.02, 0)
    assert "flat: doubling N" in judged(curve)
    assert not judged(curve, may_be_flat=True)


def test_a_curve_steeper_than_n_squared_is_called_out() -> None:
    n = np.asarray(EIGHT, dtype=float)
    steep = np.where(n > 8000, 4.0, 1.0) * 1e-6 * n**2
    assert "steeper than N²: slope 3.0" in judged(sampled(EIGHT, 1e-9 * n**3, 0.01, 0.0, 0))
    assert "steeper than N²" in judged(sampled(EIGHT, steep, 0.02, 0.0, 0))
    drifting = [judged(sampled(EIGHT, 1e-6 * n**2, 0.03, 0.03, seed)) for seed in range(40)]
    assert not any(drifting)


def test_scatter_is_called_out_with_its_size() -> None:
    n = np.asarray(EIGHT, dtype=float)
    text = judged(sampled(EIGHT, 1e-3 * n, 0.02, 0.3, 1))
    assert text.startswith("noisy: values scatter by ")
    assert "noise within cells is 1%" in text
    jagged = exact(EIGHT, tuple((1e-3 * n * np.resize([1.0, 1.5], 8)).tolist()))
    assert "uneven" in judged(jagged)


def test_a_fall_is_called_out_only_beyond_noise() -> None:
    values = (1.0, 2.0, 4.0, 3.0, 8.0, 16.0)
    lengths = tuple(256 * 2**i for i in range(6))
    assert "not monotone: falls from N=1024 to 2048" in judged(exact(lengths, values))
    truth = np.asarray([1.0, 1.001, 1.0, 1.002, 2.0, 4.0])
    assert "monotone" not in judged(sampled(lengths, truth, 0.05, 0.0, 0))


def test_every_quantity_of_every_curve_is_there() -> None:
    found = growths(cells((256, 512, 1024), patterns=("causal_self",)))
    keys = {(g.contestant, g.pass_, g.quantity) for g in found}
    # linformer refuses causal attention; the records know no FLOPs.
    assert len(found) == len(keys) == 5 * 2 * 2
    assert {g.quantity for g in found} == {"time", "memory"}
    memory = of(found, "full_naive", "memory")
    assert memory.slope is not None
    assert memory.slope.confidence == 1.0
    lone = of(growths([cost("full", 512)]), "full", "time")
    assert (lone.slope, lone.fit, lone.doubts) == (None, None, ())


def of(found: list[Growth], contestant: str, quantity: str) -> Growth:
    return next(g for g in found if (g.contestant, g.quantity) == (contestant, quantity))
