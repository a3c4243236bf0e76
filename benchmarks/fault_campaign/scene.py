"""Where the campaign happens: a folder of its own, and a mark on every process that it starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path

from efficient_attn.bench import environment
from efficient_attn.bench.store import Store

BENCHMARKS = Path(__file__).resolve().parents[1]
PATIENCE_S = 15.0

QUICK = (
    "measure.min_rounds=6",
    "measure.max_rounds=6",
    "measure.warm_up_s=0.0",
    "measure.warm_up_max_s=0.01",
    "measure.sample_ms=0.01",
    "measure.rest_ms=0.0",
    "measure.target=0.9",
    "measure.memory_cap_gb=1",
    "workload.threads=1",
    "workload.heads=2",
    "workload.head_dim=8",
)


@dataclass(frozen=True)
class Scene:
    """folder: for results. temporary: what TMPDIR is to all processes. mark: a variable in the
    environment of all processes, inherited by whatever they start."""

    folder: Path
    temporary: Path
    mark: str

    def marked(self) -> set[int]:
        """Living processes of the campaign, this one left out."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in path.read_bytes() and _lives(path.parent):
                    found.add(int(path.parent.name))
        return found - {os.getpid()}

    def left_over(self) -> set[int]:
        """Processes that are still there after some seconds, but for those that serve this one."""
        wait_until(lambda: not self.marked() - servants())
        return self.marked() - servants()

    def temporary_files(self) -> list[Path]:
        """Files for temporary use that are left; what a machine's sweeps share there is not."""
        shared = environment.scratch_folder()
        return [
            path
            for path in self.temporary.rglob("*")
            if path.is_file() and not path.is_relative_to(shared)
        ]

    def sweep_command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "efficient_attn.cli", "sweep", *QUICK, *arguments]

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def results(self, name: str) -> Store:
        """The store of a results folder, empty to begin with."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        return Store(folder)


@contextmanager
def scene() -> Iterator[Scene]:
    """A scene, for as long as the campaign lasts; the environment of this process is set for it."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        mark = f"EFFICIENT_ATTN_CAMPAIGN={Path(name).name}"
        made = Scene(Path(name, "results"), Path(name, "tmp"), mark)
        made.temporary.mkdir()
        variable, _, value = mark.partition("=")
        path = os.pathsep.join([str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])])
        util.get_temp_dir()  # of multiprocessing here: it removes that itself, after all this
        os.environ.update({variable: value, "TMPDIR": str(made.temporary), "PYTHONPATH": path})
        tempfile.tempdir = str(made.temporary)
        yield made


def servants() -> set[int | None]:
    """The server that this process's workers are forked from, and what goes with it."""
    return {
        forkserver._forkserver._forkserver_pid,  # type: ignore[attr-defined]
        resource_tracker._resource_tracker._pid,  # type: ignore[attr-defined]
    }


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _lives(process: Path) -> bool:
    return "State:\tZ" not in (process / "status").read_text()
