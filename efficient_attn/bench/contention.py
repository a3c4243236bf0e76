"""Who else had the cores: time spent waiting for one, and threads that have not come to rest.

A sample taken while its threads waited for a core says nothing about the contestant. And a
contestant whose turn is over must not disturb the next: OpenMP's threads go on spinning for about
ten milliseconds after their work is done, which slows others by up to half.
"""

from __future__ import annotations

import ctypes
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

_SOFT_PAUSE = 1  # omp_pause_soft


def waited_seconds() -> float | None:
    """Seconds that the threads of this process have waited for a core so far, all of them summed.

    From the scheduler's statistics; None where the system keeps none.
    """
    total = 0
    try:
        for thread in Path("/proc/self/task").iterdir():
            try:
                total += int((thread / "schedstat").read_text().split()[1])
            except FileNotFoundError:
                if thread.exists():
                    return None  # no statistics, rather than a thread that has just ended
    except OSError:
        return None
    return total / 1e9


def rest_threads() -> None:
    """Let this process's OpenMP threads end now, where the runtime can; later work starts anew."""
    runtime = _openmp()
    if runtime is not None:
        runtime.omp_pause_resource_all(_SOFT_PAUSE)


def wake_threads() -> None:
    """Start the threads that `rest_threads` ended, with a little parallel work."""
    torch.ones(1 << 17).add_(1)


def await_rest(pid: int, at_most_s: float) -> None:
    """Wait until no thread of a process is running, or for `at_most_s`; that long where the system
    does not tell."""
    deadline = time.monotonic() + at_most_s
    while _running(pid) and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(0.001, left))


def _running(pid: int) -> bool:
    """Whether a thread of the process is running or ready to; True when unknown."""
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            try:
                if (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                    return True
            except (FileNotFoundError, ProcessLookupError):
                continue
    except FileNotFoundError:
        return not Path("/proc/self/task").exists()
    except OSError:
        return True
    return False


@cache
def _openmp() -> Any | None:
    """The OpenMP runtime that is loaded in this process, if it can pause."""
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    for line in mapped:
        path = line.split(maxsplit=5)[-1]
        if any(name in path for name in ("libgomp", "libiomp", "libomp")):
            library = ctypes.CDLL(path)
            return library if hasattr(library, "omp_pause_resource_all") else None
    return None
