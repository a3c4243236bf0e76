"""Peak memory of a call: exact tensor bytes from the allocator's events, and resident set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

Made = TypeVar("Made")

_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class PeakMemory:
    """tensor_bytes: most bytes alive at once of what the call allocates; method: ``profiler`` or
    ``cuda_allocator``; reserved_bytes: what the CUDA allocator held at its peak, None on CPU."""

    tensor_bytes: int
    method: str
    reserved_bytes: int | None


def peak_tensor_bytes(call: Callable[[], object], device: str) -> PeakMemory:
    """Peak of live tensor bytes that `call` adds to what lives before it.

    On CPU from the profiler's allocation events, buffers inside operators included; slow to start,
    so never part of a timed call. On CUDA from the caching allocator, whose cache is emptied
    first. What lived before and is freed by the call makes no room: on CPU its size is unknown,
    and counting it as alive throughout errs on the safe side.
    """
    if device.startswith("cuda"):
        return _peak_on_cuda(call, device)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    return PeakMemory(_peak_and_end(_allocations(profiler))[0], "profiler", None)


def kept_tensor_bytes(make: Callable[[], Made], device: str) -> tuple[Made, int]:
    """What `make` returns, and the tensor bytes it leaves alive: of inputs and parameters."""
    if device.startswith("cuda"):
        before = torch.cuda.memory_allocated(device)
        made = make()
        return made, torch.cuda.memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        made = make()
    return made, _peak_and_end(_allocations(profiler))[1]


def _peak_on_cuda(call: Callable[[], object], device: str) -> PeakMemory:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    return PeakMemory(peak, "cuda_allocator", torch.cuda.max_memory_reserved(device))


def _allocations(profiler: profile) -> list[tuple[int, int]]:
    """Address and bytes of every CPU block allocated (bytes above 0) or freed (below), in order.

    Events of one thread are recorded in order, and sorting keeps that among equal times.
    """
    roots: list[Any] = profiler.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    events = [
        (event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size)
        for event in _descendants(roots)
        if event.tag == _EventType.Allocation and event.extra_fields.device.type == "cpu"
    ]
    return [(address, size) for _, address, size in sorted(events, key=lambda event: event[0])]


def _descendants(roots: list[Any]) -> Iterator[Any]:
    """Every event of a forest, parents before children, siblings in order."""
    waiting = roots[::-1]
    while waiting:
        event = waiting.pop()
        yield event
        waiting.extend(reversed(event.children))


def _peak_and_end(events: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Most bytes alive at once, and those alive at the end, of what the events allocate.

    A block is freed by its address: that of a block from before takes nothing away, whatever size
    the profiler remembers of an earlier block at the same address.
    """
    alive: dict[int, int] = {}
    live = peak = 0
    for address, size in events:
        if size > 0:
            alive[address] = size
            live += size
            peak = max(peak, live)
        else:
            live -= alive.pop(address, 0)
    return peak, live


def reset_peak_rss() -> int | None:
    """Start a new high-water mark at the present resident set, and return that in bytes."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return None
    return _status_bytes("VmRSS")


def peak_rss() -> int | None:
    """Bytes of the high-water mark since `reset_peak_rss`, None where the system has none."""
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
