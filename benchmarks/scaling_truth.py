"""Known curves, and what is made of them: classes, slopes, coefficients and crossovers.

    python benchmarks/scaling_truth.py                 500 draws of everything
    python benchmarks/scaling_truth.py --draws 100 --json

Every draw makes the records of a sweep over 8 (one per octave) or 17 (two) lengths, 128 to 16384
tokens, with lognormal noise of 3 % in every round; in the rows marked drift every cell is moved as
a whole by another 3 %, which no repetition within the cell shows. Shares count how often the
class is the one that made the curve, how often the set of classes that may be true holds it, and
how often the 95 % intervals hold the truth. Whether a class can be told at all is another matter:
the distance is how far, in standard errors, the nearest curve of another class lies from the truth,
and the power is how often the fit's own test refutes that class at this distance. Where it is below
95 % the row is marked: the data do not tell the classes apart, and the set of classes has to hold
the true one.

The true slope is that of the same least squares over the same lengths without noise. The true
crossover is where the two formulas are equal, which mostly is no measured length.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import brentq
from scipy.special import chdtri, chndtr, fdtri, ncfdtr

from efficient_attn.analysis.crossover import read
from efficient_attn.analysis.growth import top_slope
from efficient_attn.analysis.ratio_curve import ratio_curve
from efficient_attn.analysis.scaling import REFUTED, Curve, candidates, fit_scaling
from efficient_attn.bench.record import Record

Cost = Callable[[Any], Any]

NOISE, DRIFT = 0.03, 0.03
ROUNDS = 15
LENGTHS = {
    8: [128 * 2**i for i in range(8)],
    17: [round(128 * 2 ** (i * 7 / 16)) for i in range(17)],
}
# Overheads are as large as the growing term at 512 tokens.
CLASSES: dict[str, dict[str, Cost]] = {
    "constant": {"constant": lambda n: 1 + 0 * n},
    "n": {"n": lambda n: n / 512},
    "overhead + n": {"overhead + n": lambda n: 1 + n / 512},
    "n log n": {
        "n log n": lambda n: n * np.log2(n) / 4608,
        "overhead + n log n": lambda n: 1 + n * np.log2(n) / 4608,
    },
    "n^1.5": {
        "n^1.5": lambda n: (n / 512) ** 1.5,
        "overhead + n^1.5": lambda n: 1 + (n / 512) ** 1.5,
    },
    "n²": {
        "n²": lambda n: (n / 512) ** 2,
        "overhead + n²": lambda n: 1 + (n / 512) ** 2,
        "overhead + n + n²": lambda n: 1 + n / 512 + (n / 2048) ** 2,
    },
}
# (contestant, full, where they cross).
PAIRS: dict[str, tuple[Cost, Cost]] = {
    "overhead + n, overhead + n²": (
        lambda n: 0.30 + 2.0e-3 * n,
        lambda n: 0.05 + 4e-6 * n**2,
    ),
    "overhead + n, n + n²": (lambda n: 0.5 + 1e-3 * n, lambda n: 3e-4 * n + 2e-7 * n**2),
    "n, n²": (lambda n: 1e-3 * n, lambda n: 3e-7 * n**2),
    "n, n log n": (lambda n: 11e-4 * n, lambda n: 1e-4 * n * np.log2(n)),
    "overhead + n log n, n^1.5": (
        lambda n: 1 + 3e-4 * n * np.log2(n),
        lambda n: 1e-4 * n**1.5,
    ),
    "twice: n^1.5, overhead + n²": (
        lambda n: 1.1e-4 * n**1.5,
        lambda n: 0.45 + 1.6e-4 * n + 6e-7 * n**2,
    ),
}


@dataclass(frozen=True)
class ClassRow:
    """Shares of draws in [0, 1]; width: median width of the slope's interval."""

    curve: str
    lengths: int
    drift: float
    distance: float
    power: float
    right: float
    held: float
    slope: float
    width: float
    coefficients: float


