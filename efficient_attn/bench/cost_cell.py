"""Time and memory of several contestants under one workload, interleaved round by round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from efficient_attn.bench import environment
from efficient_attn.bench.cell import Cell, Contestant, Progress
from efficient_attn.bench.cost import CostSubject
from efficient_attn.bench.intervals import median_interval
from efficient_attn.bench.record import CostResult, Measure, Record
from efficient_attn.bench.worker import Worker, WorkerFailure
from efficient_attn.bench.workload import Workload


@dataclass(frozen=True)
class CostSettings:
    """How long to measure.

    target: half width of the median's interval, relative to the median, at which a contestant is
    known well enough; min_rounds, max_rounds: of one sample per contestant; budget_s: of sampling
    in a cell, after which the rounds end once there are min_rounds; warm_up_s: at least, per
    contestant; sample_ms: fast calls are repeated to fill a sample of this length; pause_ms: before
    each sample. OpenMP's threads go on spinning for some milliseconds after their work is done:
    without the pause, those of one contestant slow the next by up to half.
    """

    target: float = 0.02
    min_rounds: int = 7
    max_rounds: int = 40
    budget_s: float = 15.0
    warm_up_s: float = 0.2
    sample_ms: float = 20.0
    pause_ms: float = 15.0

    def __post_init__(self) -> None:
        if not 6 <= self.min_rounds <= self.max_rounds:
            raise ValueError(
                f"measure.min_rounds={self.min_rounds}: allowed is 6 (fewer give no 95 % interval) "
                f"up to max_rounds={self.max_rounds}"
            )
        for name in ("target", "budget_s", "sample_ms"):
            if getattr(self, name) <= 0:
                raise ValueError(f"measure.{name}={getattr(self, name)}: must be above 0")


@dataclass
class _Entry:
    """A contestant in the race: its worker, what it told of itself, and its samples."""

    contestant: Contestant
    worker: Worker
    facts: dict[str, Any]
    calls_per_sample: int = 1
    samples: list[float] = field(default_factory=list)

    def spread(self) -> float:
        interval = median_interval(self.samples)
        return max(interval.high - interval.value, interval.value - interval.low) / interval.value


@dataclass(frozen=True)
class CostCell(Cell):
    """One workload; a record carries the raw samples, paired by round within the cell."""

    workload: Workload
    how: CostSettings

    @property
    def measure(self) -> Measure:
        return "cost"

    @cached_property
    def request(self) -> dict[str, Any]:
        return self.workload.to_dict()

    @cached_property
    def settings(self) -> dict[str, Any]:
        return {**asdict(self.how), **asdict(self.limits)}

    @property
    def label(self) -> str:
        w = self.workload
        passes = {"forward": "forward", "forward_backward": "forward+backward"}[w.pass_]
        return f"cost  {w.pattern}  N={w.length}  {passes}"

    @property
    def device(self) -> str:
        return self.workload.device

    def run(self, contestants: Sequence[Contestant], progress: Progress) -> Iterator[Record]:
        load = environment.load_average()
        entries: list[_Entry] = []
        try:
            for index, contestant in enumerate(contestants):
                progress(0.3 * index / len(contestants), f"{contestant.name}: warm-up")
                started = self._start(contestant, load)
                if isinstance(started, Record):
                    yield started
                else:
                    entries.append(started)
            yield from self._race(entries, load, progress)
            for index, entry in enumerate(entries):
                progress(0.8 + 0.2 * index / len(entries), f"{entry.contestant.name}: memory")
                yield self._finish(entry, load)
        finally:
            for entry in entries:
                entry.worker.close()
        progress(1.0, "")

    def _start(self, contestant: Contestant, load: float | None) -> _Entry | Record:
        worker = self.start_worker(
            CostSubject, contestant.variant, contestant.options, self.workload
        )
        try:
            entry = _Entry(contestant, worker, worker.ask("prepare"))
            entry.calls_per_sample = worker.ask(
                "warm_up", self.how.warm_up_s, self.how.sample_ms / 1e3
            )
            return entry
        except WorkerFailure as error:
            worker.close()
            return self.failure(contestant, error, load_before=load)

    def _race(
        self, entries: list[_Entry], load: float | None, progress: Progress
    ) -> Iterator[Record]:
        """Rounds of one sample each, in rotating order, until all are known or time is up."""
        start = time.monotonic()
        for number in range(self.how.max_rounds):
            offset = number % max(1, len(entries))
            for entry in entries[offset:] + entries[:offset]:
                time.sleep(self.how.pause_ms / 1e3)
                try:
                    entry.samples.append(entry.worker.ask("sample"))
                except WorkerFailure as error:
                    entries.remove(entry)
                    yield self.failure(entry.contestant, error, load_before=load)
            spent = (time.monotonic() - start) / self.how.budget_s
            done = max(spent, (number + 1) / self.how.max_rounds)
            progress(0.3 + 0.5 * min(1.0, done), f"round {number + 1}")
            if number + 1 < self.how.min_rounds:
                continue
            if spent >= 1 or all(entry.spread() <= self.how.target for entry in entries):
                return

    def _finish(self, entry: _Entry, load: float | None) -> Record:
        try:
            peak, method = entry.worker.ask("peak_memory")
        except WorkerFailure as error:
            return self.failure(entry.contestant, error, load_before=load)
        finally:
            entry.worker.close()
        interval = median_interval(entry.samples)
        result = CostResult(
            samples_ms=entry.samples,
            median_ms=interval.value,
            low_ms=interval.low,
            high_ms=interval.high,
            noisy=entry.spread() > self.how.target,
            first_call_ms=entry.facts["first_call_ms"],
            calls_per_sample=entry.calls_per_sample,
            peak_tensor_bytes=peak,
            peak_method=method,
            peak_rss_bytes=entry.facts["peak_rss_bytes"],
            parameters=entry.facts["parameters"],
        )
        return self.record(
            entry.contestant,
            "ok",
            result=asdict(result),
            options=entry.facts["options"],
            threads=entry.facts["threads"],
            load_before=load,
        )
