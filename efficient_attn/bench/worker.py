"""A contestant's own process: started fresh, limited, asked step by step, killed if need be.

Whatever happens in there comes back as a `WorkerFailure` with a status of `record.Status`: the
sweep goes on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

from efficient_attn.bench.environment import available_memory
from efficient_attn.bench.record import Status

Report = Callable[..., None]
Factory = Callable[..., Any]

_OUT_OF_MEMORY_SIGNS = (
    "DefaultCPUAllocator: can't allocate memory",
    "not enough memory: you tried to allocate",
    "out of memory",
    "Cannot allocate memory",
)
_KEPT_OUTPUT = 4000
_SHARE_OF_FREE_MEMORY = 0.8


@dataclass(frozen=True)
class Limits:
    """memory_cap_gb: cap on what the worker may allocate on the CPU, in GiB; None = most of what
    is free. timeout_s: longest wait for one answer."""

    memory_cap_gb: float | None = None
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("memory_cap_gb", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"measure.{name}={value!r}: must be above 0")

    @property
    def memory_bytes(self) -> int | None:
        if self.memory_cap_gb is not None:
            return int(self.memory_cap_gb * 2**30)
        free = available_memory()
        return None if free is None else int(free * _SHARE_OF_FREE_MEMORY)


class WorkerFailure(Exception):  # noqa: N818  (it is an outcome to record, not an error here)
    """A contestant ended; status and reason go into its record."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason


def worker_context(preload: list[str]) -> ForkServerContext:
    """Processes forked from a server that has imported `preload`: fresh within a tenth of a second,
    and with nothing of this process in them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preload)
    return context


class Worker:
    """A process that holds ``factory(*arguments)`` and answers calls of its methods."""

    def __init__(
        self,
        context: ForkServerContext,
        factory: Factory,
        arguments: tuple[Any, ...],
        limits: Limits,
    ) -> None:
        self._limits = limits
        self._output = tempfile.NamedTemporaryFile(prefix="contestant-", suffix=".log")  # noqa: SIM115
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(theirs, factory, arguments, limits.memory_bytes, self._output.name),
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def ask(self, method: str, *arguments: Any, report: Report | None = None) -> Any:
        """Result of ``subject.method(*arguments)``; raises `WorkerFailure` if there is none.

        A method that takes a ``report`` callable may send progress, handed to `report` here;
        progress does not put off the timeout.
        """
        deadline = time.monotonic() + self._limits.timeout_s
        try:
            self._connection.send((method, arguments, report is not None))
            while True:
                if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                    self.close()
                    raise WorkerFailure(
                        "timeout", f"no answer to {method} within {self._limits.timeout_s:g} s"
                    )
                kind, *content = self._connection.recv()
                if kind == "progress":
                    if report is not None:
                        report(*content)
                elif kind == "result":
                    return content[0]
                else:
                    self.close()
                    raise WorkerFailure(*content)
        except (EOFError, OSError):
            self._process.join(timeout=10)
            raise WorkerFailure("crashed", self._cause_of_death()) from None

    def close(self) -> None:
        """End the process and whatever it has started."""
        self._connection.close()
        pid = self._process.pid
        if pid is not None and self._process.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self._process.kill()
        self._process.join(timeout=10)
        self._output.close()

    def _cause_of_death(self) -> str:
        code = self._process.exitcode
        if code is not None and code < 0:
            cause = f"killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                cause += " (the system's out-of-memory killer, or a person)"
        else:
            cause = f"exited with code {code}"
        said = _tail(self._output.name)
        return f"{cause}; last output: {said}" if said else cause


def _serve(
    connection: Connection,
    factory: Factory,
    arguments: tuple[Any, ...],
    memory_bytes: int | None,
    output: str,
) -> None:
    """Main loop of the worker process."""
    _detach(output)
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    subject = None

    def report(*content: Any) -> None:
        connection.send(("progress", *content))

    while True:
        try:
            method, call_arguments, wants_report = connection.recv()
        except EOFError:
            return
        try:
            if subject is None:
                subject = factory(*arguments)
            extra = {"report": report} if wants_report else {}
            answer: tuple[Any, ...] = ("result", getattr(subject, method)(*call_arguments, **extra))
        except Exception as error:
            answer = ("failure", *_classify(error))
        connection.send(answer)


def _detach(output: str) -> None:
    """Own process group, output into a file, and an end with the parent."""
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def _end_with_parent() -> None:
    """Wait, at no cost, until the parent is gone, however it went; then end this whole group."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)


def _classify(error: BaseException) -> tuple[Status, str]:
    """Status and reason of an exception, by what it says rather than where it came from."""
    from efficient_attn.attention import UnsupportedAttention
    from efficient_attn.bench.training import Diverged

    text = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, UnsupportedAttention):
        return "unsupported", str(error)
    if isinstance(error, Diverged):
        return "diverged", str(error)
    ran_out = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if ran_out or any(sign in text for sign in _OUT_OF_MEMORY_SIGNS):
        return "oom", text.splitlines()[0]
    where = traceback.extract_tb(error.__traceback__)[-1]
    return "crashed", f"{text} ({os.path.basename(where.filename)}:{where.lineno})"


def _tail(path: str) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as log:
        log.seek(0, os.SEEK_END)
        log.seek(max(0, log.tell() - _KEPT_OUTPUT))
        return log.read().decode(errors="replace").strip()
    return ""