@dataclass(frozen=True)
class CrossoverRow:
    """covered: share of true crossings within an interval; width: median of high over low."""

    pair: str
    lengths: int
    rounds: int
    scatter: float
    covered: float
    width: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables; 0 when every class that can be told is right in 95 % of the draws."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=500, help="per row (default: 500)")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    asked = parser.parse_args(arguments)
    classes = list(class_rows(asked.draws))
    crossings = list(crossover_rows(asked.draws))
    if asked.json:
        rows = {"classes": map(asdict, classes), "crossovers": map(asdict, crossings)}
        print(json.dumps({name: list(values) for name, values in rows.items()}, indent=1))
    else:
        console = Console() if sys.stdout.isatty() else Console(width=140)
        console.print(_class_table(classes))
        console.print(_crossover_table(crossings))
    missed = [row for row in classes if row.power >= 0.95 and row.right < 0.95]
    return 1 if missed else 0


def class_rows(draws: int) -> Iterator[ClassRow]:
    for count, lengths in LENGTHS.items():
        for drift in (0.0, DRIFT):
            for name, curves in CLASSES.items():
                for curve, cost in curves.items():
                    yield _class_row(name, curve, cost, count, lengths, drift, draws)


def crossover_rows(draws: int) -> Iterator[CrossoverRow]:
    for count, lengths in LENGTHS.items():
        for pair in PAIRS:
            yield crossover_row(pair, count, lengths, ROUNDS, 0.0, draws)
    first = next(iter(PAIRS))
    for rounds in (7, 20, 40):
        yield crossover_row(first, 8, LENGTHS[8], rounds, 0.0, draws)
    for scatter in (0.01, 0.03):
        yield crossover_row(first, 8, LENGTHS[8], ROUNDS, scatter, draws)


def noisy_curve(
    cost: Cost, lengths: Sequence[int], drift: float, rng: np.random.Generator
) -> Curve:
    """One draw: the medians and rounds of a sweep."""
    n = np.asarray(lengths, dtype=float)
    cells = cost(n) * np.exp(rng.normal(0, drift, len(n)))
    rounds = cells[:, None] * np.exp(rng.normal(0, NOISE, (len(n), ROUNDS)))
    values = np.median(rounds, axis=1)
    return Curve(tuple(lengths), tuple(values.tolist()), tuple(map(tuple, rounds.tolist())))


def exact_curve(cost: Cost, lengths: Sequence[int]) -> Curve:
    values = cost(np.asarray(lengths, dtype=float)).tolist()
    return Curve(tuple(lengths), tuple(values), tuple((value,) for value in values))


def _class_row(
    name: str,
    curve: str,
    cost: Cost,
    count: int,
    lengths: list[int],
    drift: float,
    draws: int,
) -> ClassRow:
    truth = exact_curve(cost, lengths)
    exact = fit_scaling(truth)
    true_slope = top_slope(truth)
    assert true_slope is not None
    right, held, covered, widths, known = [], [], [], [], []
    for draw in range(draws):
        noisy = noisy_curve(cost, lengths, drift, np.random.default_rng([draw, count]))
        fit = fit_scaling(noisy)
        slope = top_slope(noisy, fit)
        assert slope is not None
        right.append(fit.name == name)
        held.append(name in fit.classes)
        covered.append(slope.encloses(true_slope.value))
        widths.append(slope.high - slope.low)
        if fit.name == name:
            truths = dict(zip(exact.chosen.terms, exact.chosen.coefficients, strict=True))
            known += [
                interval.encloses(truths[term]) for term, interval in fit.coefficients().items()
            ]
    apart = distance(truth, drift)
    return ClassRow(
        curve,
        count,
        drift,
        apart,
        power(apart, exact.spare, drift),
        float(np.mean(right)),
        float(np.mean(held)),
        float(np.mean(covered)),
        float(np.median(widths)),
        float(np.mean(known)) if known else math.nan,
    )


def distance(truth: Curve, drift: float) -> float:
    """Standard errors between a true curve and the nearest one of another class."""
    error = math.hypot(drift, NOISE * math.sqrt(math.pi / 2 / ROUNDS))
    chosen = set(fit_scaling(truth).chosen.terms)
    others = [model for model in candidates(truth) if not chosen <= set(model.terms)]
    return min(model.error for model in others) * math.sqrt(len(truth.lengths)) / error


