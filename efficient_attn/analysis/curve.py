"""One cost over length, as records hold it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from efficient_attn.analysis.ratios import trusted_samples
from efficient_attn.analysis.select import length_of
from efficient_attn.bench.intervals import median_interval
from efficient_attn.bench.record import Record


@dataclass(frozen=True)
class Curve:
    """One cost over length, by ascending length.

    samples: the repeated measurements behind each value; one number where it is exact (bytes).
    """

    lengths: tuple[int, ...]
    values: tuple[float, ...]
    samples: tuple[tuple[float, ...], ...]

    @property
    def exact(self) -> bool:
        """Whether the values are counts (bytes, FLOPs), which repetition does not change."""
        return all(len(taken) == 1 for taken in self.samples)

    @property
    def noise(self) -> float:
        """Relative standard error of the values, root mean square over the lengths."""
        errors = [_relative_error(samples) for samples in self.samples if len(samples) > 1]
        return math.sqrt(sum(error**2 for error in errors) / len(errors)) if errors else 0.0


def time_curve(records: Iterable[Record]) -> Curve:
    """Median times (ms) of the ok cost records of one contestant, one record per length."""
    ordered = sorted((record for record in records if record.ok), key=length_of)
    samples = tuple(tuple(trusted_samples(record)) for record in ordered)
    values = tuple(float(np.median(taken)) for taken in samples)
    return Curve(tuple(length_of(record) for record in ordered), values, samples)


def memory_curve(records: Iterable[Record]) -> Curve:
    """Peak bytes of the ok cost records of one contestant, where they are known and not 0."""
    return _counted(records, peak_bytes)


def flop_curve(records: Iterable[Record]) -> Curve:
    """FLOPs of the ok cost records of one contestant, where they are known and not 0."""
    return _counted(records, lambda record: record.result.get("flops"))


def _counted(records: Iterable[Record], count: Callable[[Record], int | None]) -> Curve:
    known = [(length_of(record), count(record)) for record in records if record.ok]
    ordered = sorted((length, float(value)) for length, value in known if value)
    lengths = tuple(length for length, _ in ordered)
    values = tuple(value for _, value in ordered)
    return Curve(lengths, values, tuple((value,) for value in values))


def peak_bytes(record: Record) -> int | None:
    """Peak tensor bytes of an ok cost record; the peak resident set where those are unknown."""
    exact = record.result.get("peak_tensor_bytes")
    peak = record.result.get("peak_rss_bytes") if exact is None else exact
    return None if peak is None else int(peak)


def _relative_error(samples: Sequence[float]) -> float:
    inner = median_interval(samples)
    if not inner.known or inner.value <= 0:
        return 0.0
    # A 95 % interval is 2 × 1.96 standard errors wide.
    return (inner.high - inner.low) / (3.92 * inner.value)
