"""How far several contestants are from full attention on the same random q, k and v."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from efficient_attn.bench import environment
from efficient_attn.bench.cell import Cell, Contestant, Progress
from efficient_attn.bench.fidelity import FidelitySubject
from efficient_attn.bench.record import Measure, Record
from efficient_attn.bench.worker import WorkerFailure
from efficient_attn.bench.workload import Workload

_BESIDE = {"pass": "forward", "scope": "core", "compile": False}
"""Fields of a workload that mean nothing here, with the only value they may have."""


@dataclass(frozen=True)
class FidelityCell(Cell):
    """scale: standard deviation of q, k and v. draws: how many of them are compared."""

    workload: Workload
    scale: float
    draws: int

    def __post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise ValueError(f"measure.scale={self.scale!r} must be a number above 0")
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 1:
            raise ValueError(f"measure.draws={self.draws!r} must be a whole number of at least 1")
        asked = self.workload.to_dict()
        for name, value in _BESIDE.items():
            if asked[name] != value:
                raise ValueError(
                    f"workload.{name}={asked[name]} has no fidelity of its own: what is compared "
                    f"is the output of attention; leave workload.{name}={str(value).lower()}"
                )

    @property
    def measure(self) -> Measure:
        return "fidelity"

    @cached_property
    def request(self) -> dict[str, Any]:
        workload = {
            name: value
            for name, value in self.workload.to_dict().items()
            if name not in _BESIDE and name != "threads"
        }
        return {**workload, "scale": self.scale, "draws": self.draws}

    @cached_property
    def settings(self) -> dict[str, Any]:
        return {"threads": self.workload.threads, **asdict(self.limits)}

    @property
    def label(self) -> str:
        w = self.workload
        return f"fidelity  {w.pattern}  N={w.length}  std {self.scale:g}"

    @property
    def device(self) -> str:
        return self.workload.device

    def run(self, contestants: Sequence[Contestant], progress: Progress) -> Iterator[Record]:
        for place, contestant in enumerate(contestants):

            def report(
                draw: int, draws: int, place: int = place, name: str = contestant.name
            ) -> None:
                progress((place + draw / draws) / len(contestants), f"{name}: draw {draw}/{draws}")

            if self.workload.contradiction:
                yield self.record(contestant, "unsupported", reason=self.workload.contradiction)
            else:
                yield self._compare(contestant, report)
        progress(1.0, "")

    def _compare(self, contestant: Contestant, report: Any) -> Record:
        load = environment.load_average()
        worker = self.start_worker(
            FidelitySubject,
            contestant.variant,
            contestant.options,
            self.workload,
            self.scale,
            self.draws,
        )
        try:
            answer = worker.ask("compare", report=report)
        except WorkerFailure as error:
            return self.failure(contestant, error, load_before=load)
        finally:
            worker.close()
        return self.record(
            contestant,
            "ok",
            result=answer["result"],
            options=answer["options"],
            threads=answer["threads"],
            load_before=load,
        )
