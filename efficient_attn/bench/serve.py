"""Inside a contestant's process: limits first, then one answer per question, failures included."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from efficient_attn.bench.channel import Channel
from efficient_attn.bench.processes import die_with_parent
from efficient_attn.bench.record import Status

_OUT_OF_MEMORY_SIGNS = (
    "DefaultCPUAllocator: can't allocate memory",
    "not enough memory: you tried to allocate",
    "out of memory",
    "Cannot allocate memory",
    "std::bad_alloc",
    "MemoryError",
)


@dataclass(frozen=True)
class Job:
    """subject: the pickled (factory, arguments), so that an import which fails is an answer too.

    memory_bytes: cap on data memory, None = none. cores: to run on, None = as the system pleases.
    """

    subject: bytes
    memory_bytes: int | None
    cores: frozenset[int] | None


def run_contestant(
    supervisor: int, channel: socket.socket, output: Connection[Any, Any], job: Job
) -> NoReturn:
    """Answer until the sweep hangs up. supervisor: process to end with."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent()
        if os.getppid() != supervisor:
            os._exit(1)
        _redirect(output)
        _limit(job)
        _answer_all(Channel(channel), job.subject)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def shows_lack_of_memory(text: str) -> bool:
    """Whether an error message, or the last words of a process, speak of memory that ran out."""
    return any(sign in text for sign in _OUT_OF_MEMORY_SIGNS)


def _redirect(output: Connection[Any, Any]) -> None:
    """No input, and everything printed, by C code too, into the pipe."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()


def _limit(job: Job) -> None:
    """Memory and cores; and should the machine run out of memory, this is what to kill first."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if job.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (job.memory_bytes, job.memory_bytes))
    if job.cores is not None:
        os.sched_setaffinity(0, job.cores)


def _answer_all(channel: Channel, pickled_subject: bytes) -> None:
    process = os.getpid()
    os.register_at_fork(after_in_child=channel.close)

    def send(*message: Any) -> None:
        if os.getpid() != process:
            os._exit(0)  # a fork that came back from the contestant's code: it has no say
        channel.send(message)

    def report(*content: Any) -> None:
        send("progress", *content)

    send("started", process)
    subject = None
    while True:
        try:
            method, arguments, wants_report = channel.receive()
        except EOFError:
            return
        try:
            if subject is None:
                factory, factory_arguments = pickle.loads(pickled_subject)
                subject = factory(*factory_arguments)
            extra = {"report": report} if wants_report else {}
            send("result", getattr(subject, method)(*arguments, **extra))
        except BaseException as error:
            send("failure", *_classify(error))


def _classify(error: BaseException) -> tuple[Status, str]:
    """Status and reason of an exception, by what it says rather than where it came from."""
    from efficient_attn.attention import UnsupportedAttention
    from efficient_attn.bench.training import Diverged

    text = _text(error)
    if isinstance(error, UnsupportedAttention):
        return "unsupported", str(error)
    if isinstance(error, Diverged):
        return "diverged", str(error)
    ran_out = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if ran_out or shows_lack_of_memory(text):
        return "oom", text.splitlines()[0]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return "crashed", f"{text}{where}"


def _text(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}".strip()
    except Exception:
        return f"{name}, which cannot say more: its own text fails"
