"""How cost grows with length: the class of a curve, and values between measurements.

The class is a nested model choice on relative error. Candidates are nonnegative sums

    constant                a
    n                       b·n
    overhead + n            a + b·n
    n log n, n^1.5, n²      a + b·n + c·(n log2 n | n^1.5 | n²)

and the simplest is taken that is not refuted: whose sum of squared relative residuals exceeds that
of the best candidate by no more than chance explains, at level `REFUTED` (the F test of nested
least squares, Seber and Lee, Linear Regression Analysis, 2003, §4.3). How much chance explains is
read from the residuals of the best candidate, which hold drift between cells as well, together with
`DRIFT`, expected beforehand and worth `DRIFT_WEIGHT` degrees of freedom: with few lengths the
residuals alone tell too little. Where the noise within cells is larger, it counts instead. Counts
(bytes, FLOPs) know no chance, only tiles and edges: there the simplest candidate is taken whose
error is within max(`TOLERANCE`, `BEST_FACTOR` × the best).

Candidates that are not refuted all pass: together they are the set of classes that may be true, and
bound what a length that was not measured may cost. ``benchmarks/scaling_truth.py`` counts how often
the class is right and the set holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import nnls
from scipy.special import chdtrc, fdtrc, stdtrit

from efficient_attn.analysis.curve import (
    Curve,
    flop_curve,
    memory_curve,
    peak_bytes,
    time_curve,
)
from efficient_attn.bench.intervals import CONFIDENCE, Interval

__all__ = [
    "MIN_LENGTHS",
    "Curve",
    "Model",
    "Prediction",
    "ScalingFit",
    "candidates",
    "fit_scaling",
    "flop_curve",
    "memory_curve",
    "peak_bytes",
    "time_curve",
]

MIN_LENGTHS = 3
REFUTED = 0.02
"""Probability below which chance does not explain why a simpler class fits worse."""
DRIFT, DRIFT_WEIGHT = 0.03, 4
"""Relative standard deviation by which a cell is expected to be off as a whole, and how many
degrees of freedom that expectation is worth."""
TOLERANCE, BEST_FACTOR = 0.03, 1.5
"""What tiles and edges may move a count, relative; how much worse a simpler class may fit it."""
# Timers and allocators round; closer agreement than this says nothing about the class.
FLOOR = 1e-3
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
class Model:
    """One candidate with its nonnegative coefficients and relative error."""

    name: str
    terms: tuple[str, ...]
    coefficients: tuple[float, ...]
    error: float

    @property
    def free(self) -> int:
        """How many coefficients are not at their bound 0."""
        return sum(weight > 0 for weight in self.coefficients)

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
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that may be true, the chosen one first.

        Classes that contain the chosen one as a special case are left out: no data refute them.
        """
        chosen = set(self.chosen.terms)
        others = (model.name for model in self.passed[1:] if not chosen < set(model.terms))
        return (self.name, *others)

    @property
    def error(self) -> float:
        return self.chosen.error

    @property
    def spare(self) -> int:
        """Degrees of freedom that the residuals have left."""
        return len(self.lengths) - self.chosen.free

    @property
    def scatter(self) -> float:
        """Relative standard deviation of one value about the curve: drift between cells and noise
        within them; infinite when no degree of freedom is left."""
        if not self.spare:
            return math.inf
        return self.error * math.sqrt(len(self.lengths) / self.spare)

    def coefficients(self, confidence: float = CONFIDENCE) -> dict[str, Interval]:
        """The chosen model's terms (``1``, ``n``, ``n log n``, …) with their coefficients.

        Student's interval of weighted least squares, cut at 0. A coefficient at its bound 0 is left
        out. The interval takes the class as given.
        """
        columns = self._columns
        scale = np.linalg.norm(columns, axis=0)
        spread = np.sqrt(np.diag(np.linalg.inv((columns / scale).T @ (columns / scale)))) / scale
        reach = _student(self.spare, confidence) * self.scatter
        found = {}
        for (term, weight), error in zip(self._active, spread, strict=True):
            known = confidence if math.isfinite(reach) else 0.0
            low = max(weight - reach * float(error), 0.0) if known else -math.inf
            high = weight + reach * float(error)
            found[term] = Interval(weight, low, high, len(self.lengths), known)
        return found

    def reach(self, weights: np.ndarray, confidence: float = CONFIDENCE) -> float:
        """Half of the interval of a weighted sum of the values' logarithms, one weight per length.

        The values scatter independently and alike. How much is read from the residuals without
        their share along the weights, so that the sum's own error does not widen its interval;
        infinite when no degree of freedom is left.
        """
        basis, _ = np.linalg.qr(self._columns)
        along = weights - basis @ (basis.T @ weights)
        values = np.asarray(self.curve.values)
        residuals = np.asarray([self.predict(n) for n in self.lengths]) / values - 1
        squares, spare = float(residuals @ residuals), self.spare
        if float(along @ along) > 1e-9 * float(weights @ weights):
            squares -= float(residuals @ along) ** 2 / float(along @ along)
            spare -= 1
        if spare < 1:
            return math.inf
        scatter = math.sqrt(max(squares, 0.0) / spare)
        return _student(spare, confidence) * scatter * float(np.linalg.norm(weights))

    @property
    def _active(self) -> list[tuple[str, float]]:
        pairs = zip(self.chosen.terms, self.chosen.coefficients, strict=True)
        return [(term, weight) for term, weight in pairs if weight > 0]

    @property
    def _columns(self) -> np.ndarray:
        n, y = np.asarray(self.lengths, dtype=float), np.asarray(self.curve.values)
        return _columns([term for term, _ in self._active], n, y)

    def predict(self, length: float) -> float:
        return self.chosen(length)

    def at(self, length: int) -> Prediction:
        """Value, range and kind of evidence at a length."""
        inside = self.lengths[0] <= length <= self.lengths[-1]
        value = self.predict(length)
        draws = [
            np.asarray([refit(length) for refit in refits]) * fresh
            for refits, fresh in self._scattered
        ]
        return Prediction(
            value=value,
            low=min(value, *(float(np.quantile(drawn, 0.025)) for drawn in draws)),
            high=max(value, *(float(np.quantile(drawn, 0.975)) for drawn in draws)),
            kind="interpolated" if inside else "extrapolated",
        )

    @cached_property
    def _scattered(self) -> list[tuple[list[Model], np.ndarray]]:
        """Of every model that passed: refits to the curve scattered by its own residuals, and as
        many factors by which a new value would scatter."""
        n, y = np.asarray(self.lengths, dtype=float), np.asarray(self.curve.values)
        found = []
        for model in self.passed:
            free = len(y) - model.free
            residual = model.error * math.sqrt(len(y) / free) if free else model.error
            scatter = max(residual, self.noise)
            rng = np.random.default_rng(0)
            factors = np.exp(rng.normal(0, scatter, (REFITS, len(y))))
            fresh = np.exp(rng.normal(0, scatter, REFITS))
            refits = [_solve(model.name, model.terms, n, y * factor) for factor in factors]
            found.append((refits, fresh))
        return found

    def __str__(self) -> str:
        span = f"{self.lengths[0]}…{self.lengths[-1]}"
        return f"{self.name}, fitted to {len(self.lengths)} lengths {span}"


