"""Does the harness see differences where there are none? The same variant, entered twice.

    python benchmarks/aa.py                 # 20 cells, quiet and beside a busy loop on one core

For each of 20 workloads a variant races itself, in the interleaved rounds that every sweep uses,
and the 95 % interval of the paired ratio should enclose 1 in about 19 of 20. For comparison the
same variant is measured twice in a row and the two medians are divided, as plain benchmarks do:
their drift between the two measurements enters the ratio, and no interval knows of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product

from rich.console import Console
from rich.table import Table

from efficient_attn.analysis.ratios import Ratio, ratio
from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.cost_cell import CostCell, CostSettings
from efficient_attn.bench.record import Record
from efficient_attn.bench.worker import Limits
from efficient_attn.bench.workload import Pass, Workload

VARIANTS = ("full", "linformer", "local_window", "performer", "shifted_window")
LENGTHS = (256, 1024)
PASSES: tuple[Pass, ...] = ("forward", "forward_backward")


@dataclass(frozen=True)
class Outcome:
    """Ratios of a variant to itself: how many intervals exclude 1, and how far they are from it."""

    condition: str
    method: str
    cells: int
    exclude_1: int
    median_error: float
    largest_error: float
    noisy: int

    @classmethod
    def of(cls, condition: str, method: str, ratios: Sequence[Ratio], noisy: int) -> Outcome:
        errors = [abs(one.value - 1) for one in ratios]
        return cls(
            condition,
            method,
            len(ratios),
            sum(not one.encloses(1.0) for one in ratios),
            statistics.median(errors),
            max(errors),
            noisy,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 when all was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget-s", type=float, default=3.0, help="of rounds per cell")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    chosen = parser.parse_args(arguments)
    how = CostSettings(budget_s=chosen.budget_s)
    outcomes = [*_race("quiet", how)]
    with _busy_loop():
        outcomes += _race("one core busy", how)
    if chosen.json:
        print(json.dumps([asdict(one) for one in outcomes], indent=1))
    else:
        Console(width=110).print(_table(outcomes))
    return 0


def _race(condition: str, how: CostSettings) -> Iterator[Outcome]:
    """The 20 cells under one condition, paired and one after the other."""
    paired, apart = [], []
    noisy = {"paired": 0, "apart": 0}
    for number, (variant, length, pass_) in enumerate(product(VARIANTS, LENGTHS, PASSES), start=1):
        print(f"{condition}: {number}/20  {variant}  N={length}  {pass_}", file=sys.stderr)
        workload = Workload(length=length, pass_=pass_)
        first, second = _measure(variant, workload, how, ["first", "second"])
        paired.append(ratio(second, first))
        noisy["paired"] += first.result["noisy"] or second.result["noisy"]
        alone = [_measure(variant, workload, how, [name])[0] for name in ("first", "second")]
        apart.append(ratio(alone[1], alone[0]))
        noisy["apart"] += any(record.result["noisy"] for record in alone)
    yield Outcome.of(condition, "paired, interleaved", paired, noisy["paired"])
    yield Outcome.of(condition, "medians, one after the other", apart, noisy["apart"])


def _measure(
    variant: str, workload: Workload, how: CostSettings, names: Sequence[str]
) -> list[Record]:
    contestants = tuple(Contestant(name, variant, {}) for name in names)
    cell = CostCell(contestants, Limits(timeout_s=120.0), workload, how)
    records = {one.contestant: one for one in cell.run(contestants, lambda *_: None)}
    for record in records.values():
        if not record.ok:
            raise SystemExit(f"{variant} at N={workload.length}: {record.status}, {record.reason}")
    return [records[name] for name in names]


@contextmanager
def _busy_loop() -> Iterator[None]:
    """Another process that never lets go of one core."""
    core = min(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    loop = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def _table(outcomes: Sequence[Outcome]) -> Table:
    made = Table(
        title="The same variant twice: ratio to itself, which is 1. 95 % intervals should exclude "
        "1 in about 5 % of cells",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for heading in ("condition", "method"):
        made.add_column(heading, no_wrap=True)
    for heading in ("cells", "exclude 1", "median |ratio − 1|", "largest", "flagged noisy"):
        made.add_column(heading, justify="right")
    for one in outcomes:
        made.add_row(
            one.condition,
            one.method,
            str(one.cells),
            str(one.exclude_1),
            f"{one.median_error:.2%}",
            f"{one.largest_error:.2%}",
            str(one.noisy),
        )
    return made


if __name__ == "__main__":
    sys.exit(main())
