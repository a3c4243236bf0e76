"""How far a measurement runs from the limit of its machine.

Williams, Waterman and Patterson 2009, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures": work cannot take less time than its arithmetic at the peak rate of matrix
products, nor less than moving its bytes at the memory's bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from efficient_attn.bench.record import Record

Bound = Literal["compute", "memory"]


@dataclass(frozen=True)
class Roofline:
    """limit_ms: least time that the machine's measured peaks allow; share: limit over the measured
    median; bound: which of the peaks sets the limit; flops_per_s: achieved.

    A share above 1 is no error and is not cut off: the bandwidth is that of a copy from and to
    main memory, and data that fit in a cache move faster.
    """

    limit_ms: float
    share: float
    bound: Bound
    flops_per_s: float


def roofline(record: Record) -> Roofline | None:
    """Of an ok cost record with known FLOPs and bytes, whose environment holds the machine's peak
    (``machine_peak``: ``flops_per_s`` and ``bytes_per_s``); None when anything is unknown."""
    if not record.ok or record.measure != "cost":
        return None
    peak = record.environment.get("machine_peak") or {}
    flops, traffic, median_ms = map(record.result.get, ("flops", "traffic_bytes", "median_ms"))
    peaks = [peak.get("flops_per_s"), peak.get("bytes_per_s")]
    if flops is None or traffic is None or not all(map(_positive, [median_ms, *peaks])):
        return None
    compute_ms = flops / peaks[0] * 1e3
    memory_ms = traffic / peaks[1] * 1e3
    limit_ms = max(compute_ms, memory_ms)
    return Roofline(
        limit_ms=limit_ms,
        share=limit_ms / median_ms,
        bound="compute" if compute_ms >= memory_ms else "memory",
        flops_per_s=flops / median_ms * 1e3,
    )


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and isfinite(value) and value > 0
