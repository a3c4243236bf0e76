"""The largest length or batch whose pass fits a given memory, found on measured runs.

What counts is every tensor: inputs and parameters, and the peak of what the pass adds to them. It
is taken to grow with the size, so that a size that does not fit rules out all larger ones. That
holds between lengths of the same padding only: a length of whole windows or blocks may need half of
what a shorter one needs that is padded. So lengths are multiples of 64 unless asked otherwise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from efficient_attn.bench import memory
from efficient_attn.bench.cell import PRELOAD, Contestant
from efficient_attn.bench.passes import Call, build
from efficient_attn.bench.record import Status
from efficient_attn.bench.worker import Limits, Worker, WorkerFailure, worker_context
from efficient_attn.bench.workload import Workload

Vary = Literal["length", "batch"]
Outcome = Literal["fits", "too large"] | Status
Answer = Literal["found", "at least", "none", "unsupported", "failed"]

MULTIPLE_OF: dict[Vary, int] = {"length": 64, "batch": 1}
FIRST: dict[Vary, int] = {"length": 256, "batch": 1}
MOST = 2**20
OF_THE_PROCESS = 2**30
"""Bytes that a worker may need beside its tensors: torch itself, threads, the profiler."""


@dataclass(frozen=True)
class Probe:
    """One size, run once in a process of its own.

    outcome: ``fits`` or ``too large`` where the run came to its end, else the status of its end.
    held_bytes: inputs and parameters; peak_bytes: what the pass adds to them; rss_bytes: peak
    resident set of the whole process. All are None where they were not measured.
    capacity_bytes: what the run could have used at most; None when unknown.
    """

    size: int
    outcome: Outcome
    seconds: float
    held_bytes: int | None = None
    peak_bytes: int | None = None
    rss_bytes: int | None = None
    capacity_bytes: int | None = None
    reason: str | None = None

    @property
    def needed_bytes(self) -> int | None:
        if self.held_bytes is None or self.peak_bytes is None:
            return None
        return self.held_bytes + self.peak_bytes


@dataclass(frozen=True)
class FitResult:
    """The answer for one contestant; every number in it was measured at exactly its size.

    answer: ``found``: `largest` fits and `beyond`, larger by no more than the resolution, does not;
    ``at least``: `largest` fits, and something other than the memory asked about ended the search;
    ``none``: not even the smallest size fits; ``unsupported``; ``failed``: nothing was measured.
    reason: for people, where the answer is not ``found``.
    multiple_of: only such sizes were tried.
    """

    contestant: Contestant
    vary: Vary
    multiple_of: int
    memory_bytes: int
    answer: Answer
    largest: Probe | None
    beyond: Probe | None
    reason: str | None
    probes: tuple[Probe, ...]

    @property
    def grows(self) -> bool:
        """Whether the memory measured grew with the size, as the search takes for granted."""
        needed = [needed for _, needed in _measured(self.probes)]
        return needed == sorted(needed)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "grows": self.grows}


Report = Callable[[Contestant, Probe], None]


def largest(
    contestant: Contestant,
    workload: Workload,
    memory_bytes: int,
    *,
    vary: Vary = "length",
    multiple_of: int | None = None,
    most: int = MOST,
    resolution: float = 0.02,
    limits: Limits | None = None,
    report: Report | None = None,
) -> FitResult:
    """The largest `vary` of `workload` at which `contestant` needs at most `memory_bytes`.

    multiple_of: sizes tried are multiples of it (64 for lengths, 1 for batches by default); most:
    no larger size is tried; resolution: relative distance to the next size that does not fit, at
    which the search ends; limits: of each run (60 s by default); report: told of each. ValueError
    for a workload that contradicts itself.
    """
    if workload.contradiction:
        raise ValueError(workload.contradiction)
    multiple_of = MULTIPLE_OF[vary] if multiple_of is None else multiple_of
    if memory_bytes <= 0 or not 1 <= multiple_of <= most or not 0 < resolution < 1:
        raise ValueError(
            f"memory of {memory_bytes} bytes, multiples of {multiple_of} up to {most}, resolution "
            f"{resolution}: memory must be above 0, the first multiple at least 1 and no more "
            "than the largest size, the resolution between 0 and 1"
        )
    limits = limits or Limits(timeout_s=60.0)
    search = _Search(memory_bytes, multiple_of, most, resolution, limits.timeout_s)
    first = max(1, FIRST[vary] // multiple_of) * multiple_of
    size: int | None = first if first <= most else multiple_of
    while size is not None:
        probe = _probe(contestant, _sized(workload, vary, size), size, memory_bytes, limits)
        if report is not None:
            report(contestant, probe)
        search.add(probe)
        size = search.next_size()
    answer, reason = search.conclusion()
    return FitResult(
        contestant,
        vary,
        multiple_of,
        memory_bytes,
        answer,
        search.low,
        search.high,
        reason,
        tuple(search.probes),
    )


def _sized(workload: Workload, vary: Vary, size: int) -> Workload:
    return replace(workload, batch=size) if vary == "batch" else replace(workload, length=size)


class FitSubject:
    """Lives in a worker process: makes one workload and runs it once."""

    def __init__(self, variant: str, options: dict[str, Any], workload: Workload) -> None:
        self._arguments = variant, options, workload
        self._workload = workload

    def measure(self) -> dict[str, int | None]:
        device = self._workload.device
        memory.reset_peak_rss()
        call, held = memory.kept_tensor_bytes(self._build, device)
        peak = memory.peak_tensor_bytes(call, device)
        return {
            "held_bytes": held,
            "peak_bytes": peak.tensor_bytes,
            "rss_bytes": memory.peak_rss(),
        }

    def _build(self) -> Call:
        call = build(*self._arguments)
        if self._workload.pass_ == "train_step":  # the first step makes the optimizer's moments
            call()
            call.reset()
        return call


def _probe(
    contestant: Contestant, workload: Workload, size: int, memory_bytes: int, limits: Limits
) -> Probe:
    capacity = _capacity(workload.device, limits)
    arguments = contestant.variant, contestant.options, workload
    worker = Worker(worker_context(PRELOAD), FitSubject, arguments, limits)
    start = time.monotonic()
    try:
        measured = worker.ask("measure")
    except WorkerFailure as failure:
        spent = time.monotonic() - start
        return Probe(size, failure.status, spent, capacity_bytes=capacity, reason=failure.reason)
    finally:
        worker.close()
    needed = measured["held_bytes"] + measured["peak_bytes"]
    outcome: Outcome = "fits" if needed <= memory_bytes else "too large"
    return Probe(size, outcome, time.monotonic() - start, **measured, capacity_bytes=capacity)


def _capacity(device: str, limits: Limits) -> int | None:
    """Bytes that a run on this device can use before it runs out of memory."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_properties(device).total_memory
    return limits.memory_bytes