def fit_scaling(curve: Curve) -> ScalingFit:
    """Choose the class of a curve; ValueError below three lengths or without positive values."""
    if len(curve.lengths) < MIN_LENGTHS:
        raise ValueError(
            f"a scaling fit needs {MIN_LENGTHS} measured lengths, here are {len(curve.lengths)}"
        )
    if min(curve.values) <= 0:
        raise ValueError("a scaling fit needs positive values")
    models = candidates(curve)
    best = min(models, key=lambda model: model.error)
    noise = curve.noise
    if curve.exact:
        limit = max(BEST_FACTOR * best.error, TOLERANCE)
        passed = [model for model in models if model.error <= limit]
    else:
        points = len(curve.lengths)
        passed = [m for m in models if _chance(m, best, max(noise, FLOOR), points) >= REFUTED]
    return ScalingFit(passed[0], tuple(passed), curve, noise)


def _chance(model: Model, best: Model, noise: float, points: int) -> float:
    """Probability that a true `model` fits worse than the best one by as much as it does."""
    terms = max(1, best.free - model.free)
    worse = points * (model.error**2 - best.error**2) / terms
    spare = points - best.free + DRIFT_WEIGHT
    scatter = (points * best.error**2 + DRIFT_WEIGHT * DRIFT**2) / spare
    if scatter > noise**2:
        return float(fdtrc(terms, spare, worse / scatter))
    return float(chdtrc(terms, terms * worse / noise**2))


def candidates(curve: Curve) -> list[Model]:
    """Every class fitted to a curve, by growing complexity."""
    n, y = np.asarray(curve.lengths, dtype=float), np.asarray(curve.values, dtype=float)
    simple = [(name, terms) for terms, name in _NAMES.items()]
    # With three lengths no model may have three free terms.
    rest = ("n",) if len(n) == MIN_LENGTHS else ("1", "n")
    growing = [(term, (*rest, term)) for term in _GROWING]
    return [_solve(name, terms, n, y) for name, terms in (*simple, *growing)]


def _columns(terms: Iterable[str], n: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What a fit by relative error weighs: every term over the measured value, [lengths, terms]."""
    return np.stack([_TERMS[term](n) / y for term in terms], axis=1)


def _solve(name: str, terms: tuple[str, ...], n: np.ndarray, y: np.ndarray) -> Model:
    columns = _columns(terms, n, y)
    # Columns span many orders of magnitude; equal norms keep the solver's tolerance meaningful.
    scale = np.linalg.norm(columns, axis=0)
    weights, _ = nnls(columns / scale, np.ones(len(y)))
    coefficients = weights / scale
    error = float(np.sqrt(np.mean(np.square(columns @ coefficients - 1))))
    return Model(name, terms, tuple(float(value) for value in coefficients), error)


def _student(spare: int, confidence: float) -> float:
    """Quantile of Student's t for both sides; infinite without a degree of freedom."""
    return float(stdtrit(spare, 0.5 + confidence / 2)) if spare else math.inf
