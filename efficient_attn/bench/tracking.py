"""Curves of trainings as TensorBoard or MLflow keep them, a run for each learning rate.

Written by the process that hears the trainings' reports: a training that is killed leaves its
curve so far.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from efficient_attn.bench.record import Record

_OPENING = threading.Lock()  # MLflow makes its tables when it is opened for the first time


@dataclass(frozen=True)
class Tracking:
    """kind: ``tensorboard`` (event files in <folder>/tensorboard) or ``mlflow`` (a database,
    <folder>/mlflow.db). ValueError for another kind, and where its package is not installed.
    """

    kind: str
    folder: Path

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            allowed = ", ".join(["null", *_KINDS])
            raise ValueError(f"measure.log={self.kind!r} is not one of {allowed}")
        if find_spec(self.kind) is None:
            raise ValueError(
                f"measure.log={self.kind} needs a package that is not installed: "
                f"pip install 'efficient-attn[{self.kind}]', or measure.log=null"
            )

    def of(self, name: tuple[str, ...], facts: dict[str, Any], rates: tuple[float, ...]) -> Tracked:
        """For one training. name: what its runs are called, from general to special."""
        opened = _KINDS[self.kind]

        def begin(number: int) -> Run:
            rate = rates[number]
            with _OPENING:
                return opened(
                    self.folder, (*name, f"rate {rate:g}"), {**facts, "learning_rate": rate}
                )

        return Tracked(begin, rates)


class Run(ABC):
    """One training at one learning rate, in the library's own form."""

    @abstractmethod
    def __init__(self, folder: Path, name: tuple[str, ...], facts: dict[str, Any]) -> None: ...

    @abstractmethod
    def number(self, name: str, value: float, step: int) -> None: ...

    @abstractmethod
    def close(self, status: str) -> None:
        """status: of the record."""


class TensorBoardRun(Run):
    def __init__(self, folder: Path, name: tuple[str, ...], facts: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        parts = [re.sub(r"[^\w.=,()-]+", "_", part) for part in name]
        self._writer = SummaryWriter(str(folder.joinpath("tensorboard", *parts)))
        lines = [f"{key}: {value}" for key, value in facts.items()]
        self._writer.add_text("training", "  \n".join(lines))

    def number(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()


class MLflowRun(Run):
    def __init__(self, folder: Path, name: tuple[str, ...], facts: dict[str, Any]) -> None:
        from mlflow import MlflowClient

        folder.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
        known = self._client.get_experiment_by_name(name[0])
        experiment = known.experiment_id if known else self._client.create_experiment(name[0])
        self._run = self._client.create_run(experiment, run_name=", ".join(name[1:])).info.run_id
        for key, value in facts.items():
            self._client.log_param(self._run, key, value)

    def number(self, name: str, value: float, step: int) -> None:
        self._client.log_metric(self._run, name, value, step=step)

    def close(self, status: str) -> None:
        self._client.set_tag(self._run, "status", status)
        self._client.set_terminated(self._run, "FINISHED" if status == "ok" else "FAILED")


_KINDS: dict[str, type[Run]] = {"tensorboard": TensorBoardRun, "mlflow": MLflowRun}


class Tracked:
    """The runs of one training, opened as its reports come in."""

    def __init__(self, begin: Callable[[int], Run], rates: tuple[float, ...]) -> None:
        self._begin, self._rates = begin, rates
        self._runs: dict[int, Run] = {}

    def hear(self, rate: int, step: int, loss: float, validation: float | None) -> None:
        """Take in a report of `training.Report`."""
        if rate not in self._runs:
            self._runs[rate] = self._begin(rate)
        self._runs[rate].number("loss", loss, step)
        if validation is not None:
            self._runs[rate].number("validation", validation, step)

    def close(self, record: Record) -> None:
        """The test metric goes to the run that validation picked, each run's status to itself."""
        result = record.result
        statuses = [trial["status"] for trial in result.get("trials", ())]
        for number, run in self._runs.items():
            if record.ok and self._rates[number] == result["learning_rate"]:
                run.number("test", result["value"], result["steps"])
            run.close(statuses[number] if record.ok else record.status)
