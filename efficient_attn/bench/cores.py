"""Who may use which cores: claims that hold for every process of this user on this machine.

A claim is a lock on a small file, which the system lets go of when the process dies. A timed cell
holds its cores alone; trainings share theirs with other trainings, never with a timed cell.
Hardware threads of one core count as one core. Where the system has no such locks or no affinity,
a claim does nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from efficient_attn.bench.environment import scratch_folder

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]

_POLL_S = 0.05
_TURN = "turn"


def _ignore() -> None:
    pass


@contextmanager
def claim_cores(
    count: int | None,
    exclusive: bool = True,
    device: str = "cpu",
    waiting: Callable[[], None] = _ignore,
) -> Iterator[frozenset[int]]:
    """Hold `count` cores of those this process may use, and run on them alone; yields their CPUs.

    count: None, or more than there are, claims all. exclusive: nobody else holds them meanwhile;
    otherwise others may share them, but none that wants them exclusively. device: an accelerator
    is claimed in the same way. waiting: called once when others have to be waited for. Processes
    started meanwhile inherit the cores; the calling thread gets its own back in the end.
    """
    if fcntl is None or not hasattr(os, "sched_setaffinity"):
        yield frozenset()
        return
    usable = os.sched_getaffinity(0)
    with ExitStack() as held:
        with _lock(_TURN, exclusive=True, waiting=waiting):  # whoever came first is served first
            cores = _cores(usable)
            claimed = _claim_any(cores, count, exclusive, held, waiting)
            if device != "cpu":
                held.enter_context(_lock(_device_name(device), exclusive, waiting))
        cpus = frozenset[int]().union(*(cores[core] for core in claimed))
        os.sched_setaffinity(0, cpus)
        try:
            yield cpus
        finally:
            os.sched_setaffinity(0, usable)


@contextmanager
def claim_cell(name: str, waiting: Callable[[], None] = _ignore) -> Iterator[None]:
    """Hold a cell, so that two sweeps on this machine do not measure it at the same time."""
    if fcntl is None:
        yield
        return
    path = _folder() / f"cell-{name}"
    with _lock(path.name, exclusive=True, waiting=waiting):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _claim_any(
    cores: Collection[int],
    count: int | None,
    exclusive: bool,
    held: ExitStack,
    waiting: Callable[[], None],
) -> list[int]:
    """Lock `count` of the cores, as they become free; `held` lets go of them."""
    wanted = len(cores) if count is None else min(count, len(cores))
    claimed: list[int] = []
    tell = _once(waiting)
    while True:
        for core in [core for core in cores if core not in claimed]:
            lock = _try_lock(f"core-{core}", exclusive)
            if lock is not None:
                held.callback(os.close, lock)
                claimed.append(core)
            if len(claimed) == wanted:
                return claimed
        tell()
        time.sleep(_POLL_S)


@contextmanager
def _lock(name: str, exclusive: bool, waiting: Callable[[], None]) -> Iterator[None]:
    tell = _once(waiting)
    while (lock := _try_lock(name, exclusive)) is None:
        tell()
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        os.close(lock)


def _try_lock(name: str, exclusive: bool) -> int | None:
    """Descriptor of a locked file, None when others hold it."""
    path = _folder() / name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        if _still_named(descriptor, path):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _still_named(descriptor: int, path: Path) -> bool:
    """Whether the locked file still has this name: its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _folder() -> Path:
    folder = scratch_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _cores(cpus: set[int]) -> dict[int, frozenset[int]]:
    """These CPUs by the core they are hardware threads of, which goes by its first."""
    return {min(_siblings(cpu)): _siblings(cpu) & frozenset(cpus) for cpu in sorted(cpus)}


def _siblings(cpu: int) -> frozenset[int]:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        text = path.read_text().strip()
        ranges = [part.partition("-") for part in text.split(",")]
        found = {one for low, _, high in ranges for one in range(int(low), int(high or low) + 1)}
    except (OSError, ValueError):
        found = set()
    return frozenset(found | {cpu})


def _device_name(device: str) -> str:
    """One name for an accelerator, however a process numbers those it may see."""
    kind, _, index = device.partition(":")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if kind == "cuda" else []
    number = int(index or 0)
    if number < len(visible) and visible[number]:
        return f"device-{kind}-{visible[number]}"
    return f"device-{kind}-{number}"


def _once(call: Callable[[], None]) -> Callable[[], None]:
    called = False

    def once() -> None:
        nonlocal called
        if not called:
            called = True
            call()

    return once
