"""What is left of one trained full model when its attention is replaced by each contestant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from efficient_attn.bench import environment
from efficient_attn.bench.accuracy_cell import AccuracyCell
from efficient_attn.bench.cell import Contestant, Progress
from efficient_attn.bench.record import SCHEMA_VERSION, Measure, Record, digest
from efficient_attn.bench.swap import FullSubject, SwapSubject
from efficient_attn.bench.training import Report, Training
from efficient_attn.bench.training_state import TrainingState
from efficient_attn.bench.worker import WorkerFailure


@dataclass(frozen=True)
class SwapCell(AccuracyCell):
    """finetune_steps: updates after the swap, 0 for none; finetune_rates: each is tried, validation
    picks. All else of the fine-tune is as in the training of the full model.

    The full model is trained once and kept in the user's folder for temporary files, where cells
    that ask for other contestants or another fine-tune find it.
    """

    finetune_steps: int = 0
    finetune_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = self.finetune_steps
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(
                f"measure.finetune_steps={steps!r} must be a whole number of at least 0"
            )
        if not any(one.variant == "full" for one in self.contestants):
            raise ValueError(
                "measure=swap needs full among its contestants, fine-tuned like the others: what "
                "is gained by tuning alone shows there; add it, e.g. attention=[full,performer]"
            )
        _ = self.tuning  # its own values are checked here

    @property
    def measure(self) -> Measure:
        return "swap"

    @cached_property
    def tuning(self) -> Training | None:
        if not self.finetune_steps:
            return None
        try:
            return replace(
                self.training,
                steps=self.finetune_steps,
                learning_rates=tuple(self.finetune_rates),
            )
        except ValueError as error:
            raise ValueError(f"measure.finetune_rates: {error}") from None

    @cached_property
    def request(self) -> dict[str, Any]:
        rates = list(self.finetune_rates) if self.finetune_steps else []
        finetune = {"steps": self.finetune_steps, "learning_rates": rates}
        return {**super().request, "finetune": finetune}

    @property
    def reported(self) -> Training:
        return self.tuning or self.training

    @property
    def label(self) -> str:
        return super().label.replace("accuracy", "swap", 1)

    def run(self, contestants: Sequence[Contestant], progress: Progress) -> Iterator[Record]:
        try:
            self._train_full(progress)
        except WorkerFailure as error:
            reason = f"the full model to replace attention in: {error.reason}"
            for one in contestants:
                yield self.record(one, error.status, reason=reason)
            return
        yield from super().run(contestants, progress)

    def _train_full(self, progress: Progress) -> None:
        if self._weights.exists():
            return

        steps, rates = self.training.steps, len(self.training.learning_rates)
        state = TrainingState("the full model", steps, rates)

        def report(rate: int, step: int, loss: float, validation: float | None) -> None:
            state.hear(rate, step, loss, validation)
            progress(0.0, "", (state,))

        worker = self.start_worker(
            FullSubject, self.task, self.model, self.training, self.seed, self.on, self.threads
        )
        try:
            worker.ask("train", str(self._weights), report=report)
        finally:
            worker.close()

    def _train(self, contestant: Contestant, report: Report) -> Record:
        load = environment.load_average()
        worker = self.start_worker(
            SwapSubject,
            contestant.variant,
            contestant.options,
            self.task,
            self.model,
            self.tuning,
            self.seed,
            self.on,
            self.threads,
            str(self._weights),
        )
        try:
            answer = worker.ask("swap", report=report)
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

    @cached_property
    def _weights(self) -> Path:
        """Where the trained full model is, named by all that decides its weights."""
        machine = environment.machine()
        trained = {name: value for name, value in self.request.items() if name != "finetune"}
        name = digest(
            {
                "schema": SCHEMA_VERSION,
                "request": trained,
                "threads": self.threads,
                "code": environment.code_hash("accuracy", "full"),
                "versions": {name: machine[name] for name in ("python", "torch")},
                "cpu": machine["cpu"],
                "device": environment.device_name(self.on),
            }
        )
        return environment.scratch_folder() / "trained" / f"{name}.pt"
