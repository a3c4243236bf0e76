"""Several contestants timed under one question, interleaved round by round."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from efficient_attn.bench import contention, environment
from efficient_attn.bench.cell import Cell, Contestant, Progress
from efficient_attn.bench.intervals import ENOUGH, Interval, median_interval, undisturbed
from efficient_attn.bench.machine_peak import PeakSubject, machine_peak
from efficient_attn.bench.model import ModelWorkload
from efficient_attn.bench.record import CostResult, Record
from efficient_attn.bench.worker import Worker, WorkerFailure
from efficient_attn.bench.workload import Workload


@dataclass(frozen=True)
class CostSettings:
    """How long to measure.

    target: half width of the median's interval, relative to the median, at which a contestant is
    known well enough; min_rounds, max_rounds: of one sample per contestant; budget_s: of sampling
    in a cell, after which the rounds end once there are min_rounds; warm_up_s, warm_up_max_s: per
    contestant, between which warming up ends when times settle; sample_ms: fast calls are repeated
    to fill a sample of this length; rest_ms: longest wait, before each sample, until the threads
    of the contestant before have come to rest.
    """

    target: float = 0.02
    min_rounds: int = 7
    max_rounds: int = 200
    budget_s: float = 15.0
    warm_up_s: float = 0.2
    warm_up_max_s: float = 1.0
    sample_ms: float = 20.0
    rest_ms: float = 15.0

    def __post_init__(self) -> None:
        if not ENOUGH <= self.min_rounds <= self.max_rounds:
            raise ValueError(
                f"measure.min_rounds={self.min_rounds}: allowed is 6 (fewer give no 95 % interval) "
                f"up to max_rounds={self.max_rounds}"
            )
        for name in ("target", "budget_s", "sample_ms"):
            if getattr(self, name) <= 0:
                raise ValueError(f"measure.{name}={getattr(self, name)}: must be above 0")


@dataclass
class Entry:
    """A contestant in the race: its worker, what it told of itself, and its samples."""

    contestant: Contestant
    worker: Worker
    facts: dict[str, Any]
    calls_per_sample: int = 1
    samples: list[float] = field(default_factory=list)
    waits: list[float | None] = field(default_factory=list)

    def known_waits(self) -> list[float] | None:
        """Shares of waiting, None when the system does not tell them."""
        known = [share for share in self.waits if share is not None]
        return known if len(known) == len(self.waits) else None

    def interval(self) -> Interval:
        rounds = undisturbed([self.known_waits()], len(self.samples))
        return median_interval([self.samples[number] for number in rounds])

    def spread(self) -> float:
        interval = self.interval()
        return max(interval.high - interval.value, interval.value - interval.low) / interval.value


class Ledger:
    """Where the seconds of a cell go: what is neither warm-up nor timed is the harness's own."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.spent = dict.fromkeys(("start", "warm_up", "timed", "memory", "idle"), 0.0)

    def add(self, what: str, seconds: float) -> None:
        self.spent[what] += seconds

    def closed(self) -> dict[str, float]:
        total = time.monotonic() - self.began
        return {name: round(value, 3) for name, value in {"total": total, **self.spent}.items()}


