"""A contestant's own process: started fresh, limited, asked step by step, killed if need be.

Whatever happens in there comes back as a `WorkerFailure` with a status of `record.Status`: the
sweep goes on.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

from efficient_attn.bench.channel import BadMessage, Channel
from efficient_attn.bench.environment import available_memory
from efficient_attn.bench.processes import kill, out_of_memory_kills, writers
from efficient_attn.bench.record import Status
from efficient_attn.bench.serve import Job, shows_lack_of_memory
from efficient_attn.bench.supervisor import supervise

Report = Callable[..., None]
Factory = Callable[..., Any]

_KEPT_OUTPUT = 4000
_SHARE_OF_FREE_MEMORY = 0.8
_LAST_BREATH_S = 5.0  # from the end of a connection to the end of its process
_LONGEST_FOLDER = 64  # bytes; a socket's path has 104 to 108, of which multiprocessing adds 33


@dataclass(frozen=True)
class Limits:
    """memory_cap_gb: cap on what the worker may allocate on the CPU, in GiB; None = most of what
    is free, infinity = none. timeout_s: longest wait for one answer."""

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
            return None if math.isinf(self.memory_cap_gb) else int(self.memory_cap_gb * 2**30)
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
    _keep_socket_paths_short()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preload)
    return context


def _keep_socket_paths_short() -> None:
    """Have multiprocessing's folder, made once in a process, in /tmp where the temporary folder
    is too deep for the path of a socket."""
    chosen = tempfile.gettempdir()
    if len(os.fsencode(chosen)) > _LONGEST_FOLDER:
        tempfile.tempdir = "/tmp"
        try:
            util.get_temp_dir()
        except OSError as error:
            raise RuntimeError(
                f"the temporary folder {chosen} is too deep for sockets between processes, and "
                f"/tmp cannot be used instead ({error}); set TMPDIR to a shorter path"
            ) from error
        finally:
            tempfile.tempdir = chosen


class Worker:
    """A process that holds ``factory(*arguments)`` and answers calls of its methods.

    It runs on the cores that this thread may use. A supervisor of its own ends it, and all that it
    started, when it is closed and when this process dies.

    pid: of the contestant's process; None until it has answered for the first time.
    """

    pid: int | None = None

    def __init__(
        self,
        context: ForkServerContext,
        factory: Factory,
        arguments: tuple[Any, ...],
        limits: Limits,
    ) -> None:
        self._limits = limits
        self._failure: WorkerFailure | None = None
        self._killed_before = out_of_memory_kills()
        self._output = _Output(context)
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        stop, self._stop = context.Pipe(duplex=False)
        cores = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        job = Job(pickle.dumps((factory, arguments)), limits.memory_bytes, cores)
        self._process = context.Process(
            target=supervise, args=(stop, theirs, self._output.writer, job), daemon=True
        )
        try:
            _start(self._process)
        except (OSError, EOFError) as error:
            self._failure = WorkerFailure("crashed", f"no process could be started: {error!r}")
        finally:
            for end in (stop, theirs, self._output.writer):
                end.close()

    def ask(self, method: str, *arguments: Any, report: Report | None = None) -> Any:
        """Result of ``subject.method(*arguments)``; raises `WorkerFailure` if there is none.

        Arguments and result are plain data, as in JSON; a result that is not is a failure.
        A method that takes a ``report`` callable may send progress, handed to `report` here;
        progress does not put off the timeout. After a failure the worker is closed, and every
        further question fails alike.
        """
        if self._failure is None:
            try:
                return self._answer(method, arguments, report)
            except WorkerFailure as failure:
                self._failure = failure
        self.close()
        raise self._failure

    def close(self) -> None:
        """End the process and whatever it has started."""
        self._stop.close()
        self._channel.close()
        if self._process.pid is not None:
            self._process.join(timeout=15)
            self._process.kill()
        self._output.close()

    def _answer(self, method: str, arguments: tuple[Any, ...], report: Report | None) -> Any:
        deadline = time.monotonic() + self._limits.timeout_s
        try:
            self._channel.send((method, arguments, report is not None), deadline)
            while True:
                kind, content = _understood(self._channel.receive(deadline))
                if kind == "failure":
                    raise WorkerFailure(*content)
                if kind == "result":
                    return content[0]
                if kind == "started":
                    self.pid = content[0]
                elif report is not None:
                    report(*content)
        except TimeoutError:
            text = f"no answer to {method} within {self._limits.timeout_s:g} s"
            raise WorkerFailure("timeout", self._with_last_output(text)) from None
        except BadMessage as error:
            raise WorkerFailure("crashed", self._with_last_output(str(error))) from None
        except (EOFError, OSError):
            raise self._death() from None

    def _death(self) -> WorkerFailure:
        """What a connection that is closed means."""
        self._process.join(timeout=_LAST_BREATH_S)
        code = self._process.exitcode
        if code is None:
            self._stop.close()
            text = "closed its connection without an answer"
            return WorkerFailure("crashed", self._with_last_output(text))
        status: Status = "oom" if shows_lack_of_memory(self._output.text()) else "crashed"
        cause = f"exited with code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
        if -code == signal.SIGKILL:
            if self._killed_before != out_of_memory_kills():
                status = "oom"
                cause += " while the system's out-of-memory killer was at work"
            else:
                cause += " (by a person, another program or a memory limit of the system)"
        return WorkerFailure(status, self._with_last_output(cause))

    def _with_last_output(self, text: str) -> str:
        said = self._output.text()
        return f"{text}; last output: {said}" if said else text


class _Output:
    """What a worker and its children print: the last of it is kept, the rest only counted."""

    def __init__(self, context: ForkServerContext) -> None:
        self._reader, self.writer = context.Pipe(duplex=False)
        self._kept = b""
        self._length = 0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """The last 4000 bytes, and how many went before."""
        self._thread.join(timeout=0.1)  # the last words of one who has just died are on their way
        dropped = self._length - len(self._kept)
        said = self._kept.decode(errors="replace").strip()
        return f"[{dropped:,} bytes before] {said}" if dropped else said

    def close(self) -> None:
        """To be called after the worker's end. Who still holds the pipe escaped its supervisor."""
        self._thread.join(timeout=1)
        if self._thread.is_alive():
            for pid in writers(self._reader.fileno()):
                kill(pid)
            self._thread.join(timeout=1)
        if not self._thread.is_alive():
            self._reader.close()

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while piece := os.read(self._reader.fileno(), 2**16):
                self._length += len(piece)
                self._kept = (self._kept + piece)[-_KEPT_OUTPUT:]


def _start(process: BaseProcess) -> None:
    """Start it, twice if need be: the server that it is forked from may have died just now."""
    try:
        process.start()
    except (OSError, EOFError):
        time.sleep(0.5)
        process.start()


def _understood(message: Any) -> tuple[str, list[Any]]:
    """Kind and content of an answer; `BadMessage` when it is none."""
    kinds = ("started", "progress", "result", "failure")
    if isinstance(message, list) and message and message[0] in kinds:
        return message[0], message[1:]
    raise BadMessage("it sent something that is no answer")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