class _Search:
    """Doubling and bisection, led by the memory measured so far.

    low: the largest probe that fits; high: the smallest one beyond it that does not. Inside, sizes
    are counted in multiples.
    """

    def __init__(
        self, memory_bytes: int, multiple_of: int, most: int, resolution: float, timeout_s: float
    ) -> None:
        self._memory_bytes = memory_bytes
        self._multiple_of = multiple_of
        self._most = most // multiple_of
        self._resolution = resolution
        self._timeout_s = timeout_s
        self.probes: list[Probe] = []
        self.low: Probe | None = None
        self.high: Probe | None = None
        self._within = 0  # probes since there is both a low and a high

    def add(self, probe: Probe) -> None:
        self._within += self.low is not None and self.high is not None
        self.probes.append(probe)
        if probe.outcome == "fits":
            self.low = probe
        else:
            self.high = probe

    def next_size(self) -> int | None:
        """What to try next; None when the answer is known or cannot be known better."""
        if self.high is None:
            multiple = self._upward()
        elif self.high.outcome not in ("too large", "oom"):
            multiple = None
        elif self.low is None:
            multiple = self.high.size // self._multiple_of // 2 or None
        else:
            multiple = self._between(
                self.low.size // self._multiple_of, self.high.size // self._multiple_of
            )
        return None if multiple is None else multiple * self._multiple_of

    def _upward(self) -> int | None:
        assert self.low is not None
        low = self.low.size // self._multiple_of
        if low >= self._most:
            return None
        # Time may grow with the square of the size, and a run that is cut short teaches little.
        growth = min(4.0, max(2.0, math.sqrt(self._timeout_s / max(self.low.seconds, 1e-3))))
        limit = min(self._most, int(low * growth))
        predicted = int(self._predicted() or limit)
        return min(limit, max(low + self._step(low), predicted))

    def _between(self, low: int, high: int) -> int | None:
        step = self._step(low)
        if high - low <= step:
            return None
        predicted = self._predicted()
        if predicted is None or self._within % 3 == 2:  # a misleading prediction costs no more
            predicted = math.sqrt(low * high)
        highest = high - max(1, int(high * self._resolution / (1 + self._resolution)))
        return max(low + step, min(int(predicted), highest))

    def conclusion(self) -> tuple[Answer, str | None]:
        if self.low is None:
            assert self.high is not None
            if self.high.outcome == "unsupported":
                return "unsupported", self.high.reason
            if self._short_of_memory(self.high):
                return "none", f"size {self.high.size} is too large already"
            return "failed", f"{self.high.outcome}: {self.high.reason}"
        if self.high is None:
            return "at least", f"{self.low.size} is the largest size asked for"
        if self._short_of_memory(self.high):
            return "found", None
        if self.high.outcome == "timeout":
            return "at least", "time, not memory, was the limit"
        if self.high.outcome == "oom":
            return "at least", "this machine has too little memory to try larger sizes"
        return "at least", f"size {self.high.size} {self.high.outcome}: {self.high.reason}"

    def _short_of_memory(self, probe: Probe) -> bool:
        """Whether the probe shows that its size needs more than the memory asked about.

        A run that ran out of memory shows it where it could have used more than that.
        """
        if probe.outcome == "oom" and probe.capacity_bytes is not None:
            return probe.capacity_bytes >= self._memory_bytes + OF_THE_PROCESS
        return probe.outcome == "too large"

    def _step(self, size: int) -> int:
        return max(1, int(size * self._resolution))

    def _predicted(self) -> float | None:
        """Multiple at which memory meets the limit, if it is a polynomial of at most second degree
        through the three largest measured sizes; None when that says nothing."""
        measured = _measured(self.probes)[-3:]
        if len(measured) < 3:
            return None
        size = _crossing(measured, self._memory_bytes)
        return None if size is None else size / self._multiple_of


def _measured(probes: Sequence[Probe]) -> list[tuple[int, int]]:
    """Size and bytes of the probes that came to their end, by size."""
    return sorted(
        (probe.size, probe.needed_bytes) for probe in probes if probe.needed_bytes is not None
    )


def _crossing(points: Sequence[tuple[int, int]], level: int) -> float | None:
    """Where the parabola through three points rises through `level`."""
    sizes, values = np.array(points, dtype=float).T
    scale = sizes[-1]
    coefficients = np.polyfit(sizes / scale, values - level, 2)
    slopes = np.polyder(coefficients)
    rising = [
        root.real
        for root in np.roots(coefficients)
        if abs(root.imag) < 1e-9 and root.real > 0 and np.polyval(slopes, root.real) > 0
    ]
    return float(max(rising) * scale) if rising else None
