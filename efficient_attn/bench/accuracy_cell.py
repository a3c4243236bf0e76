"""What several contestants reach on one task, one seed: the same model trained with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from efficient_attn.bench import environment
from efficient_attn.bench.cell import Cell, Contestant, Progress
from efficient_attn.bench.record import Measure, Record
from efficient_attn.bench.training import Training
from efficient_attn.bench.trial import TrialSubject
from efficient_attn.bench.worker import Report, WorkerFailure
from efficient_attn.tasks import ModelConfig, Task


@dataclass(frozen=True)
class AccuracyCell(Cell):
    """threads: CPU threads of each training. workers: trainings at a time, None = as many as have
    cores of their own; one at a time on an accelerator."""

    task: Task
    model: ModelConfig
    training: Training
    seed: int
    on: str
    threads: int
    workers: int | None

    @property
    def measure(self) -> Measure:
        return "accuracy"

    @cached_property
    def request(self) -> dict[str, Any]:
        return {
            "task": {
                **self.task.to_dict(),
                "length": self.task.length,
                "pattern": self.task.pattern,
                "capability": self.task.capability,
                "provenance": self.task.provenance(),
            },
            "model": asdict(self.model),
            "training": asdict(self.training),
            "seed": self.seed,
            "device": self.on,
        }

    @cached_property
    def settings(self) -> dict[str, Any]:
        return {"threads": self.threads, "workers": self.at_once, **asdict(self.limits)}

    @cached_property
    def at_once(self) -> int:
        """Trainings that run side by side."""
        if self.workers is not None:
            return self.workers
        if self.on != "cpu":
            return 1
        return max(1, environment.machine()["cores"] // self.threads)

    @property
    def label(self) -> str:
        return f"accuracy  {self.task.name}  N={self.task.length}  seed {self.seed}"

    @property
    def device(self) -> str:
        return self.on

    def run(self, contestants: Sequence[Contestant], progress: Progress) -> Iterator[Record]:
        """Train up to `workers` contestants at a time, each on `threads` cores of its own."""
        shares = [0.0] * len(contestants)

        def train(place: int, contestant: Contestant) -> Record:
            def report(step: int, steps: int, loss: float) -> None:
                shares[place] = step / steps
                share = sum(shares) / len(shares)
                progress(share, f"{contestant.name}: step {step}/{steps}, loss {loss:.3f}")

            return self._train(contestant, report)

        progress(0.0, "starting")
        with ThreadPoolExecutor(self.at_once) as pool:
            trainings = [pool.submit(train, *item) for item in enumerate(contestants)]
            try:
                for training in as_completed(trainings):
                    yield training.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        progress(1.0, "")

    def _train(self, contestant: Contestant, report: Report) -> Record:
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
