"""Growth with length of everything that was measured: slope, class, and what looks implausible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from efficient_attn.analysis.scaling import (
    MIN_LENGTHS,
    Curve,
    ScalingFit,
    fit_scaling,
    flop_curve,
    memory_curve,
    time_curve,
)
from efficient_attn.analysis.select import (
    Setting,
    by_setting,
    contestants_in,
    pass_of,
    passes_in,
    pattern_of,
    patterns_in,
)
from efficient_attn.bench.intervals import CONFIDENCE, Interval, median_interval
from efficient_attn.bench.record import Record

QUANTITIES: dict[str, Callable[[Iterable[Record]], Curve]] = {
    "time": time_curve,
    "memory": memory_curve,
    "FLOPs": flop_curve,
}
"""What grows: median ms, peak bytes, FLOPs of one call."""

FLAT = 0.25
"""Slope below which a doubled length costs less than a fifth more."""
STEEP = 0.2
"""How far above 2 a measured slope is implausible: scores are quadratic, everything else grows
less. It is more than three standard errors where cells drift by 3 %."""
NOISY = 0.1
"""Scatter about the fitted curve, relative, above which its class is not to be relied on."""


@dataclass(frozen=True)
class Growth:
    """How one quantity of one contestant grows with length.

    quantity: a key of `QUANTITIES`.
    slope: as `top_slope` gives it; None where fewer than two lengths lie in the top two octaves.
    fit: None below three lengths.
    doubts: why not to rely on the curve, in words; empty when nothing looks implausible.
    """

    contestant: str
    setting: Setting
    pattern: str
    pass_: str
    quantity: str
    curve: Curve
    slope: Interval | None
    fit: ScalingFit | None
    doubts: tuple[str, ...]


def growths(records: Iterable[Record]) -> list[Growth]:
    """Of every contestant, setting, pattern, pass and quantity with at least one known value."""
    return [
        growth
        for setting, members in by_setting(records).items()
        for pattern in patterns_in(members)
        for pass_ in passes_in(members)
        for growth in _of_pass(
            [r for r in members if (pattern_of(r), pass_of(r)) == (pattern, pass_)],
            setting,
            pattern,
            pass_,
        )
    ]


def top_slope(
    curve: Curve, fit: ScalingFit | None = None, confidence: float = CONFIDENCE
) -> Interval | None:
    """Log-log slope over the top two octaves: 1 where doubling the length doubles the cost.

    Least squares over the lengths from a quarter of the longest on; None when fewer than two lie
    there. The value takes no class for granted. Its Student interval does: the values scatter as
    those of the whole curve do about the fitted class, so that drift between cells counts and not
    only the noise within them. Where too few lengths are left to tell it (below four, mostly), the
    ends are unknown. Exact values give a slope without width.

    fit: of the same curve, where it was made already.
    """
    top = [i for i, length in enumerate(curve.lengths) if 4 * length >= curve.lengths[-1]]
    if len(top) < 2:
        return None
    x = np.log([curve.lengths[i] for i in top])
    weights = np.zeros(len(curve.lengths))
    weights[top] = (x - x.mean()) / np.square(x - x.mean()).sum()
    value = float(weights @ np.log(curve.values))
    if curve.exact:
        return Interval(value, value, value, 1, 1.0)
    if fit is None and len(curve.lengths) >= MIN_LENGTHS:
        fit = fit_scaling(curve)
    reach = fit.reach(weights, confidence) if fit else math.inf
    known = confidence if math.isfinite(reach) else 0.0
    n = min(len(curve.samples[i]) for i in top)
    return Interval(value, value - reach, value + reach, n, known)


def doubts(
    curve: Curve, slope: Interval | None, fit: ScalingFit | None, *, may_be_flat: bool = False
) -> tuple[str, ...]:
    """What is implausible about a curve: flat, steeper than N², noisy or uneven, falling somewhere.

    may_be_flat: for decoding, where a variant with a state of fixed size costs the same per token
        at every length.
    """
    found = []
    if slope is not None and slope.value < FLAT and not may_be_flat:
        found.append(
            f"flat: doubling N changes the cost by {2**slope.value - 1:+.0%}; what does not depend "
            "on N hides the growth, measure longer lengths"
        )
    if slope is not None and slope.value > 2 + (0.02 if curve.exact else STEEP):
        found.append(
            f"steeper than N²: slope {slope.value:.2f}; caches or memory ran out, or the machine "
            "slowed down"
        )
    if fit is not None and max(fit.scatter, fit.noise) > NOISY:
        off = f"values scatter by {fit.scatter:.0%} about the curve"
        found.append(
            f"uneven: {off}, which tiles or a change of method may explain"
            if curve.exact
            else f"noisy: {off}, noise within cells is {fit.noise:.0%}"
        )
    falls = _falls(curve)
    if falls:
        where = ", ".join(f"{one} to {other}" for one, other in falls)
        found.append(f"not monotone: falls from N={where}")
    return tuple(found)


def _falls(curve: Curve) -> list[tuple[int, int]]:
    """Neighbouring lengths of which the longer one surely costs less."""
    ends = [
        (value, value) if len(taken) == 1 else (inner.low, inner.high)
        for value, taken in zip(curve.values, curve.samples, strict=True)
        for inner in [median_interval(taken)]
    ]
    return [
        (curve.lengths[i], curve.lengths[i + 1])
        for i in range(len(ends) - 1)
        if ends[i + 1][1] < ends[i][0]
    ]


def _of_pass(records: list[Record], setting: Setting, pattern: str, pass_: str) -> Iterable[Growth]:
    for name in contestants_in(records):
        mine = [record for record in records if record.contestant == name]
        for quantity, curve_of in QUANTITIES.items():
            curve = curve_of(mine)
            if not curve.lengths:
                continue
            fit = fit_scaling(curve) if len(curve.lengths) >= MIN_LENGTHS else None
            slope = top_slope(curve, fit)
            unlikely = doubts(curve, slope, fit, may_be_flat=pass_ == "decode")
            yield Growth(name, setting, pattern, pass_, quantity, curve, slope, fit, unlikely)
