"""How sure a number is: medians and means, each with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from scipy.special import stdtrit

CONFIDENCE = 0.95

CONTENDED = 0.05
"""Share of a sample spent waiting for a core above which the sample is not trusted."""

ENOUGH = 6
"""Samples that a 95 % interval of a median needs at least."""


@dataclass(frozen=True)
class Interval:
    """A value between two ends.

    n: how many independent samples it stands on.
    confidence: probability that the ends enclose the truth; 0 when the ends are unknown (infinite)
        or a plain range (predictions).
    """

    value: float
    low: float
    high: float
    n: int
    confidence: float

    @property
    def known(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def encloses(self, value: float) -> bool:
        return self.low <= value <= self.high

    def to_dict(self) -> dict[str, Any]:
        """Plain data fit for JSON: unknown ends are None."""
        values = asdict(self)
        for end in ("low", "high"):
            if not math.isfinite(values[end]):
                values[end] = None
        return values


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Median with the distribution-free interval between two order statistics.

    The number of samples below the true median is binomial(n, 1/2), so x(l)..x(n+1−l) encloses it
    with known probability whatever the distribution (David & Nagaraja, Order Statistics, §7.1).
    Below the 6 samples which 95 % needs, a Student interval of the logarithms stands in (the
    samples must then be positive); one sample has unknown ends.
    """
    if not samples:
        raise ValueError("a median needs at least one sample")
    ordered = sorted(float(value) for value in samples)
    n = len(ordered)
    median = statistics.median(ordered)
    rank, reached = _order_statistic(n, confidence)
    if rank > 0:
        return Interval(median, ordered[rank - 1], ordered[n - rank], n, reached)
    if n == 1 or ordered[0] <= 0:
        return Interval(median, -math.inf, math.inf, n, 0.0)
    logs = mean_interval([math.log(value) for value in ordered], confidence)
    low, high = _exp(logs.low), _exp(logs.high)
    return Interval(median, min(low, median), max(high, median), n, confidence)


def undisturbed(waits: Sequence[Sequence[float] | None], rounds: int) -> list[int]:
    """Which of `rounds` rounds to trust: those in which no one's sample waited for a core.

    waits: of each contestant looked at, a share per round or None when unknown. When fewer than
    `ENOUGH` rounds are left, all count: a disturbed number then says so by its wide interval.
    """
    known = [shares for shares in waits if shares is not None]
    if all(max(shares[:rounds], default=0.0) <= CONTENDED for shares in known):
        return list(range(rounds))
    clean = [
        number for number in range(rounds) if all(shares[number] <= CONTENDED for shares in known)
    ]
    return clean if len(clean) >= ENOUGH else list(range(rounds))


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Mean with Student's interval; one value has unknown ends."""
    if not values:
        raise ValueError("a mean needs at least one value")
    n = len(values)
    mean = statistics.fmean(values)
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1, 0.0)
    reach = float(stdtrit(n - 1, 0.5 + confidence / 2)) * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - reach, mean + reach, n, confidence)


@lru_cache(maxsize=4096)
def _order_statistic(n: int, confidence: float) -> tuple[int, float]:
    """Largest rank l whose x(l)..x(n+1−l) reaches the confidence, and what it reaches; 0: none."""
    tail, rank, total = 0, 0, 2**n
    reached = 0.0
    for below in range(n // 2):
        tail += math.comb(n, below)
        coverage = 1.0 - 2 * tail / total
        if coverage < confidence:
            break
        rank, reached = below + 1, coverage
    return rank, reached


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)
