"""What a workload that was not measured costs: a closed formula, fitted on what was.

A size is B samples, H heads of d numbers, N queries, M keys, a knob K (below) and a share p of
padded keys. A `CostModel` is one contestant with all else fixed (pattern, pass, dtype, machine,
...) and one quantity: ms of one pass, or peak bytes. It is nine weights w, n measured points with a
coefficient α each, and four numbers (``scale`` ℓ, ``noise`` ν, ``spread`` τ, ``quantile`` q).

The formula, which a page may evaluate as well as this module; G = B·H, S = N + M:

    physics(x)     Σ_t w_t φ_t(x), over the terms φ of `TERMS`, by name:
                     1  GSKd  GSd  GSK  GS  G  BSE2 = B·S·(H·d)²  GNMd  GNM
    coordinates u  log2 G, log2 N, log2 (M/N), log2 d, log2 K, 4·p
    g_a(x, i)      exp(−½ ((u_a(x) − u_a(i))/ℓ)²)                    axis a, measured point i
    kernel(x, i)   ½·mean_a g_a + ½·Π_a g_a
    value          physics(x) · exp(Σ_i α_i kernel(x, i))
    δ              1 − max_i Π_a g_a(x, i)                           0 at a measured point
    octaves o      Σ_a distance of u_a(x) outside [low_a, high_a], the measured range
    h              q · √(ν² + τ²·δ) · (1 + o/2)
    low, high      value · exp(−h), value · exp(+h)
    kind           "interpolated" where o = 0, else "extrapolated"

In words: nonnegative least squares on relative error over products of sizes, and a smooth
correction (kriging of the log residuals, half of it a sum over axes) that carries what no product
tells: caches, tiles, threads. The range covers 95 % of what was held out: each point is predicted
by a model fitted without its fold (ten folds, or each on its own), its log error divided by its own
√(ν² + τ²·δ), and q is the 95 % quantile of those errors with the correction of split conformal
prediction (Lei et al. 2018, "Distribution-Free Predictive Inference for Regression", section 2),
pooled over the rivals: all models of one pattern class, pass, dtype and machine. Points outside the
range of the other folds do not count. Two predicted times have the ratio of their values, within a
factor exp(±√(h₁² + h₂²)).

The terms GNMd and GNM are taken only where the fit without them is worse than 1.6 times the
measured noise and than 1.15 times the fit with them, as in `scaling`: what looks linear stays so at
a million tokens. Beyond `LONGEST` tokens there is no prediction.

K is `knobs.knob`: how many keys, tokens, features or rows one query meets; 1 where a variant has no
such option.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

LONGEST = 2**20
MIN_LENGTHS = 3
MOST_POINTS = 256
FOLDS = 10
COVERAGE = 0.95
NOISE_FACTOR = 1.6
BEST_FACTOR = 1.15
# Closer agreement than this says nothing: timers and allocators round.
FLOOR = 1e-3

AXES = ("batch × heads", "length", "keys per query", "head_dim", "knob", "padding")
_SCALES = (1.0, 2.0, 4.0)
_NUGGETS = (0.003, 0.03, 0.3, 3.0)


@dataclass(frozen=True)
class Size:
    """What the cost of one contestant depends on; knob: K, as `knobs.knob` tells it."""

    length: int
    keys: int
    batch: int
    heads: int
    head_dim: int
    knob: float = 1.0
    padding: float = 0.0

    @property
    def coordinates(self) -> tuple[float, ...]:
        return (
            math.log2(self.batch * self.heads),
            math.log2(self.length),
            math.log2(self.keys / self.length),
            math.log2(self.head_dim),
            math.log2(self.knob),
            4 * self.padding,
        )


TERMS: dict[str, Callable[[Size], float]] = {
    "1": lambda x: 1.0,
    "GSKd": lambda x: _tokens(x) * x.knob * x.head_dim,
    "GSd": lambda x: _tokens(x) * x.head_dim,
    "GSK": lambda x: _tokens(x) * x.knob,
    "GS": lambda x: _tokens(x),
    "G": lambda x: float(x.batch * x.heads),
    "BSE2": lambda x: x.batch * (x.length + x.keys) * (x.heads * x.head_dim) ** 2.0,
    "GNMd": lambda x: _pairs(x) * x.head_dim,
    "GNM": lambda x: _pairs(x),
}
"""Products of sizes, the most telling of those that one curve over lengths cannot tell apart first:
the solver takes the first."""

_QUADRATIC = ("GNMd", "GNM")
_WITH_KNOB = ("GSKd", "GSK")


def _tokens(x: Size) -> float:
    return float(x.batch * x.heads) * (x.length + x.keys)


def _pairs(x: Size) -> float:
    return float(x.batch * x.heads) * x.length * x.keys


@dataclass(frozen=True)
class Point:
    """One measured size. value: ms or bytes; noise: its relative standard error, 0 if exact."""

    size: Size
    value: float
    noise: float = 0.0


@dataclass(frozen=True)
class Predicted:
    """A value that was not measured, with its range and kind of evidence.

    h: half width of the range in logs, as in the formula. outside: the axes on which the size lies
    beyond what was measured; empty for ``interpolated``.
    """

    value: float
    low: float
    high: float
    h: float
    kind: str
    outside: tuple[str, ...] = ()


@dataclass(frozen=True)
class CostModel:
    """The formula of the module's docstring with its numbers; plain data.

    weights: by name of the term, those above 0. points: coordinates of the measured points, with
    one coefficient of `alphas` each. low, high: measured range of each coordinate.
    error: root mean square of the held-out log errors; lengths: how many different N; knobs: range
    of measured K.
    """

    weights: dict[str, float]
    points: tuple[tuple[float, ...], ...]
    alphas: tuple[float, ...]
    scale: float
    noise: float
    spread: float
    quantile: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    error: float

    def at(self, size: Size) -> Predicted:
        """Value and range at a size; ValueError beyond `LONGEST` queries or keys."""
        if max(size.length, size.keys) > LONGEST:
            raise ValueError(
                f"length={max(size.length, size.keys)} lies beyond {LONGEST} tokens, up to which "
                "costs are predicted: measure it"
            )
        u = np.asarray(size.coordinates)
        kernel, product = _kernels(u[None], np.asarray(self.points), self.scale)
        physics = sum(weight * TERMS[name](size) for name, weight in self.weights.items())
        value = physics * math.exp(float(kernel[0] @ np.asarray(self.alphas)))
        beyond = np.maximum(np.asarray(self.low) - u, u - np.asarray(self.high)).clip(min=0.0)
        beyond[beyond < 1e-9] = 0.0
        width = math.sqrt(self.noise**2 + self.spread**2 * (1.0 - float(product.max())))
        h = float(self.quantile * width * (1.0 + beyond.sum() / 2))
        outside = tuple(name for name, far in zip(AXES, beyond, strict=True) if far > 0)
        return Predicted(
            value=value,
            low=value * math.exp(-h),
            high=value * math.exp(h),
            h=h,
            kind="extrapolated" if outside else "interpolated",
            outside=outside,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data fit for JSON; `from_dict` makes the same model of it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CostModel:
        lists = {name: tuple(values[name]) for name in ("alphas", "low", "high")}
        points = tuple(tuple(point) for point in values["points"])
        return cls(**{**values, **lists, "points": points, "weights": dict(values["weights"])})

    def __str__(self) -> str:
        terms = " + ".join(self.weights) or "nothing"
        return (
            f"cost model {terms} of {len(self.points)} sizes, "
            f"N {2 ** self.low[1]:.0f}…{2 ** self.high[1]:.0f}, held-out error {self.error:.1%}"
        )


def fit_rivals(rivals: Mapping[str, Sequence[Point]]) -> dict[str, CostModel]:
    """Models of contestants measured under one class of workload, with one common quantile q.

    rivals: measured points by name; names with fewer than three lengths get no model.
    ValueError for a value that is not above 0.
    """
    fitted: dict[str, CostModel] = {}
    scores: list[float] = []
    for name, points in rivals.items():
        if len({point.size.length for point in points}) >= MIN_LENGTHS:
            fitted[name], own = _fit(points)
            scores += own
    quantile = _conformal(scores)
    return {name: replace(model, quantile=quantile) for name, model in fitted.items()}


def _fit(points: Sequence[Point]) -> tuple[CostModel, list[float]]:
    """A model without its quantile, and the held-out errors that the quantile is taken of."""
    points = _thinned(points)
    if min(point.value for point in points) <= 0:
        raise ValueError("a cost model needs positive values")
    u = np.asarray([point.size.coordinates for point in points])
    noise = np.asarray([point.noise for point in points])
    y = np.asarray([point.value for point in points])
    columns = np.asarray([[term(point.size) for term in TERMS.values()] for point in points])
    if (u[:, AXES.index("knob")] == 0).all():  # no knob: its terms would be those without it
        columns[:, [name in _WITH_KNOB for name in TERMS]] = 0.0
    trust = _trust(noise)
    typical = float(np.sqrt(np.mean(noise**2)))

    weights = _physics(columns, y, trust, typical)
    residual = np.log(y / (columns @ weights))
    scale, nugget, sill = _smoothness(u, residual, trust)
    alphas = _krige(u, residual, trust, scale, nugget)
    nu, tau = max(math.sqrt(sill * nugget), FLOOR), math.sqrt(sill)

    errors, scores = [], []
    for held in _folds(len(points)):
        kept = ~held
        part = _physics(columns[kept], y[kept], trust[kept], typical)
        known = np.log(y[kept] / (columns[kept] @ part))
        coefficients = _krige(u[kept], known, trust[kept], scale, nugget)
        kernel, product = _kernels(u[held], u[kept], scale)
        physics = np.maximum(columns[held] @ part, np.finfo(float).tiny)
        error = np.log(y[held] / physics) - kernel @ coefficients
        width = np.sqrt(nu**2 + tau**2 * (1 - product.max(axis=1)))
        inside = ((u[held] >= u[kept].min(0) - 1e-9) & (u[held] <= u[kept].max(0) + 1e-9)).all(1)
        errors += list(error[inside])
        scores += list(np.abs(error / width)[inside])
    model = CostModel(
        weights={
            name: float(weight) for name, weight in zip(TERMS, weights, strict=True) if weight > 0
        },
        points=tuple(tuple(map(float, row)) for row in u),
        alphas=tuple(map(float, alphas)),
        scale=scale,
        noise=nu,
        spread=tau,
        quantile=0.0,
        low=tuple(map(float, u.min(0))),
        high=tuple(map(float, u.max(0))),
        error=float(np.sqrt(np.mean(np.square(errors)))) if errors else nu,
    )
    return model, scores


def _physics(columns: np.ndarray, y: np.ndarray, trust: np.ndarray, noise: float) -> np.ndarray:
    """Weights of the terms, without the quadratic ones unless these are needed."""
    plain = [name not in _QUADRATIC for name in TERMS]
    simple, full = (_solve(columns, y, trust, np.asarray(used)) for used in (plain, [True] * 9))
    limit = max(NOISE_FACTOR * noise, BEST_FACTOR * full[1], FLOOR)
    return simple[0] if simple[1] <= limit else full[0]


def _solve(
    columns: np.ndarray, y: np.ndarray, trust: np.ndarray, used: np.ndarray
) -> tuple[np.ndarray, float]:
    """Nonnegative weights and the root mean square of their relative error."""
    rows = columns[:, used] / y[:, None] * trust[:, None]
    # Columns span many orders of magnitude; equal norms keep the solver's tolerance meaningful.
    norms = np.maximum(np.linalg.norm(rows, axis=0), np.finfo(float).tiny)
    solved, _ = nnls(rows / norms, trust)
    weights = np.zeros(columns.shape[1])
    weights[used] = solved / norms
    relative = (columns @ weights / y - 1) * trust
    return weights, float(np.sqrt(np.sum(relative**2) / np.sum(trust**2)))


def _smoothness(
    u: np.ndarray, residual: np.ndarray, trust: np.ndarray
) -> tuple[float, float, float]:
    """Length scale, nugget and variance of the correction, by leave-one-out density.

    Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning", equations 5.10-5.12.
    """
    best = (math.inf, _SCALES[0], _NUGGETS[0], 0.0)
    for scale in _SCALES:
        kernel, _ = _kernels(u, u, scale)
        for nugget in _NUGGETS:
            inverse = np.linalg.inv(kernel + np.diag(nugget / trust**2))
            diagonal = np.diag(inverse)
            left_out = inverse @ residual / diagonal
            sill = max(float(np.mean(left_out**2 * diagonal)), FLOOR**2)
            worth = len(u) * math.log(sill) - float(np.log(diagonal).sum())
            best = min(best, (worth, scale, nugget, sill))
    return best[1:]


def _krige(
    u: np.ndarray, residual: np.ndarray, trust: np.ndarray, scale: float, nugget: float
) -> np.ndarray:
    kernel, _ = _kernels(u, u, scale)
    return np.linalg.solve(kernel + np.diag(nugget / trust**2), residual)


def _kernels(one: np.ndarray, other: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The kernel and its product part, [points of one, points of other]."""
    near = np.exp(-0.5 * ((one[:, None] - other[None]) / scale) ** 2)
    product = near.prod(axis=2)
    return 0.5 * near.mean(axis=2) + 0.5 * product, product


