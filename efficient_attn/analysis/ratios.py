"""How many times as long: times of records and their ratios, each with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from efficient_attn.bench.intervals import CONFIDENCE, Interval, median_interval, undisturbed
from efficient_attn.bench.record import Record


@dataclass(frozen=True)
class Ratio(Interval):
    """Time of one contestant over the time of another; below 1 is faster than the other.

    paired: formed within the rounds of one cell, so that machine drift cancels. False means two
        medians taken at different times were divided: trust it less than its interval says.
    """

    paired: bool = True


def trusted_samples(record: Record) -> list[float]:
    """Samples in ms of an ok cost record, without those that waited for a core (where enough are
    left)."""
    samples = record.result["samples_ms"]
    rounds = undisturbed([record.result["waits"]], len(samples))
    return [samples[number] for number in rounds]


def time_interval(record: Record, confidence: float = CONFIDENCE) -> Interval:
    """Median time of an ok cost record, in ms."""
    return median_interval(trusted_samples(record), confidence)


def ratio(record: Record, other: Record, confidence: float = CONFIDENCE) -> Ratio:
    """Time of `record` over time of `other`, both ok cost records of the same workload.

    Records of one cell with equally many samples are paired: the median of the ratios of their
    rounds, without rounds in which one of the two waited for a core. Otherwise the medians are
    divided, the ends are those farthest apart, and `paired` is False.
    """
    mine, theirs = record.result["samples_ms"], other.result["samples_ms"]
    if record.cell == other.cell and len(mine) == len(theirs):
        rounds = undisturbed([record.result["waits"], other.result["waits"]], len(mine))
        pairs = [mine[number] / theirs[number] for number in rounds]
        inner = median_interval(pairs, confidence)
        return Ratio(inner.value, inner.low, inner.high, inner.n, inner.confidence, paired=True)
    return divide(time_interval(record, confidence), time_interval(other, confidence))


def divide(one: Interval, other: Interval) -> Ratio:
    """Quotient of two positive intervals known apart from each other: the ends farthest apart."""
    low = max(one.low, 0.0) / other.high if other.high > 0 else 0.0
    high = one.high / other.low if other.low > 0 else math.inf
    n, confidence = min(one.n, other.n), min(one.confidence, other.confidence)
    return Ratio(one.value / other.value, low, high, n, confidence, paired=False)


def spread(one: Interval, other: Interval, width: float) -> Ratio:
    """Quotient of two predicted values, within a factor exp(±width)."""
    value, n = one.value / other.value, min(one.n, other.n)
    return Ratio(value, value * _exp(-width), value * _exp(width), n, 0.0, paired=False)


def quotient(one: Interval, other: Interval) -> Ratio:
    """Quotient of two positive values of which one is predicted.

    Their errors are taken as independent: relative widths towards each end add in quadrature.
    """
    value = one.value / other.value
    low = math.hypot(_log(one.value, one.low), _log(other.high, other.value))
    high = math.hypot(_log(one.high, one.value), _log(other.value, other.low))
    n = min(one.n, other.n)
    return Ratio(value, value * math.exp(-low), value * _exp(high), n, 0.0, paired=False)


def _log(large: float, small: float) -> float:
    """Distance in logs; infinite where an end is unknown."""
    return math.log(large / small) if 0 < small and math.isfinite(large) else math.inf


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
