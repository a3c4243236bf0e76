"""Hydra's launchers: what each needs so that one dead job does not take the others with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

_BASIC = "hydra._internal.core_plugins.basic_launcher"
_SUBMITIT = "hydra_plugins.hydra_submitit_launcher"
_RAY = "hydra_plugins.hydra_ray_launcher"
_AT_ONCE = 2


class JobLost(Exception):  # noqa: N818  (an outcome to report)
    """A job's process ended without an answer."""


@dataclass(frozen=True)
class Launcher:
    """target: its class. batch_size: jobs that start together, None for all."""

    target: str
    batch_size: int | None

    @classmethod
    def of(cls, config: DictConfig) -> Launcher:
        """The launcher that a composed configuration names."""
        return cls(config.hydra.launcher._target_, config.hydra.sweeper.get("max_batch_size"))

    @property
    def elsewhere(self) -> bool:
        """Whether jobs run in other processes."""
        return not self.target.startswith(_BASIC)

    @property
    def overrides(self) -> list[str]:
        """submitit starts all local jobs at once, each of them a process with torch in it."""
        if self.target.startswith(_SUBMITIT) and self.target.endswith("LocalLauncher"):
            return [f"hydra.sweeper.max_batch_size={self.batch_size or _AT_ONCE}"]
        return []

    @contextmanager
    def attended(self) -> Iterator[None]:
        """While it runs: dead jobs become answers, and in the end nothing is left running."""
        if self.target.startswith(_SUBMITIT):
            with _every_submitit_job_answers():
                yield
        elif self.target.startswith(_RAY):
            with _own_ray():
                yield
        else:
            yield


@contextmanager
def _every_submitit_job_answers() -> Iterator[None]:
    """The plugin waits for its jobs in turn and stops at the first dead one, as if the others did
    not matter. Here each is waited for, and cancelled if this process is interrupted."""
    submitit: Any = import_module("submitit")
    original = submitit.AutoExecutor.map_array

    def map_array(executor: Any, *arguments: Any) -> list[_SubmititJob]:
        jobs = original(executor, *arguments)
        return [_SubmititJob(job, jobs) for job in jobs]

    submitit.AutoExecutor.map_array = map_array
    try:
        yield
    finally:
        submitit.AutoExecutor.map_array = original


@dataclass(frozen=True)
class _SubmititJob:
    job: Any
    others: Sequence[Any]

    def results(self) -> list[JobReturn]:
        submitit: Any = import_module("submitit")
        try:
            return self.job.results()
        except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError):
            lost = JobReturn(status=JobStatus.COMPLETED)
            lost.return_value = JobLost(
                f"job {self.job.job_id} died ({self.job.state.lower()}); "
                f"its log: {self.job.paths.stderr}"
            )
            return [lost]
        except KeyboardInterrupt:
            for one in self.others:
                one.cancel()
            raise


@contextmanager
def _own_ray() -> Iterator[None]:
    """Leave a Ray that this process started, and what still runs there."""
    ray: Any = import_module("ray")
    before = ray.is_initialized()
    try:
        yield
    finally:
        if not before:
            ray.shutdown()
