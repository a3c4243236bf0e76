"""What several contestants reach on one task, one seed: the same model trained with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from efficient_attn.bench import environment
from efficient_attn.bench.cell import Cell, Contestant, Progress
from efficient_attn.bench.record import Measure, Record, digest
from efficient_attn.bench.tracking import Tracked, Tracking
from efficient_attn.bench.training import Training
from efficient_attn.bench.training_state import TrainingState
from efficient_attn.bench.trial import TrialSubject
from efficient_attn.bench.worker import Report, WorkerFailure
from efficient_attn.tasks import ModelConfig, Task
from efficient_attn.tasks.task import require_count


@dataclass(frozen=True)
class AccuracyCell(Cell):
    """threads: CPU threads of each training. workers: trainings at a time, None = as many as have
    cores of their own; one at a time on an accelerator. validate_every: as of `training.fit`.
    tracking: where curves are logged to besides; it is no part of what is asked."""

    task: Task
    model: ModelConfig
    training: Training
    seed: int
    on: str
    threads: int
    workers: int | None
    validate_every: int | None = None
    tracking: Tracking | None = None

    def __post_init__(self) -> None:
        if self.validate_every is not None:
            require_count("measure.validate_every", self.validate_every)

    @property
    def measure(self) -> Measure:
        return "accuracy"

    @cached_property
    def request(self) -> dict[str, Any]:
        return {
            "task": {
                **self.task.to_dict(),
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
        return {
            "threads": self.threads,
            "workers": self.at_once,
            "validate_every": self.validate_every,
            **asdict(self.limits),
        }

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
        steps, rates = self.training.steps, len(self.training.learning_rates)
        states = [TrainingState(one.name, steps, rates) for one in contestants]

        def tell() -> None:
            share = sum(state.share for state in states) / len(states)
            progress(share, "", tuple(states))

        def train(contestant: Contestant, state: TrainingState) -> Record:
            tracked = self._tracked(contestant)

            def report(rate: int, step: int, loss: float, validation: float | None) -> None:
                state.hear(rate, step, loss, validation)
                if tracked is not None:
                    tracked.hear(rate, step, loss, validation)
                tell()

            record = self._train(contestant, report)
            state.ended = True
            tell()
            if tracked is not None:
                tracked.close(record)
            return record

        progress(0.0, "starting")
        with ThreadPoolExecutor(self.at_once) as pool:
            trainings = [
                pool.submit(train, *each) for each in zip(contestants, states, strict=True)
            ]
            try:
                for training in as_completed(trainings):
                    yield training.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        progress(1.0, "")

    def _tracked(self, contestant: Contestant) -> Tracked | None:
        if self.tracking is None:
            return None
        request = {name: value for name, value in self.request.items() if name != "seed"}
        setting = f"{self.task.name} N={self.task.length} {digest(request)[:6]}"
        facts = {
            "variant": contestant.variant,
            **contestant.options,
            **{
                f"{group}.{name}": value
                for group in ("task", "model", "training")
                for name, value in request[group].items()
            },
            "seed": self.seed,
        }
        name = (setting, contestant.name, f"seed {self.seed}")
        return self.tracking.of(name, facts, self.training.learning_rates)

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
            self.validate_every,
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
