"""Contestants of known cost and contestants that misbehave, each in one known way.

An attention variant is named "contestants:Class" in a sweep that can import this file:

    python benchmarks/sweep.py '+attention.toy.variant=contestants:Sleeper'
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import stat
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.attention import AttentionMask, AttentionVariant, Capabilities


@dataclass(frozen=True)
class ToyOptions:
    """milliseconds: how long `Sleeper` sleeps. megabytes: how much is allocated or printed.
    note: file that `Announced` writes its process number into."""

    milliseconds: float = 20.0
    megabytes: int = 16
    note: str = ""


class Toy(AttentionVariant):
    """Returns the values; before that `act` does what the toy is for, in one call or in all."""

    Options = ToyOptions
    capabilities = Capabilities(causal_self=True)
    at_call: int | None = 1
    _calls = 0

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        self._calls += 1
        if self.at_call in (None, self._calls):
            self.act()
        return v.clone()

    def act(self) -> None:
        raise NotImplementedError


# Known cost, in every call.


@ea.register_variant("toy_sleeper")
class Sleeper(Toy):
    at_call = None

    def act(self) -> None:
        time.sleep(self.options.milliseconds / 1e3)


@ea.register_variant("toy_allocator")
class Allocator(Toy):
    at_call = None

    def act(self) -> None:
        torch.ones(self.options.megabytes, 2**18).sum()


# The process ends.


@ea.register_variant("toy_segfault")
class Segfault(Toy):
    def act(self) -> None:
        ctypes.string_at(0)


@ea.register_variant("toy_exit")
class Exit(Toy):
    def act(self) -> None:
        print("farewell", flush=True)
        os._exit(3)


@ea.register_variant("toy_killed")
class Killed(Toy):
    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@ea.register_variant("toy_orphan")
class Orphan(Toy):
    """Kills the process that watches over it, and leaves a child behind."""

    def act(self) -> None:
        if os.fork() == 0:
            os.setsid()
            _sleep_forever()
        os.kill(os.getppid(), signal.SIGKILL)
        _sleep_forever()


@ea.register_variant("toy_announced")
class Announced(Toy):
    """Says in mid-race which process it is, for others to kill."""

    at_call = 5

    def act(self) -> None:
        note = Path(self.options.note)
        note.with_suffix(".new").write_text(str(os.getpid()))
        note.with_suffix(".new").rename(note)
        time.sleep(1)


# No answer comes.


@ea.register_variant("toy_endless")
class Endless(Toy):
    def act(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _sleep_forever()


@ea.register_variant("toy_stopped")
class Stopped(Toy):
    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


# An exception.


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


@ea.register_variant("toy_faulty")
class Faulty(Toy):
    def act(self) -> None:
        raise RuntimeError("a deliberate fault")


@ea.register_variant("toy_late")
class Late(Toy):
    """Fails at its fifth call, in the middle of the race."""

    at_call = 5

    def act(self) -> None:
        raise RuntimeError("too late")


@ea.register_variant("toy_quitter")
class Quitter(Toy):
    def act(self) -> None:
        raise SystemExit(4)


@ea.register_variant("toy_interrupt")
class Interrupt(Toy):
    def act(self) -> None:
        raise KeyboardInterrupt


@ea.register_variant("toy_unspeakable")
class Unspeakable(Toy):
    def act(self) -> None:
        raise UnspeakableError


@ea.register_variant("toy_recursion")
class Recursion(Toy):
    def act(self) -> None:
        self.act()


# Memory runs out.


@ea.register_variant("toy_hog")
class Hog(Toy):
    def act(self) -> None:
        torch.ones(2**40)


@ea.register_variant("toy_grower")
class Grower(Toy):
    """Takes memory from Python, piece by piece."""

    def act(self) -> None:
        pieces = []
        while True:
            pieces.append(bytearray(2**26))


@ea.register_variant("toy_aborted")
class Aborted(Toy):
    """Ends as C++ code does when an allocation of its own fails."""

    def act(self) -> None:
        message = b"terminate called after throwing an instance of 'std::bad_alloc'\n"
        os.write(2, message)
        os.abort()


# Output, answers and the channels they take.


@ea.register_variant("toy_chatty")
class Chatty(Toy):
    """Prints `megabytes`, half of them past Python."""

    def act(self) -> None:
        for _ in range(self.options.megabytes // 2):
            print("x" * 2**20, flush=True)
            os.write(2, b"y" * 2**20)


@ea.register_variant("toy_silent")
class Silent(Toy):
    """Closes its output."""

    def act(self) -> None:
        for stream in (1, 2):
            os.close(stream)


@ea.register_variant("toy_unplugged")
class Unplugged(Toy):
    """Closes everything that is open, and goes on."""

    def act(self) -> None:
        os.closerange(3, 4096)
        _sleep_forever()


@ea.register_variant("toy_garbage")
class Garbage(Toy):
    """Writes into the connection."""

    def act(self) -> None:
        for connection in _sockets():
            connection.send(b"\xff" * 64)


@ea.register_variant("toy_half_message")
class HalfMessage(Toy):
    """Announces a message of a thousand bytes, sends three, and sleeps."""

    def act(self) -> None:
        for connection in _sockets():
            connection.send((1000).to_bytes(8, "big") + b"abc")
        _sleep_forever()


@ea.register_variant("toy_strange")
class Strange(Toy):
    """Reports options that no record can hold."""

    def act(self) -> None:
        self.options = _StrangeOptions(strange={1, 2, 3})


@ea.register_variant("toy_bloated")
class Bloated(Toy):
    """Reports options of more bytes than any answer has."""

    def act(self) -> None:
        self.options = _StrangeOptions(strange="x" * 2**27)


@ea.register_variant("toy_nan")
class NaN(Toy):
    at_call = None

    def forward(self, *tensors: Any, **more: Any) -> Tensor:
        return super().forward(*tensors, **more) * float("nan")

    def act(self) -> None:
        """Only the answer is wrong."""


# Children, threads and meddling.


@ea.register_variant("toy_breeder")
class Breeder(Toy):
    """Leaves behind a busy child in its group, one in a session of its own, and a daemon."""

    def act(self) -> None:
        if os.fork() == 0:
            while True:
                time.sleep(0.001)
        if os.fork() == 0:
            os.setsid()
            _sleep_forever()
        _daemon()


@ea.register_variant("toy_dying_breeder")
class DyingBreeder(Breeder):
    def act(self) -> None:
        super().act()
        ctypes.string_at(0)


@ea.register_variant("toy_forked")
class Forked(Toy):
    """Comes back from one call as two processes."""

    def act(self) -> None:
        os.fork()


@ea.register_variant("toy_threaded")
class Threaded(Toy):
    """Starts threads that never end."""

    def act(self) -> None:
        for _ in range(8):
            threading.Thread(target=_sleep_forever).start()


@ea.register_variant("toy_meddler")
class Meddler(Toy):
    """Changes what a process may change about itself."""

    def act(self) -> None:
        os.chdir("/")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        for limit in (resource.RLIMIT_DATA, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE):
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (hard, hard))
        os.environ.clear()


def _sleep_forever() -> None:
    while True:
        time.sleep(1)


def _daemon() -> None:
    """Start a process by the book: twice forked, a session of its own, nothing open."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 4096)
            _sleep_forever()
        os._exit(0)
    os.waitpid(child, 0)


def _sockets() -> list[socket.socket]:
    """Every socket of this process, duplicated."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(socket.socket(fileno=os.dup(int(name))))
        except OSError:
            continue
    return found


@dataclass(frozen=True)
class _StrangeOptions(ToyOptions):
    strange: Any = None
