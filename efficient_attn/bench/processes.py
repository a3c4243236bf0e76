"""What the system tells about processes, and two things it does for them; Linux tells the most."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)
_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 10.0


def adopt_orphans() -> None:
    """Make every orphan among this process's descendants its child: none can leave the tree."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the system kill this process when its parent is gone."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on, zombies included; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def end_descendants() -> None:
    """Kill all descendants of this process, wherever they have gone, and wait for their end."""
    deadline = time.monotonic() + _PATIENCE_S
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            kill(pid)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)


def writers(pipe: int) -> list[int]:
    """Other processes that can write into the pipe of this descriptor."""
    name = f"pipe:[{os.fstat(pipe).st_ino}]"
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == name and link.lstat().st_mode & 0o200:
                found.add(int(link.parts[2]))
    return sorted(found - {os.getpid()})


def kill(pid: int) -> None:
    """SIGKILL, where the process still is and is ours to kill."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def out_of_memory_kills() -> int | None:
    """Processes that the system has killed for want of memory; None where it does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
