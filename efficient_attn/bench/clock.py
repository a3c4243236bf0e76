"""How long calls take on a device: the host's clock, or events on a CUDA stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

Step = Callable[[], object]


class Clock(Protocol):
    def milliseconds(self, call: Step, before: Step, calls: int) -> float:
        """Mean time of `calls` calls, each after ``before()``, which is not timed."""


class HostClock:
    """For the CPU, whose calls return when their work is done."""

    def milliseconds(self, call: Step, before: Step, calls: int) -> float:
        total = 0.0
        for _ in range(calls):
            before()
            start = time.perf_counter()
            call()
            total += time.perf_counter() - start
        return total * 1e3 / calls


class CudaClock:
    """For CUDA, whose calls return before their work is done: events on the stream of the work.

    The device is idle before the first call and all work is done before a time is read.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def milliseconds(self, call: Step, before: Step, calls: int) -> float:
        torch.cuda.synchronize(self.device)
        marks = []
        with torch.cuda.device(self.device):
            for _ in range(calls):
                before()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                call()
                end.record()
                marks.append((start, end))
        torch.cuda.synchronize(self.device)
        return sum(start.elapsed_time(end) for start, end in marks) / calls


def clock_for(device: str) -> Clock:
    return CudaClock(device) if device.startswith("cuda") else HostClock()
