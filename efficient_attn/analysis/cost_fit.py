"""The numbers of cost models (`predict`), from measured points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from efficient_attn.analysis.predict import (
    AXES,
    PROJECTIONS,
    QUADRATIC,
    TERMS,
    WITH_KNOB,
    CostModel,
    Size,
    kernels,
)

MIN_LENGTHS = 3
MOST_POINTS = 256
FOLDS = 10
COVERAGE = 0.95
NOISE_FACTOR = 1.6
BEST_FACTOR = 2.0
# Closer agreement than this says nothing: timers and allocators round.
FLOOR = 1e-3
# Bytes are exact, but come in tiles and padding, which bend a line by a few percent: no square yet.
BEND = 0.04

_SCALES = (1.0, 2.0, 4.0)
_NUGGETS = (0.003, 0.03, 0.3, 3.0)


@dataclass(frozen=True)
class Point:
    """One measured size. value: ms or bytes; noise: its relative standard error, 0 if exact; cell:
    the run that it shares with rivals, None without."""

    size: Size
    value: float
    noise: float = 0.0
    cell: str | None = None


def fit_rivals(
    rivals: Mapping[str, Sequence[Point]], *, projections: bool = False
) -> dict[str, CostModel]:
    """Models of contestants measured under one class of workload, with one common quantile q.

    rivals: measured points by name; names with fewer than three lengths get no model.
    projections: the pass multiplies by weights of the model's width (scopes beyond ``core``).
    ValueError for a value that is not above 0.
    """
    fitted: dict[str, CostModel] = {}
    trials: dict[str, list[_Trial]] = {}
    for name, points in rivals.items():
        if len({point.size.length for point in points}) >= MIN_LENGTHS:
            fitted[name], trials[name] = _fit(points, projections)
    quantile = _conformal([abs(one.error) / one.width for own in trials.values() for one in own])
    pair_quantile = _conformal(_differences(list(trials.values()))) if len(trials) > 1 else quantile
    return {
        name: replace(model, quantile=quantile, pair_quantile=pair_quantile)
        for name, model in fitted.items()
    }


@dataclass(frozen=True)
class _Trial:
    """A point as a model without it told it: log error and width."""

    cell: str | None
    error: float
    width: float


def _differences(trials: Sequence[Sequence[_Trial]]) -> list[float]:
    """Errors of the ratio of every two rivals in every cell that both were held out of."""
    found = []
    by_cell = [{one.cell: one for one in own if one.cell is not None} for own in trials]
    for place, mine in enumerate(by_cell):
        for theirs in by_cell[:place]:
            for cell in mine.keys() & theirs.keys():
                one, other = mine[cell], theirs[cell]
                found.append(abs(one.error - other.error) / math.hypot(one.width, other.width))
    return found


def _fit(points: Sequence[Point], projections: bool) -> tuple[CostModel, list[_Trial]]:
    """A model without its quantiles, and the trials that these are taken of."""
    points = _thinned(points)
    if min(point.value for point in points) <= 0:
        raise ValueError("a cost model needs positive values")
    u = np.asarray([point.size.coordinates for point in points])
    noise = np.asarray([point.noise for point in points])
    y = np.asarray([point.value for point in points])
    columns = np.asarray([[term(point.size) for term in TERMS.values()] for point in points])
    if (u[:, AXES.index("knob")] == 0).all():  # no knob: its terms would be those without it
        columns[:, [name in WITH_KNOB for name in TERMS]] = 0.0
    if not projections:
        columns[:, [name == PROJECTIONS for name in TERMS]] = 0.0
    trust = _trust(noise)
    typical = float(np.sqrt(np.mean(noise**2)))

    weights = _physics(columns, y, trust, typical)
    residual = np.log(y / (columns @ weights))
    scale, nugget, sill = _smoothness(u, residual, trust)
    alphas = _krige(u, residual, trust, scale, nugget)
    nu, tau = max(math.sqrt(sill * nugget), FLOOR), math.sqrt(sill)

    trials: list[_Trial] = []
    for held in _folds(len(points)):
        kept = ~held
        part = _physics(columns[kept], y[kept], trust[kept], typical)
        known = np.log(y[kept] / (columns[kept] @ part))
        coefficients = _krige(u[kept], known, trust[kept], scale, nugget)
        kernel, product = kernels(u[held], u[kept], scale)
        physics = np.maximum(columns[held] @ part, np.finfo(float).tiny)
        error = np.log(y[held] / physics) - kernel @ coefficients
        width = np.sqrt(nu**2 + tau**2 * (1 - product.max(axis=1)))
        inside = ((u[held] >= u[kept].min(0) - 1e-9) & (u[held] <= u[kept].max(0) + 1e-9)).all(1)
        trials += [
            _Trial(points[number].cell, float(error[place]), float(width[place]))
            for place, number in enumerate(np.flatnonzero(held))
            if inside[place]
        ]
    misses = [trial.error for trial in trials]
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
        pair_quantile=0.0,
        low=tuple(map(float, u.min(0))),
        high=tuple(map(float, u.max(0))),
        error=float(np.sqrt(np.mean(np.square(misses)))) if misses else nu,
    )
    return model, trials


def _physics(columns: np.ndarray, y: np.ndarray, trust: np.ndarray, noise: float) -> np.ndarray:
    """Weights of the terms, without the quadratic ones unless these are needed."""
    plain = [name not in QUADRATIC for name in TERMS]
    simple, full = (_solve(columns, y, trust, np.asarray(used)) for used in (plain, [True] * 9))
    limit = max(NOISE_FACTOR * noise, BEST_FACTOR * full[1], BEND)
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
        kernel, _ = kernels(u, u, scale)
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
    kernel, _ = kernels(u, u, scale)
    return np.linalg.solve(kernel + np.diag(nugget / trust**2), residual)


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