def power(distance: float, spare: int, drift: float) -> float:
    """Probability that a test at level `REFUTED` refutes a class at that distance; with drift the
    test has to learn the noise from the residuals."""
    if distance > 12:
        return 1.0
    if drift:
        return float(1 - ncfdtr(1, spare, distance**2, fdtri(1, spare, 1 - REFUTED)))
    return float(1 - chndtr(chdtri(1, REFUTED), 1, distance**2))


def crossover_row(
    pair: str, count: int, lengths: list[int], rounds: int, scatter: float, draws: int
) -> CrossoverRow:
    """scatter: of the ratio from process to process, which no round shows."""
    mine, full = PAIRS[pair]
    truths = _crossings(mine, full, lengths[0], lengths[-1])
    covered, widths = [], []
    for draw in range(draws):
        rng = np.random.default_rng([draw, count, rounds])
        sweeps = _sweep(mine, full, lengths, rounds, scatter, rng)
        crossings, _ = read(ratio_curve(*sweeps, lengths))
        for truth, faster in truths:
            covered.append(
                any(
                    found.low <= truth <= (found.high or math.inf)
                    for found in crossings
                    if found.faster == faster
                )
            )
        widths += [found.high / found.low for found in crossings if found.low and found.high]
    return CrossoverRow(
        pair,
        count,
        rounds,
        scatter,
        float(np.mean(covered)),
        float(np.median(widths)) if widths else math.nan,
    )


def _crossings(mine: Cost, full: Cost, first: int, last: int) -> list[tuple[float, bool]]:
    """True crossings, with whether `mine` is faster beyond."""
    grid = np.geomspace(first, last, 2000)
    sign = np.sign(np.log(mine(grid) / full(grid)))
    return [
        (brentq(lambda n: math.log(mine(n) / full(n)), grid[i], grid[i + 1]), bool(sign[i] > 0))
        for i in np.flatnonzero(np.diff(sign))
    ]


def _sweep(
    mine: Cost,
    full: Cost,
    lengths: list[int],
    rounds: int,
    scatter: float,
    rng: np.random.Generator,
) -> tuple[list[Record], list[Record]]:
    """Both contestants of every cell; a drift over the rounds moves both alike."""
    sides: tuple[list[Record], list[Record]] = [], []
    for n in lengths:
        drift = np.cumsum(rng.normal(0, DRIFT, rounds))
        for side, cost, own in zip(sides, (mine, full), (scatter, 0.0), strict=True):
            logs = drift + rng.normal(0, NOISE, rounds) + rng.normal(0, own)
            times = (cost(float(n)) * np.exp(logs)).tolist()
            result = {"samples_ms": times, "waits": None}
            side.append(Record("", "cost", "ok", "", "", {}, {"length": n}, str(n), "", {}, result))
    return sides


def _class_table(rows: list[ClassRow]) -> Table:
    table = Table(title="classes and slopes, share of draws in %", title_justify="left")
    for title in (
        "curve",
        "lengths",
        "drift",
        "distance",
        "power",
        "class right",
        "class held",
        "slope held",
        "its width",
        "coefficients held",
    ):
        table.add_column(title, justify="left" if title == "curve" else "right")
    for row in rows:
        shares = [f"{100 * share:.1f}" for share in (row.right, row.held, row.slope)]
        power_ = f"{100 * row.power:.0f}" + ("" if row.power >= 0.95 else " !")
        table.add_row(
            row.curve,
            str(row.lengths),
            f"{row.drift:.0%}",
            f"{row.distance:.1f}",
            power_,
            *shares,
            f"{row.width:.2f}",
            f"{100 * row.coefficients:.1f}",
        )
    return table


def _crossover_table(rows: list[CrossoverRow]) -> Table:
    table = Table(title="crossovers, share of draws in %", title_justify="left")
    for title in ("contestant, full", "lengths", "rounds", "process scatter", "held", "high / low"):
        table.add_column(title, justify="left" if title == "contestant, full" else "right")
    for row in rows:
        table.add_row(
            row.pair,
            str(row.lengths),
            str(row.rounds),
            f"{row.scatter:.0%}",
            f"{100 * row.covered:.1f}",
            f"{row.width:.3f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
