"""Peak memory of a call: exact tensor bytes from the allocator's events, and resident set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

_CLEAR_REFS = Path("/proc/self/clear_refs")


def peak_tensor_bytes(call: Callable[[], object], device: str) -> tuple[int, str]:
    """Peak of live tensor bytes that `call` adds to what lives before it, and the method's name.

    On CPU the running sum of the profiler's allocation events, buffers inside operators included;
    slow to start, so never part of a timed call. On CUDA the caching allocator's own peak.
    """
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before, "cuda_allocator"
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    results = profiler.profiler.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak, "profiler"


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
