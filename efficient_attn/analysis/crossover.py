"""At which lengths a contestant is faster than full, read between measured lengths only.

Over length the ratio of the two times has an interval at every length (`ratio_curve`). Where the
whole interval is below 1 the contestant is faster, where it is above 1 slower, and in between no
difference is shown. A crossing is a passage from one to the other; its interval is the stretch of
lengths that lies between, which holds the true crossing as often as the ratio's interval holds the
true ratio. It holds the noise of the rounds, and nothing by which one process of a contestant
differs from the next: where ratios scatter so by 1 %, it held the truth in 90 of 100 draws, not 95.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from efficient_attn.analysis.ratio_curve import RatioCurve, ratio_curve
from efficient_attn.analysis.select import (
    Setting,
    by_setting,
    contestants_in,
    length_of,
    pass_of,
    passes_in,
    pattern_of,
    patterns_in,
)
from efficient_attn.bench.record import Record

Verdict = Literal["faster", "slower", "even"]

FUSED, NAIVE = "full", "full_naive"
"""The baselines: softmax attention through the fused kernel, and written out."""


@dataclass(frozen=True)
class Stretch:
    """Lengths `first` to `last` with one verdict; ``even`` where the interval holds 1."""

    first: float
    last: float
    verdict: Verdict


@dataclass(frozen=True)
class Crossing:
    """One passage of the ratio through 1.

    length: where the ratio is 1. low, high: ends of its interval; 0 where it may lie below the
        first measured length, None where it may lie beyond the last.
    faster: whether the contestant is the faster one beyond it.
    """

    length: float
    low: float
    high: float | None
    faster: bool


@dataclass(frozen=True)
class Crossover:
    """Where a contestant is faster than a baseline, and where that flips.

    crossings: by length; none where the ratio stays on one side of 1.
    stretches: verdicts from the first measured length to the last.
    lengths: what both were measured at. paired: whether every ratio was formed within a cell.
    """

    contestant: str
    baseline: str
    setting: Setting
    pattern: str
    pass_: str
    crossings: tuple[Crossing, ...]
    stretches: tuple[Stretch, ...]
    faster: bool
    lengths: tuple[int, ...]
    paired: bool

    @property
    def length(self) -> float | None:
        """From which length on the contestant is faster: 0 where it is at every measured length,
        None where it is not at the longest."""
        if not self.faster:
            return None
        return self.crossings[-1].length if self.crossings else 0.0

    def __str__(self) -> str:
        return in_words(self.crossings, self.stretches, self.lengths)


def in_words(
    crossings: Sequence[Crossing], stretches: Sequence[Stretch], lengths: Sequence[int]
) -> str:
    """Where a ratio passes 1, or where it lies, of the fields of a `Crossover`."""
    first, last = lengths[0], lengths[-1]

    def passage(crossing: Crossing) -> str:
        low = f"{crossing.low:.0f}" if crossing.low else f"below {first}"
        high = f"beyond {last}" if crossing.high is None else f"{crossing.high:.0f}"
        word = "faster" if crossing.faster else "slower"
        return f"{word} beyond N={crossing.length:.0f} ({low} to {high})"

    def told(stretch: Stretch) -> str:
        word = "no difference shown" if stretch.verdict == "even" else stretch.verdict
        if stretch.first == stretch.last:
            return f"{word} at N={stretch.first:.0f}"
        return f"{word} from N={stretch.first:.0f} to N={stretch.last:.0f}"

    if crossings and any(stretch.verdict != "even" for stretch in stretches):
        return "; ".join(map(passage, crossings))
    if {stretch.verdict for stretch in stretches} == {"slower"}:
        return f"not up to N={last}"
    return "; ".join(map(told, stretches))


def crossovers(records: Iterable[Record], baselines: Sequence[str] = (FUSED,)) -> list[Crossover]:
    """Of every contestant, setting, pattern and pass that has lengths in common with a baseline.

    `FUSED` is never held against `NAIVE`, since the reverse says the same.
    """
    found = []
    for setting, members in by_setting(records).items():
        for pattern in patterns_in(members):
            for pass_ in passes_in(members):
                here = [
                    record
                    for record in members
                    if record.ok and (pattern_of(record), pass_of(record)) == (pattern, pass_)
                ]
                for baseline in baselines:
                    found += _against(baseline, here, setting, pattern, pass_)
    return found


def _against(
    baseline: str, records: list[Record], setting: Setting, pattern: str, pass_: str
) -> list[Crossover]:
    base = {length_of(record): record for record in records if record.contestant == baseline}
    found = []
    for name in contestants_in(records):
        if name == baseline or (name, baseline) == (FUSED, NAIVE):
            continue
        mine = {length_of(record): record for record in records if record.contestant == name}
        common = sorted(set(mine) & set(base))
        if not common:
            continue
        curve = ratio_curve([mine[n] for n in common], [base[n] for n in common], common)
        crossings, stretches = read(curve)
        faster = bool(curve.value[-1] < 0)
        found.append(
            Crossover(
                name,
                baseline,
                setting,
                pattern,
                pass_,
                crossings,
                stretches,
                faster,
                tuple(common),
                curve.paired,
            )
        )
    return found


def read(curve: RatioCurve) -> tuple[tuple[Crossing, ...], tuple[Stretch, ...]]:
    """Crossings and verdicts of a ratio curve."""
    sure = np.where(curve.high < 0, -1, np.where(curve.low > 0, 1, 0))
    edges = [0, *(np.flatnonzero(np.diff(sure)) + 1).tolist(), len(sure)]
    runs = list(pairwise(edges))
    signs = [int(sure[start]) for start, _ in runs]
    # Where one verdict ends and where the next begins: apart only if no even stretch lies between.
    ends = [_passing(curve, start, signs[i], signs[i + 1]) for i, (start, _) in enumerate(runs[1:])]
    borders = [float(curve.lengths[0]), *(end for end, _ in ends), float(curve.lengths[-1])]
    names: dict[int, Verdict] = {-1: "faster", 0: "even", 1: "slower"}
    stretches = tuple(
        Stretch(borders[i], borders[i + 1], names[sign]) for i, sign in enumerate(signs)
    )
    crossings = []
    for i, (start, stop) in enumerate(runs):
        low = 0.0 if start == 0 else borders[i]
        high = None if stop == len(sure) else borders[i + 1]
        if signs[i]:
            # Sure on both sides of one step of the grid: the crossing lies within the step.
            if i == 0 or not signs[i - 1]:
                continue
            low, high, stop = *ends[i - 1], start
        left, right = max(start - 1, 0), min(stop, len(sure) - 1)
        if (curve.value[left] < 0) != (curve.value[right] < 0):
            length = _middle_root(curve, left, right)
            crossings.append(Crossing(length, low, high, faster=bool(curve.value[right] < 0)))
    return tuple(crossings), stretches


def _passing(curve: RatioCurve, start: int, before: int, after: int) -> tuple[float, float]:
    """Lengths in the step before grid point `start` at which the verdict `before` ends and the
    verdict `after` begins."""
    step = slice(start - 1, start + 1)
    # What ends a verdict, or begins one, is the end of the interval that is the nearer one to 1.
    leaves, enters = (curve.low if sign > 0 else curve.high for sign in (before, after))
    left = _root(*curve.lengths[step], *leaves[step]) if before else None
    entered = _root(*curve.lengths[step], *enters[step]) if after else None
    one = entered if left is None else left
    other = left if entered is None else entered
    assert one is not None
    assert other is not None
    return one, other


def _middle_root(curve: RatioCurve, left: int, right: int) -> float:
    """Where the ratio passes 1; noise may make it pass three times or more, then the middle."""
    signs = curve.value[left : right + 1] < 0
    steps = left + np.flatnonzero(signs[1:] != signs[:-1])
    i = int(steps[len(steps) // 2])
    return _root(curve.lengths[i], curve.lengths[i + 1], curve.value[i], curve.value[i + 1])


def _root(one: float, other: float, before: float, after: float) -> float:
    """Length at which a logarithm passes 0 on its way from `before` to `after`."""
    if not np.isfinite([before, after]).all():
        return float(one if np.isfinite(before) else other)
    share = before / (before - after)
    return float(one * (other / one) ** share)
