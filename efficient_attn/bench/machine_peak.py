"""How fast the machine is at its best: matrix products and copying, the two limits of a roofline.

Williams, Waterman and Patterson 2009, "Roofline". A peak is a maximum: the best of many short
tries, so that a busy moment does not lower it.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import torch

from efficient_attn.bench import contention, environment
from efficient_attn.bench.record import digest

Peak = dict[str, float]
"""flops_per_s: of a matrix product; bytes_per_s: read and written by a copy."""

VALID_HOURS = 12.0
SQUARES = (256, 512, 1024, 2048, 4096, 8192)
QUIET_ROUNDS, MOST_ROUNDS = 3, 5
"""Tries of one size lie rounds apart, so that another program's busy moment spoils one of them
only; rounds that waited for a core are taken again, within reason."""
QUIET = 0.05
"""Share of its time that a quiet round may wait."""
PRODUCT_S, COPY_S = 0.02, 0.4
"""Time for one size in one round, and for copying."""
LONGEST_S = 0.1
"""No product is tried that would take longer."""
COPIED_BYTES = {"cpu": 2**28, "cuda": 2**30}
"""Far above the caches."""


class PeakSubject:
    """Measures the peak in a worker process."""

    def __init__(self, device: str, dtype: str, threads: int | None) -> None:
        self.device, self.dtype, self.threads = device, dtype, threads

    def measure(self) -> Peak:
        return measure_peak(self.device, self.dtype, self.threads)


def measure_peak(device: str, dtype: str, threads: int | None) -> Peak:
    """Peak of `device` for numbers of `dtype` with `threads` CPU threads (None = as torch is set).

    Half precision may always be computed in fp32, as torch's attention does on CPUs without
    instructions for it: its peak is the better of the two. Takes about two seconds, some more
    on a busy machine, and 512 MiB on a CPU, 2 GiB on a GPU.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    computed_in = {dtype, "float32"} if dtype in ("bfloat16", "float16") else {dtype}
    return {
        "flops_per_s": _product_rate(device, sorted(computed_in)),
        "bytes_per_s": _copy_rate(device),
    }


def _product_rate(device: str, dtypes: Sequence[str]) -> float:
    """FLOP/s of the best square product, a·b, or a·bᵀ as in linear layers and scores."""

    def rate(size: int, kind: tuple[str, bool]) -> float:
        return 2 * size**3 / _best_seconds(_square_product(size, *kind, device), device, PRODUCT_S)

    # A single thread waits for no other: what it reaches stands on a busy machine too, and tells
    # which sizes are worth trying.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    best = {kind: rate(SQUARES[0], kind) for kind in product(dtypes, (False, True))}
    torch.set_num_threads(threads)
    quiet = 0
    for _ in range(MOST_ROUNDS):
        start, waited = time.perf_counter(), contention.waited_seconds()
        for size, kind in product(SQUARES, best):
            if 2 * size**3 / best[kind] <= LONGEST_S:
                best[kind] = max(best[kind], rate(size, kind))
        quiet += _was_quiet(start, waited)
        if quiet == QUIET_ROUNDS:
            break
    return max(best.values())


def _was_quiet(start: float, waited: float | None) -> bool:
    """Whether this process hardly waited for a core since; True where the system cannot tell."""
    now = contention.waited_seconds()
    if now is None or waited is None:
        return True
    return now - waited <= QUIET * (time.perf_counter() - start)


def _square_product(size: int, dtype: str, transposed: bool, device: str) -> Callable[[], object]:
    a, b, out = (
        torch.ones(size, size, dtype=getattr(torch, dtype), device=device) for _ in range(3)
    )
    right = b.T if transposed else b
    return lambda: torch.mm(a, right, out=out)


def _copy_rate(device: str) -> float:
    """Bytes read and written per second."""
    copied = COPIED_BYTES["cuda" if device.startswith("cuda") else "cpu"]
    source = torch.ones(copied, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * copied / _best_seconds(lambda: target.copy_(source), device, COPY_S)


def machine_peak(
    store_folder: Path,
    device: str,
    dtype: str,
    threads: int | None,
    measure: Callable[[], Peak],
) -> Peak:
    """The peak as `measure` found it within the last hours, or finds it now.

    Kept in ``<store_folder>/machine/``, one file per machine, device, dtype, threads and torch
    version. Errors of `measure` are the caller's; a folder that cannot be written only means that
    the next call measures again.
    """
    what = {
        "host": platform.node(),
        "device": device,
        "device_name": environment.device_name(device),
        "dtype": dtype,
        "threads": threads,
        "torch": environment.package_version("torch"),
    }
    path = Path(store_folder) / "machine" / f"{digest(what)}.json"
    known = _read(path)
    if known is not None:
        return known
    peak = measure()
    with suppress(OSError):
        _write(path, {**what, **peak, "measured": time.time()})
    return peak


def _best_seconds(call: Callable[[], object], device: str, budget_s: float) -> float:
    """Shortest of the calls that fit into `budget_s`, after one to warm up."""

    def synchronise() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    call()
    best = float("inf")
    end = time.perf_counter() + budget_s
    while True:
        synchronise()
        start = time.perf_counter()
        call()
        synchronise()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def _read(path: Path) -> Peak | None:
    """The peak in a file, None when it is missing, broken, or not of the last hours."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        peak = {name: float(values[name]) for name in ("flops_per_s", "bytes_per_s")}
        age_hours = (time.time() - float(values["measured"])) / 3600
    except (OSError, ValueError, TypeError, KeyError):
        return None
    fresh = 0 <= age_hours <= VALID_HOURS
    return peak if fresh and all(value > 0 for value in peak.values()) else None


def _write(path: Path, values: dict[str, Any]) -> None:
    """Whole or not at all: beside its name first, then moved over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
