"""A cell: one question put to several contestants, and the records that answer it."""

from __future__ import annotations

import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from multiprocessing import forkserver
from typing import Any, Protocol

from efficient_attn.bench import environment
from efficient_attn.bench.record import SCHEMA_VERSION, Measure, Record, Status, digest
from efficient_attn.bench.training_state import TrainingState
from efficient_attn.bench.worker import Limits, Worker, WorkerFailure, worker_context


class Progress(Protocol):
    """Told the share of the cell that is done, in [0, 1], what is going on, and how the trainings
    go on where there are some."""

    def __call__(
        self, share: float, what: str, trainings: Sequence[TrainingState] = (), /
    ) -> None: ...


def start_server() -> None:
    """Let the server that workers are forked from load its modules in the meantime."""
    worker_context(PRELOAD)
    forkserver.ensure_running()


PRELOAD = ["efficient_attn.bench.preload"]


@dataclass(frozen=True)
class Contestant:
    """A variant with its options, under the name it is entered as."""

    name: str
    variant: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Cell(ABC):
    """contestants are measured together, each in a process of its own under `limits`."""

    contestants: tuple[Contestant, ...]
    limits: Limits

    @property
    @abstractmethod
    def measure(self) -> Measure: ...

    @property
    @abstractmethod
    def request(self) -> dict[str, Any]:
        """What is asked, as the record states it."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """How it is measured: kept in the record and part of its key, not of the question."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The question in a few words, for progress lines."""

    @property
    @abstractmethod
    def device(self) -> str: ...

    @abstractmethod
    def run(self, contestants: Sequence[Contestant], progress: Progress) -> Iterator[Record]:
        """Measure some of the contestants; one record each, failures included."""

    def key(self, contestant: Contestant) -> str:
        """Name of the record: what is asked, how, of whom, and by which code and versions."""
        machine = environment.machine()
        return digest(
            {
                "schema": SCHEMA_VERSION,
                "measure": self.measure,
                "request": self.request,
                "settings": self.settings,
                "contestant": contestant.name,
                "variant": contestant.variant,
                "options": contestant.options,
                "code": environment.code_hash(self.measure, contestant.variant),
                "versions": {name: machine[name] for name in ("python", "torch")},
                "cpu": machine["cpu"],
            }
        )

    @cached_property
    def run_id(self) -> str:
        """Identifies this run of the cell: its samples are paired, those of another run are not."""
        return uuid.uuid4().hex[:12]

    def record(
        self,
        contestant: Contestant,
        status: Status,
        *,
        reason: str | None = None,
        result: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        **circumstances: Any,
    ) -> Record:
        return Record(
            key=self.key(contestant),
            measure=self.measure,
            status=status,
            reason=reason,
            contestant=contestant.name,
            variant=contestant.variant,
            options=contestant.options if options is None else options,
            request=self.request,
            cell=self.run_id,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            environment={
                **environment.machine(),
                "device_name": environment.device_name(self.device),
                "settings": self.settings,
                "load_after": environment.load_average(),
                **circumstances,
            },
            result=result or {},
        )

    def failure(self, contestant: Contestant, error: WorkerFailure, **circumstances: Any) -> Record:
        return self.record(contestant, error.status, reason=error.reason, **circumstances)

    def start_worker(self, factory: Callable[..., Any], *arguments: Any) -> Worker:
        """On an accelerator without a cap: its driver reserves more than any cap would let it."""
        on_cpu = self.device == "cpu"
        limits = self.limits if on_cpu else replace(self.limits, memory_cap_gb=math.inf)
        return Worker(worker_context(PRELOAD), factory, arguments, limits)
