"""Injected truth: contestants that sleep and allocate known amounts, and what was measured.

    python benchmarks/truth.py

A sleeper is woken late by the system's timers, and calling it takes a moment too, longer when the
core has been idle: the truth is what the same call takes in a plain loop in this process.
Allocations are of float32 numbers, freed before the toy returns a copy of its few values.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.cost_cell import CostCell, CostSettings
from efficient_attn.bench.passes import build
from efficient_attn.bench.record import Record
from efficient_attn.bench.worker import Limits
from efficient_attn.bench.workload import Workload

MILLISECONDS = (0.5, 2.0, 10.0, 50.0, 250.0)
MEBIBYTES = (1, 16, 128, 1024)
WORKLOAD = Workload(heads=1, head_dim=4, length=64)
SLEEPS = 21


@dataclass(frozen=True)
class Line:
    """measured between low and high (95 %), against the truth, in one unit."""

    what: str
    asked: str
    unit: str
    truth: float
    measured: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.measured / self.truth - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 when every memory is within 0.1 % and every time within 10 %."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    as_json = parser.parse_args(arguments).json
    lines = [*_times(), *_memories()]
    if as_json:
        print(json.dumps([{**asdict(line), "error": line.error} for line in lines], indent=1))
    else:
        Console(width=110).print(_table(lines))
    allowed = {"bytes": 0.001, "ms": 0.1}
    return 0 if all(abs(line.error) < allowed[line.unit] for line in lines) else 1


def _times() -> list[Line]:
    asked = [("contestants:Sleeper", {"milliseconds": value}) for value in MILLISECONDS]
    return [
        Line(
            "sleeps",
            f"{value:g} ms",
            "ms",
            _slept_ms(value),
            record.result["median_ms"],
            record.result["low_ms"],
            record.result["high_ms"],
        )
        for value, record in zip(MILLISECONDS, _measure(asked), strict=True)
    ]


def _memories() -> list[Line]:
    asked = [("contestants:Allocator", {"megabytes": value}) for value in MEBIBYTES]
    lines = []
    for value, record in zip(MEBIBYTES, _measure(asked), strict=True):
        peak = record.result["peak_tensor_bytes"]
        lines.append(Line("allocates", f"{value} MiB", "bytes", value * 2**20, peak, peak, peak))
    return lines


def _slept_ms(milliseconds: float) -> float:
    """What a call that sleeps so long takes in a plain loop."""
    call = build("contestants:Sleeper", {"milliseconds": milliseconds}, WORKLOAD)
    times = []
    for _ in range(SLEEPS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def _measure(asked: Sequence[tuple[str, dict[str, Any]]]) -> list[Record]:
    contestants = tuple(
        Contestant(f"{number}", variant, options) for number, (variant, options) in enumerate(asked)
    )
    cell = CostCell(contestants, Limits(timeout_s=60.0), WORKLOAD, CostSettings(max_rounds=20))
    records = {one.contestant: one for one in cell.run(contestants, lambda *_: None)}
    for record in records.values():
        if not record.ok:
            raise SystemExit(f"{record.variant} {record.options}: {record.status}, {record.reason}")
    return [records[one.name] for one in contestants]


def _table(lines: Sequence[Line]) -> Table:
    made = Table(title="Measured against the truth", title_justify="left", box=None, pad_edge=False)
    for heading in ("toy", "asked", "unit"):
        made.add_column(heading)
    for heading in ("truth", "measured", "95 % interval", "error"):
        made.add_column(heading, justify="right")
    for line in lines:
        numbers = [line.truth, line.measured]
        shown = [f"{value:.3f}" if line.unit == "ms" else f"{value:.0f}" for value in numbers]
        interval = f"{line.low:.3f}–{line.high:.3f}" if line.unit == "ms" else "exact"
        made.add_row(line.what, line.asked, line.unit, *shown, interval, f"{line.error:+.2%}")
    return made


if __name__ == "__main__":
    sys.exit(main())
