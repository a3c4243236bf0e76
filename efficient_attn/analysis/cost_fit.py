"""The numbers of cost models (`predict`), from measured points."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from efficient_attn.analysis.predict import (
    AXES,
    PROJECTIONS,
    QUADRATIC,
    TERMS,
    WITH_KNOB,
    Correction,
    CostModel,
    Size,
    kernels,
    without_knob,
)

MIN_LENGTHS = 3
MOST_POINTS = 256
FOLDS = 10
COVERAGE = 0.95
NOISE_FACTOR = 1.6
BEST_FACTOR = 2.0
# Of weights and what cells have in common, which need each other.
ROUNDS = 2
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
    rivals: Mapping[str, Sequence[Point]], *, projections: bool = False, ranges: bool = True
) -> dict[str, CostModel]:
    """Models of contestants measured under one class of workload, with one common quantile q.

    rivals: measured points by name; names with fewer than three lengths get no model.
    projections: the pass multiplies by weights of the model's width (scopes beyond ``core``).
    ranges: False for values alone: nothing is held out, which takes most of the time, and the low
    and high ends are the value. ValueError for a value that is not above 0.
    """
    told = {
        name: points
        for name, points in rivals.items()
        if len({point.size.length for point in points}) >= MIN_LENGTHS
    }
    data = {name: _data(placed, projections) for name, placed in _placed(told).items()}
    fitted = _fit(data)
    trials = _trials(data, fitted) if ranges else {name: [] for name in data}
    quantile, pair_quantile = _quantiles(list(trials.values())) if ranges else (0.0, 0.0)
    return {
        name: CostModel(
            weights={
                term: float(weight)
                for term, weight in zip(TERMS, fitted.weights[name], strict=True)
                if weight > 0
            },
            own=fitted.own[name],
            common=fitted.common,
            quantile=quantile,
            pair_quantile=pair_quantile,
            low=tuple(map(float, one.u.min(0))),
            high=tuple(map(float, one.u.max(0))),
            error=_rms([trial.error for trial in trials[name]]) or fitted.own[name].noise,
        )
        for name, one in data.items()
    }


def _placed(rivals: Mapping[str, Sequence[Point]]) -> dict[str, list[tuple[int, Point]]]:
    """The points of each rival with the numbers of their cells, which go by size; of more than
    `MOST_POINTS` cells those that lie farthest apart."""
    cells: dict[Any, list[tuple[str, Point]]] = defaultdict(list)
    for name, points in rivals.items():
        for place, point in enumerate(points):
            cells[(name, place) if point.cell is None else point.cell].append((name, point))
    members = list(cells.values())
    middles = [np.mean([one.size.coordinates for _, one in cell], axis=0) for cell in members]
    found: dict[str, list[tuple[int, Point]]] = defaultdict(list)
    for number, chosen in enumerate(_far_apart(middles)):
        for name, point in members[chosen]:
            found[name].append((number, point))
    return {
        name: [placed[n] for n in _far_apart([point.size.coordinates for _, point in placed])]
        for name, placed in found.items()
    }


def _far_apart(rows: Sequence[Any]) -> list[int]:
    """Numbers of rows in their order; of more than `MOST_POINTS` those that lie farthest apart."""
    ordered = sorted(range(len(rows)), key=lambda number: tuple(rows[number]))
    if len(ordered) <= MOST_POINTS:
        return ordered
    u = np.asarray(rows)[ordered]
    chosen = [0]
    distance = np.linalg.norm(u - u[0], axis=1)
    while len(chosen) < MOST_POINTS:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(u - u[chosen[-1]], axis=1))
    return [ordered[number] for number in sorted(chosen)]


@dataclass(frozen=True)
class _Data:
    """The points of one rival: coordinates, terms, values, square roots of weights, numbers of
    cells, and how noisy a point is on the whole."""

    u: np.ndarray
    columns: np.ndarray
    y: np.ndarray
    trust: np.ndarray
    cell: np.ndarray
    noise: float

    def where(self, kept: np.ndarray) -> _Data:
        return _Data(
            self.u[kept],
            self.columns[kept],
            self.y[kept],
            self.trust[kept],
            self.cell[kept],
            self.noise,
        )


def _data(placed: Sequence[tuple[int, Point]], projections: bool) -> _Data:
    points = [point for _, point in placed]
    if min(point.value for point in points) <= 0:
        raise ValueError("a cost model needs positive values")
    u = np.asarray([point.size.coordinates for point in points])
    columns = np.asarray([[term(point.size) for term in TERMS.values()] for point in points])
    if (u[:, AXES.index("knob")] == 0).all():  # no knob: its terms would be those without it
        columns[:, [name in WITH_KNOB for name in TERMS]] = 0.0
    if not projections:
        columns[:, [name == PROJECTIONS for name in TERMS]] = 0.0
    noise = np.asarray([point.noise for point in points])
    y = np.asarray([point.value for point in points])
    return _Data(u, columns, y, _trust(noise), np.asarray([n for n, _ in placed]), _rms(noise))


@dataclass(frozen=True)
class _Smoothness:
    """Length scale, nugget and variance of a correction."""

    scale: float
    nugget: float
    sill: float


@dataclass(frozen=True)
class _Fitted:
    """Weights and corrections of all rivals, and the smoothness that these have."""

    weights: dict[str, np.ndarray]
    own: dict[str, Correction]
    common: Correction
    own_smooth: dict[str, _Smoothness]
    common_smooth: _Smoothness | None


def _fit(data: Mapping[str, _Data], like: _Fitted | None = None) -> _Fitted:
    """like: fitted before, whose smoothness is taken."""
    shift: dict[int, float] = {}
    for _ in range(ROUNDS):
        weights = {name: _physics(one, _shifts(one, shift)) for name, one in data.items()}
        shift = _shared(
            {name: (one.cell, _residual(one, weights[name])) for name, one in data.items()}
        )
    weights = {name: _physics(one, _shifts(one, shift)) for name, one in data.items()}
    own, own_smooth = {}, {}
    for name, one in data.items():
        residual = _residual(one, weights[name]) - _shifts(one, shift)
        known = like.own_smooth[name] if like else None
        own[name], own_smooth[name] = _correction(one.u, residual, one.trust, known)
    if not shift:
        return _Fitted(weights, own, Correction(), own_smooth, None)
    places = {int(n): row for one in data.values() for n, row in zip(one.cell, one.u, strict=True)}
    u = without_knob(np.asarray([places[n] for n in shift]))
    residual, trust = np.asarray(list(shift.values())), np.ones(len(shift))
    common, smooth = _correction(u, residual, trust, like.common_smooth if like else None)
    return _Fitted(weights, own, common, own_smooth, smooth)


def _residual(one: _Data, weights: np.ndarray) -> np.ndarray:
    physics = np.maximum(one.columns @ weights, np.finfo(float).tiny)
    found: np.ndarray = np.log(one.y / physics)
    return found


def _shared(residuals: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[int, float]:
    """What the residuals of each cell with several rivals have in common, 0 on average."""
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, (cells, own) in residuals.items():
        for cell, residual in zip(cells, own, strict=True):
            found[int(cell)][name].append(residual)
    means = {
        cell: float(np.mean([np.mean(own) for own in by_rival.values()]))
        for cell, by_rival in found.items()
        if len(by_rival) > 1
    }
    level = float(np.mean(list(means.values()))) if means else 0.0
    return {cell: mean - level for cell, mean in means.items()}


def _shifts(one: _Data, shift: Mapping[int, float]) -> np.ndarray:
    return np.asarray([shift.get(int(cell), 0.0) for cell in one.cell])


def _correction(
    u: np.ndarray, residual: np.ndarray, trust: np.ndarray, known: _Smoothness | None
) -> tuple[Correction, _Smoothness]:
    smooth = known or _smoothness(u, residual, trust)
    kernel, _ = kernels(u, u, smooth.scale)
    alphas = np.linalg.solve(kernel + np.diag(smooth.nugget / trust**2), residual)
    correction = Correction(
        points=tuple(tuple(map(float, row)) for row in u),
        alphas=tuple(map(float, alphas)),
        scale=smooth.scale,
        noise=max(math.sqrt(smooth.sill * smooth.nugget), FLOOR),
        spread=math.sqrt(smooth.sill),
    )
    return correction, smooth


@dataclass(frozen=True)
class _Trial:
    """A point as models without its cell told it: log error, width of the time, width of ratios."""

    cell: int
    error: float
    width: float
    pair_width: float


def _trials(data: Mapping[str, _Data], fitted: _Fitted) -> dict[str, list[_Trial]]:
    """Ten folds of cells, or each cell on its own, told by what is fitted without it."""
    trials: dict[str, list[_Trial]] = {name: [] for name in data}
    cells = 1 + max((int(one.cell.max()) for one in data.values()), default=-1)
    folds = min(cells, FOLDS)
    for fold in range(folds):
        kept = {name: one.cell % folds != fold for name, one in data.items()}
        known = {name: one.where(kept[name]) for name, one in data.items() if kept[name].any()}
        without = _fit(known, fitted)
        for name, one in known.items():
            held = data[name].where(~kept[name])
            low, high = one.u.min(0) - 1e-9, one.u.max(0) + 1e-9
            errors = _residual(held, without.weights[name])
            for u, cell, error in zip(held.u, held.cell, errors, strict=True):
                if ((u < low) | (u > high)).any():
                    continue
                own, variance = without.own[name].at(u)
                common, more = without.common.at(without_knob(u))
                width, pair_width = math.sqrt(variance + more), math.sqrt(variance)
                trials[name].append(_Trial(int(cell), error - own - common, width, pair_width))
    return trials


def _quantiles(trials: Sequence[Sequence[_Trial]]) -> tuple[float, float]:
    """q of times and r of ratios; with one rival r is q."""
    quantile = _conformal([abs(one.error) / one.width for own in trials for one in own])
    return quantile, _conformal(_differences(trials)) if len(trials) > 1 else quantile


def _differences(trials: Sequence[Sequence[_Trial]]) -> list[float]:
    """Errors of the ratio of every two rivals in every cell that both were held out of."""
    found = []
    by_cell = [{one.cell: one for one in own} for own in trials]
    for place, mine in enumerate(by_cell):
        for theirs in by_cell[:place]:
            for cell in mine.keys() & theirs.keys():
                one, other = mine[cell], theirs[cell]
                widths = math.hypot(one.pair_width, other.pair_width)
                found.append(abs(one.error - other.error) / widths)
    return found


def _physics(one: _Data, shift: np.ndarray) -> np.ndarray:
    """Weights of the terms, without the quadratic ones unless these are needed."""
    y = one.y * np.exp(-shift)
    plain = [name not in QUADRATIC for name in TERMS]
    simple, full = (
        _solve(one.columns, y, one.trust, np.asarray(used)) for used in (plain, [True] * len(TERMS))
    )
    limit = max(NOISE_FACTOR * one.noise, BEST_FACTOR * full[1], BEND)
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


def _smoothness(u: np.ndarray, residual: np.ndarray, trust: np.ndarray) -> _Smoothness:
    """By leave-one-out density.

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
    return _Smoothness(*best[1:])


def _trust(noise: np.ndarray) -> np.ndarray:
    """Square root of each point's weight: 1, less for what is noisier than most."""
    usual = max(float(np.median(noise)), FLOOR)
    return 1.0 / np.maximum(1.0, noise / usual)


def _rms(values: Sequence[float] | np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else 0.0


def _conformal(scores: Sequence[float]) -> float:
    """Quantile that covers a new score with `COVERAGE`; with too few scores for it, 1.5 times the
    largest and at least 3."""
    rank = math.ceil(COVERAGE * (len(scores) + 1))
    if rank > len(scores):
        return max(3.0, 1.5 * max(scores, default=0.0))
    return sorted(scores)[rank - 1]
