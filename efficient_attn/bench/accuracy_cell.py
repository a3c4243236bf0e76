"""What several contestants reach on one task, one seed: the same model trained with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from efficient_attn.bench import environment
from efficient_attn.bench.cell import Cell, Contestant, Progress
from efficient_attn.bench.record import Measure, Record
from efficient_attn.bench.training import Training
from efficient_attn.bench.trial import TrialSubject
from efficient_attn.bench.worker import WorkerFailure
from efficient_attn.tasks import ModelConfig, Task


@dataclass(frozen=True)
class AccuracyCell(Cell):
    """threads: intra-operation CPU threads; None means every core."""

    task: Task
    model: ModelConfig
    training: Training
    seed: int
    on: str
    threads: int | None

    @property
    def measure(self) -> Measure:
        return "accuracy"

    @cached_property
    def request(self) -> dict[str, Any]:
        return {
            "task": {
                **self.task.to_dict(),
                "pattern": self.task.pattern,
                "provenance": self.task.provenance(),
            },
            "model": asdict(self.model),
            "training": asdict(self.training),
            "seed": self.seed,
            "device": self.on,
        }

    @cached_property
    def settings(self) -> dict[str, Any]:
        return {"threads": self.threads, **asdict(self.limits)}

    @property
    def label(self) -> str:
        return f"accuracy  {self.task.name}  N={self.task.length}  seed {self.seed}"

    @property
    def device(self) -> str:
        return self.on

    def run(self, contestants: Sequence[Contestant], progress: Progress) -> Iterator[Record]:
        for index, contestant in enumerate(contestants):

            def report(
                step: int, steps: int, loss: float, at: int = index, name: str = contestant.name
            ) -> None:
                share = (at + step / steps) / len(contestants)
                progress(share, f"{name}: step {step}/{steps}, loss {loss:.3f}")

            progress(index / len(contestants), f"{contestant.name}: starting")
            yield self._train(contestant, report)
        progress(1.0, "")

    def _train(self, contestant: Contestant, report: Any) -> Record:
        load = environment.load_average()
        worker = self.start_worker(
            TrialSubject,
            contestant.variant,
            contestant.options,
            self.task,
            self.model,
            self.training,
            self.seed,
            self.on,
            self.threads,
        )
        try:
            answer = worker.ask("train", report=report)
        except WorkerFailure as error:
            return self.failure(contestant, error, load_before=load)
        finally:
            worker.close()
        return self.record(
            contestant,
            "ok",
            result=answer["result"],
            threads=answer["threads"],
            load_before=load,
        )
