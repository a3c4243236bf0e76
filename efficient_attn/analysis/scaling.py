"""How cost grows with length: the class of a curve, its slope, and values between measurements.

The class is a nested model choice on relative error. Candidates are nonnegative sums

    constant                a
    n                       b·n
    overhead + n            a + b·n
    n log n, n^1.5, n²      a + b·n + c·(n log2 n | n^1.5 | n²)

and the simplest is taken whose root-mean-square relative error is within
max(1.6 × measured noise, 1.15 × the best). Every candidate that passes is kept: together they
bound what a length that was not measured may cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from efficient_attn.analysis.ratios import trusted_samples
from efficient_attn.analysis.select import length_of
from efficient_attn.bench.intervals import CONFIDENCE, Interval, median_interval
from efficient_attn.bench.record import Record

MIN_LENGTHS = 3
NOISE_FACTOR = 1.6
BEST_FACTOR = 1.15
# Timers and allocators round; closer agreement than this says nothing about the class.
FLOOR = 1e-3
DRAWS = 1000
REFITS = 100

_TERMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "1": lambda n: np.ones_like(n),
    "n": lambda n: n,
    "n log n": lambda n: n * np.log2(n),
    "n^1.5": lambda n: n**1.5,
    "n²": lambda n: n**2,
}
_GROWING = ("n log n", "n^1.5", "n²")
_NAMES = {("1",): "constant", ("n",): "n", ("1", "n"): "overhead + n"}


@dataclass(frozen=True)
class Curve:
    """One cost over length, by ascending length.

    samples: the repeated measurements behind each value; one number where it is exact (bytes).
    """

    lengths: tuple[int, ...]
    values: tuple[float, ...]
    samples: tuple[tuple[float, ...], ...]

    @property
    def noise(self) -> float:
        """Relative standard error of the values, root mean square over the lengths."""
        errors = [_relative_error(samples) for samples in self.samples if len(samples) > 1]
        return math.sqrt(sum(error**2 for error in errors) / len(errors)) if errors else 0.0


@dataclass(frozen=True)
class Model:
    """One candidate with its nonnegative coefficients and relative error."""

    name: str
    terms: tuple[str, ...]
    coefficients: tuple[float, ...]
    error: float

    def __call__(self, length: float) -> float:
        n = np.asarray(float(length))
        pairs = zip(self.terms, self.coefficients, strict=True)
        return float(sum(weight * _TERMS[term](n) for term, weight in pairs))


@dataclass(frozen=True)
class Prediction:
    """A value at a length that was not measured.

    low, high: range over every candidate that passed, each refitted to the values as they might
        have come out, and scattered like them; no confidence interval, since the choice of curve
        is a doubt that no repetition measures.
    kind: ``interpolated`` between measured lengths, ``extrapolated`` outside them.
    """

    value: float
    low: float
    high: float
    kind: str


@dataclass(frozen=True)
class ScalingFit:
    """The chosen model, with all that passed and the lengths it was fitted on.

    name: the class, for instance ``overhead + n`` or ``n²``.
    error, noise: relative root mean square of the fit's residuals, and of the measurement.
    """

    chosen: Model
    passed: tuple[Model, ...]
    curve: Curve
    noise: float

    @property
    def name(self) -> str:
        return self.chosen.name

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.curve.lengths

    @property
    def error(self) -> float:
        return self.chosen.error

    def predict(self, length: float) -> float:
        return self.chosen(length)

    def at(self, length: int) -> Prediction:
        """Value, range and kind of evidence at a length."""
        inside = self.lengths[0] <= length <= self.lengths[-1]
        value = self.predict(length)
        draws = [self._draws(model, length) for model in self.passed]
        return Prediction(
            value=value,
            low=min(value, *(float(np.quantile(drawn, 0.025)) for drawn in draws)),
            high=max(value, *(float(np.quantile(drawn, 0.975)) for drawn in draws)),
            kind="interpolated" if inside else "extrapolated",
        )

    def _draws(self, model: Model, length: int) -> np.ndarray:
        """Predictions of a model after its curve was scattered by its own residuals."""
        free = len(self.lengths) - sum(weight > 0 for weight in model.coefficients)
        residual = model.error * math.sqrt(len(self.lengths) / free) if free else model.error
        scatter = max(residual, self.noise)
        rng = np.random.default_rng(0)
        n, y = np.asarray(self.lengths, dtype=float), np.asarray(self.curve.values)
        factors = np.exp(rng.normal(0, scatter, (REFITS, len(y))))
        fresh = np.exp(rng.normal(0, scatter, REFITS))
        drawn = [_solve(model.name, model.terms, n, y * factor)(length) for factor in factors]
        return np.asarray(drawn) * fresh

    def __str__(self) -> str:
        span = f"{self.lengths[0]}…{self.lengths[-1]}"
        return f"{self.name}, fitted to {len(self.lengths)} lengths {span}"


def time_curve(records: Iterable[Record]) -> Curve:
    """Median times (ms) of the ok cost records of one contestant, one record per length."""
    ordered = sorted((record for record in records if record.ok), key=length_of)
    samples = tuple(tuple(trusted_samples(record)) for record in ordered)
    values = tuple(float(np.median(taken)) for taken in samples)
    return Curve(tuple(length_of(record) for record in ordered), values, samples)


def memory_curve(records: Iterable[Record]) -> Curve:
    """Peak bytes of the ok cost records of one contestant, where they are known and not 0."""
    known = [(length_of(record), peak_bytes(record)) for record in records if record.ok]
    ordered = sorted((length, float(peak)) for length, peak in known if peak)
    lengths = tuple(length for length, _ in ordered)
    values = tuple(value for _, value in ordered)
    return Curve(lengths, values, tuple((value,) for value in values))


def peak_bytes(record: Record) -> int | None:
    """Peak tensor bytes of an ok record; the peak resident set where those are unknown."""
    exact = record.result.get("peak_tensor_bytes")
    peak = record.result.get("peak_rss_bytes") if exact is None else exact
    return None if peak is None else int(peak)


def fit_scaling(curve: Curve) -> ScalingFit:
    """Choose the class of a curve; ValueError below three lengths or without positive values."""
    if len(curve.lengths) < MIN_LENGTHS:
        raise ValueError(
            f"a scaling fit needs {MIN_LENGTHS} measured lengths, here are {len(curve.lengths)}"
        )
    if min(curve.values) <= 0:
        raise ValueError("a scaling fit needs positive values")
    n, y = np.asarray(curve.lengths, dtype=float), np.asarray(curve.values, dtype=float)
    models = [_solve(name, terms, n, y) for name, terms in _candidates(len(n))]
    best = min(model.error for model in models)
    limit = max(NOISE_FACTOR * curve.noise, BEST_FACTOR * best, FLOOR)
    passed = tuple(model for model in models if model.error <= limit)
    return ScalingFit(passed[0], passed, curve, curve.noise)


def top_slope(curve: Curve, confidence: float = CONFIDENCE, seed: int = 0) -> Interval | None:
    """Log-log slope over the top two octaves: 1 where doubling the length doubles the cost.

    Least squares over the lengths from a quarter of the longest on; None when fewer than two lie
    there. The interval comes from drawing every length's samples anew, with replacement: it
    holds the noise within cells, not drift between them. Exact values give a slope without width.
    """
    top = [i for i, length in enumerate(curve.lengths) if 4 * length >= curve.lengths[-1]]
    if len(top) < 2:
        return None
    x = np.log([curve.lengths[i] for i in top])
    weights = (x - x.mean()) / np.square(x - x.mean()).sum()
    value = float(weights @ np.log([curve.values[i] for i in top]))
    samples = [curve.samples[i] for i in top]
    n = min(len(taken) for taken in samples)
    if n == 1:
        exact = all(len(taken) == 1 for taken in samples)
        return Interval(value, value, value, 1, 1.0) if exact else _unknown(value)
    draws = np.stack([_drawn_medians(taken, seed + i) for i, taken in enumerate(samples)], axis=1)
    slopes = np.log(draws) @ weights
    tail = (1 - confidence) / 2
    low, high = np.quantile(slopes, [tail, 1 - tail])
    return Interval(value, float(min(low, value)), float(max(high, value)), n, confidence)


def _candidates(points: int) -> list[tuple[str, tuple[str, ...]]]:
    """Classes by growing complexity; with three lengths no model may have three free terms."""
    simple = [(name, terms) for terms, name in _NAMES.items()]
    rest = ("n",) if points == MIN_LENGTHS else ("1", "n")
    return [*simple, *((term, (*rest, term)) for term in _GROWING)]


def _solve(name: str, terms: tuple[str, ...], n: np.ndarray, y: np.ndarray) -> Model:
    columns = np.stack([_TERMS[term](n) / y for term in terms], axis=1)
    # Columns span many orders of magnitude; equal norms keep the solver's tolerance meaningful.
    scale = np.linalg.norm(columns, axis=0)
    weights, _ = nnls(columns / scale, np.ones(len(y)))
    coefficients = weights / scale
    error = float(np.sqrt(np.mean(np.square(columns @ coefficients - 1))))
    return Model(name, terms, tuple(float(value) for value in coefficients), error)


def _relative_error(samples: Sequence[float]) -> float:
    inner = median_interval(samples)
    if not inner.known or inner.value <= 0:
        return 0.0
    # A 95 % interval is 2 × 1.96 standard errors wide.
    return (inner.high - inner.low) / (3.92 * inner.value)


def _drawn_medians(samples: Sequence[float], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = np.asarray(samples, dtype=float)
    return np.median(values[rng.integers(len(values), size=(DRAWS, len(values)))], axis=1)


def _unknown(value: float) -> Interval:
    return Interval(value, -math.inf, math.inf, 1, 0.0)