class RaceCell(Cell):
    """One question; a record carries the raw samples, paired by round within the cell.

    Each contestant's worker holds a subject with the methods of `CostSubject`. What a subject tells
    in ``more`` goes into its result beside the fields of `CostResult`. A subclass has the fields
    ``workload`` and ``how``.
    """

    workload: Workload | ModelWorkload
    how: CostSettings
    result_class: ClassVar[type[CostResult]] = CostResult

    @abstractmethod
    def subject(self, contestant: Contestant) -> Worker:
        """A worker that holds the contestant, ready to be asked."""

    @cached_property
    def request(self) -> dict[str, Any]:
        return self.workload.to_dict()

    @property
    def device(self) -> str:
        return self.workload.device

    @property
    def contradiction(self) -> str | None:
        """Why no contestant can be asked this; None when all is well."""
        return None

    @cached_property
    def settings(self) -> dict[str, Any]:
        return {**asdict(self.how), **asdict(self.limits)}

    def run(self, contestants: Sequence[Contestant], progress: Progress) -> Iterator[Record]:
        if self.contradiction:
            for one in contestants:
                yield self.record(one, "unsupported", reason=self.contradiction)
            return
        ledger = Ledger()
        load = environment.load_average()
        peak = self._machine_peak(progress)
        entries: list[Entry] = []
        finished: list[tuple[Entry, dict[str, Any]]] = []
        try:
            for index, contestant in enumerate(contestants):
                progress(0.3 * index / len(contestants), f"{contestant.name}: warm-up")
                started = self._start(contestant, load, ledger)
                if isinstance(started, Record):
                    yield started
                else:
                    entries.append(started)
            yield from self._race(entries, load, ledger, progress)
            for index, entry in enumerate(entries):
                progress(0.8 + 0.2 * index / len(entries), f"{entry.contestant.name}: memory")
                began = time.monotonic()
                try:
                    finished.append((entry, entry.worker.ask("resources")))
                except WorkerFailure as error:
                    yield self.failure(entry.contestant, error, load_before=load)
                entry.worker.close()
                ledger.add("memory", time.monotonic() - began)
        finally:
            for entry in entries:
                entry.worker.close()
        circumstances = {"load_before": load, "machine_peak": peak, "cell_seconds": ledger.closed()}
        for entry, resources in finished:
            yield self._success(entry, resources, circumstances)
        progress(1.0, "")

    def _machine_peak(self, progress: Progress) -> dict[str, float] | None:
        """What the machine can do at most, measured once and kept; None when that failed."""
        where = self.device, self.workload.dtype, self.workload.threads

        def measure() -> dict[str, float]:
            progress(0.0, "measuring the machine's own peak")
            worker = self.start_worker(PeakSubject, *where)
            try:
                return worker.ask("measure")
            finally:
                worker.close()

        try:
            return machine_peak(environment.scratch_folder(), *where, measure)
        except WorkerFailure:
            return None

    def _start(self, contestant: Contestant, load: float | None, ledger: Ledger) -> Entry | Record:
        began = time.monotonic()
        warm_up_s = 0.0
        worker = self.subject(contestant)
        try:
            entry = Entry(contestant, worker, worker.ask("prepare"))
            warm = worker.ask(
                "warm_up", self.how.warm_up_s, self.how.warm_up_max_s, self.how.sample_ms / 1e3
            )
            entry.calls_per_sample = warm["calls_per_sample"]
            warm_up_s = warm["seconds"] + (entry.facts["compile_ms"] or 0.0) / 1e3
            return entry
        except WorkerFailure as error:
            worker.close()
            return self.failure(contestant, error, load_before=load)
        finally:
            ledger.add("warm_up", warm_up_s)
            ledger.add("start", time.monotonic() - began - warm_up_s)

    def _race(
        self, entries: list[Entry], load: float | None, ledger: Ledger, progress: Progress
    ) -> Iterator[Record]:
        """Rounds of one sample each, in rotating order, until all are known or time is up."""
        start = time.monotonic()
        before: Entry | None = None
        for number in range(self.how.max_rounds):
            offset = number % max(1, len(entries))
            for entry in entries[offset:] + entries[:offset]:
                self._rest(before, ledger)
                before = entry
                try:
                    self._sample(entry, ledger)
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

    def _rest(self, before: Entry | None, ledger: Ledger) -> None:
        """Wait until the contestant before has left the cores."""
        began = time.monotonic()
        if before is not None and before.worker.pid is not None:
            contention.await_rest(before.worker.pid, self.how.rest_ms / 1e3)
        ledger.add("idle", time.monotonic() - began)

    def _sample(self, entry: Entry, ledger: Ledger) -> None:
        milliseconds, waited, ahead_s = entry.worker.ask("sample")
        entry.samples.append(milliseconds)
        entry.waits.append(None if waited is None else round(waited, 4))
        ledger.add("timed", milliseconds * entry.calls_per_sample / 1e3)
        ledger.add("warm_up", ahead_s)

    def _success(
        self, entry: Entry, resources: dict[str, Any], circumstances: dict[str, Any]
    ) -> Record:
        interval = entry.interval()
        result = self.result_class(
            samples_ms=entry.samples,
            waits=entry.known_waits(),
            median_ms=interval.value,
            low_ms=interval.low,
            high_ms=interval.high,
            noisy=entry.spread() > self.how.target,
            compile_ms=entry.facts["compile_ms"],
            first_call_ms=entry.facts["first_call_ms"],
            calls_per_sample=entry.calls_per_sample,
            peak_rss_bytes=entry.facts["peak_rss_bytes"],
            parameters=entry.facts["parameters"],
            **resources,
            **entry.facts.get("more", {}),
        )
        return self.record(
            entry.contestant,
            "ok",
            result=asdict(result),
            options=entry.facts["options"],
            threads=entry.facts["threads"],
            **circumstances,
        )