def _trust(noise: np.ndarray) -> np.ndarray:
    """Square root of each point's weight: 1, less for what is noisier than most."""
    usual = max(float(np.median(noise)), FLOOR)
    return 1.0 / np.maximum(1.0, noise / usual)


def _folds(points: int) -> Iterable[np.ndarray]:
    """Masks of what is held out in turn: ten folds, or each point on its own."""
    folds = min(points, FOLDS)
    number = np.arange(points) % folds
    return [number == fold for fold in range(folds)]


def _thinned(points: Sequence[Point]) -> list[Point]:
    """By size; of more than `MOST_POINTS` those that lie farthest apart."""
    ordered = sorted(points, key=lambda point: (point.size.coordinates, point.value))
    if len(ordered) <= MOST_POINTS:
        return ordered
    u = np.asarray([point.size.coordinates for point in ordered])
    chosen = [0]
    distance = np.linalg.norm(u - u[0], axis=1)
    while len(chosen) < MOST_POINTS:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(u - u[chosen[-1]], axis=1))
    return [ordered[number] for number in sorted(chosen)]


def _conformal(scores: Sequence[float]) -> float:
    """Quantile that covers a new score with `COVERAGE`; with too few scores for it, 1.5 times the
    largest and at least 3."""
    rank = math.ceil(COVERAGE * (len(scores) + 1))
    if rank > len(scores):
        return max(3.0, 1.5 * max(scores, default=0.0))
    return sorted(scores)[rank - 1]
