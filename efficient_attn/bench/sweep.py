"""The sweep: the cells of a plan, measured through Hydra's launchers, here or elsewhere."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from efficient_attn.bench import environment
from efficient_attn.bench.cell import Cell, Contestant
from efficient_attn.bench.cores import claim_cell, claim_cores
from efficient_attn.bench.launchers import JobLost, Launcher
from efficient_attn.bench.plan import (
    CONFIG_MODULE,
    CONFIG_NAME,
    Plan,
    PlanStore,
    SweepError,
    make_plan,
)
from efficient_attn.bench.progress import Mute, SweepProgress, watching
from efficient_attn.bench.race import RaceCell
from efficient_attn.bench.record import Record, digest
from efficient_attn.bench.store import Store
from efficient_attn.bench.training_state import TrainingState

__all__ = ["Plan", "SweepError", "launch", "make_plan", "measure_cell", "missing_contestants"]

_THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def measure_cell(cell: Cell, store: Store, progress: SweepProgress) -> None:
    """Measure the contestants of a cell whose records are missing, and store each at once.

    Waits until nothing else is timed on the cores it needs; another sweep may have measured the
    cell by then. Raises OSError when a record cannot be stored.
    """
    missing = missing_contestants(cell, store)
    if not missing:
        return

    def wait() -> None:
        progress.waiting(cell.label, "waiting for another measurement on these cores")

    name = digest([str(store.folder.absolute()), *(cell.key(one) for one in cell.contestants)])
    timed = cell if isinstance(cell, RaceCell) else None
    threads = None if timed is None else timed.workload.threads
    with (
        claim_cell(name, wait),
        claim_cores(threads, exclusive=timed is not None, device=cell.device, waiting=wait),
    ):
        missing = missing_contestants(cell, store)
        if missing:
            _measure(cell, missing, store, progress)


def _measure(
    cell: Cell, missing: Sequence[Contestant], store: Store, progress: SweepProgress
) -> None:
    start = time.monotonic()
    records: list[Record] = []

    def tell(share: float, what: str, trainings: Sequence[TrainingState] = ()) -> None:
        progress.during(cell.label, share, len(missing), what, trainings)

    for record in cell.run(missing, tell):
        store.write(record)
        records.append(record)
        progress.stored(cell.label, record)
    progress.finished(cell.label, records, time.monotonic() - start)


def missing_contestants(cell: Cell, store: Store) -> list[Contestant]:
    """The contestants of a cell that have no record yet."""
    return [one for one in cell.contestants if not store.has(cell.key(one))]


@dataclass(frozen=True)
class _Here:
    """What a process is to have in common with the one that planned.

    code: what answers, by measure and variant. threads: thread settings, which launchers change in
    their processes, and so what is measured. path: where modules are found.
    """

    code: dict[tuple[str, str], str]
    versions: list[str | None]
    threads: dict[str, str | None]
    path: list[str]

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> _Here:
        asked = {(cell.measure, one.variant) for cell in cells for one in cell.contestants}
        return cls(
            {pair: environment.code_hash(*pair) for pair in asked},
            [environment.machine()[name] for name in ("python", "torch")],
            {name: os.environ.get(name) for name in _THREAD_SETTINGS},
            list(sys.path),
        )


@dataclass
class _Job:
    """Hydra's task: measures the cell of the number `config.cell`, in whatever process.

    Returns the error that ended it, None when all is stored.
    """

    cells: Sequence[Cell]
    keys: Sequence[Sequence[str]]
    store: PlanStore
    progress: SweepProgress
    planned: _Here
    stopped: bool = False

    def __call__(self, config: DictConfig) -> Exception | None:
        if self.stopped:
            return None
        cell = self.cells[config.cell]
        self._settle()
        try:
            self._measure(cell, self.keys[config.cell])
        except OSError as error:
            self.stopped = True  # nothing more can be stored
            return error
        except Exception as error:
            return JobLost(f"{cell.label}: {type(error).__name__}: {error}")
        return None

    def _measure(self, cell: Cell, planned: Sequence[str]) -> None:
        """Measure under the keys of this machine, which answer the planned ones."""
        here = _Here.of([cell])
        if here.versions != self.planned.versions or not here.code.items() <= (
            self.planned.code.items()
        ):
            raise RuntimeError(
                "the code, Python or torch of this process is not that of the process that "
                "planned; sweep again once they are the same everywhere"
            )
        keys = [cell.key(one) for one in cell.contestants]
        outdated = self.store.outdated
        again = {
            key: outdated[asked]
            for key, asked in zip(keys, planned, strict=True)
            if asked in outdated
        }
        measure_cell(cell, PlanStore(self.store.folder, again), self.progress)
        for key, asked in zip(keys, planned, strict=True):
            if key != asked:
                self.store.answered_by(asked, key)

    def _settle(self) -> None:
        for name, value in self.planned.threads.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if multiprocessing.get_start_method(allow_none=True) == "loky":  # unknown to a child
            multiprocessing.set_start_method(None, force=True)
        sys.path.extend(place for place in self.planned.path if place not in sys.path)


def launch(plan: Plan, progress: SweepProgress) -> list[str]:
    """Hand the incomplete cells to Hydra, whose launcher may run them here or elsewhere.

    Returns what became of jobs that did not end well, a sentence each: what they did not measure
    has no record. Raises OSError when records cannot be stored, `SweepError` when the launcher
    does not start.
    """
    store = plan.store
    store.require_writable()
    incomplete = [
        number for number, cell in enumerate(plan.cells) if missing_contestants(cell, store)
    ]
    if not incomplete:
        return []
    answers: list[Any] = []
    with _hydra() as hydra:
        launcher = Launcher.of(
            hydra.compose_config(
                CONFIG_NAME, plan.job, run_mode=RunMode.MULTIRUN, with_log_configuration=False
            )
        )
        job = _Job(
            plan.cells,
            [[cell.key(one) for one in cell.contestants] for cell in plan.cells],
            store,
            Mute() if launcher.elsewhere else progress,
            _Here.of(plan.cells),
        )
        overrides = [
            *plan.job,
            f"results={_quoted(store.folder)}",
            "hydra.sweeper.params=null",
            f"+cell={','.join(map(str, incomplete))}",
            *launcher.overrides,
        ]
        watch = watching(plan.cells, store, progress) if launcher.elsewhere else nullcontext()
        with launcher.attended(), watch:
            try:
                batches = hydra.multirun(CONFIG_NAME, job, overrides)
                answers += [job.return_value for batch in batches for job in batch]
            except (HydraException, OmegaConfBaseException) as error:
                raise SweepError(str(error)) from error
            except OSError:
                raise
            except Exception as error:  # the launcher's own, of which each has others
                answers.append(JobLost(f"{type(error).__name__}: {_first_line(error)}"))
    for answer in answers:
        if isinstance(answer, OSError):
            raise answer
    return [str(answer) for answer in answers if answer is not None]


@contextmanager
def _hydra() -> Iterator[Hydra]:
    version.setbase("1.3")
    search_path = create_config_search_path(f"pkg://{CONFIG_MODULE}")
    try:
        yield Hydra.create_main_hydra2("efficient-attn", search_path)
    finally:
        GlobalHydra.instance().clear()


def _quoted(folder: Path) -> str:
    """A path as Hydra's overrides take it, with blanks, commas and quotes."""
    return "'" + str(folder).replace("'", "\\'") + "'"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0]
