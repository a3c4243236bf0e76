"""Is a kernel ever slower than the formula of its variant? Cases over batch, widths and options.

    python benchmarks/beside_formula.py                 # minutes, on one core
    python benchmarks/beside_formula.py --only performer --dtype bfloat16
    python benchmarks/beside_formula.py --padding       # instead: what key padding costs

Each case runs both in turns on one thread and takes the ratio of their least CPU times, formula /
kernel (above 1: the kernel is faster): of all clocks, the one that neighbours disturb least. Listed
are the cases below 0.95, measured once more; their number, the least ratio and the median stand in
a table per variant and pass. With --padding the ratio is that of a fifth of all keys masked to none
masked, and listed are those above 1.1.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from efficient_attn.attention import variant_class
from efficient_attn.bench.passes import build
from efficient_attn.bench.workload import Workload

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "local_window": [{"window": 128}, {"window": 16}],
    "shifted_window": [{"window": 64, "shift": 32}, {"window": 8}],
    "linformer": [{"k": 256}, {"k": 32}],
    "performer": [{"num_features": 256}, {"num_features": 32}],
}
BATCHES, WIDTHS, LENGTHS = (1, 8), (32, 128), (64, 512, 2048)
HEADS = 8
ROUNDS, BUDGET_S = 5, 0.15
MOST_TOKENS = 8192


@dataclass(frozen=True, eq=False)
class Case:
    variant: str
    options: dict[str, Any]
    workload: Workload

    def __str__(self) -> str:
        w = self.workload
        given = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return (
            f"{self.variant}({given}) {w.pattern} {w.pass_} {w.dtype} "
            f"B={w.batch} N={w.length} D={w.head_dim}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the cases and the table; 1 when any case fell short twice."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=sorted(OPTIONS), help="one variant")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="one number format")
    parser.add_argument("--padding", action="store_true", help="padded beside unpadded")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console(width=120)
    found: dict[Case, float] = {}
    short: list[Case] = []
    for case in track(list(_cases(chosen.only, chosen.dtype)), "cases", console=console):
        value = _ratio(case, padding=chosen.padding)
        if _falls_short(value, padding=chosen.padding):
            again = _ratio(case, padding=chosen.padding)
            value = min(value, again) if chosen.padding else max(value, again)
        if _falls_short(value, padding=chosen.padding):
            short.append(case)
            console.print(f"{value:.2f}  {case}", markup=False, highlight=False)
        found[case] = value
    console.print(_table(found, short, padding=chosen.padding))
    return 1 if short else 0


def _cases(only: str | None, dtype: str | None) -> Iterator[Case]:
    for variant, choices in OPTIONS.items():
        if only not in (None, variant):
            continue
        grid = product(
            choices,
            ("noncausal_self", "causal_self"),
            ("forward", "forward_backward"),
            (dtype,) if dtype else ("float32", "bfloat16"),
            LENGTHS,
            BATCHES,
            WIDTHS,
        )
        for options, pattern, pass_, kind, length, batch, width in grid:
            able = getattr(variant_class(variant).capabilities, pattern)
            if not able or batch * length > MOST_TOKENS:
                continue
            workload = Workload(
                batch=batch,
                heads=HEADS,
                head_dim=width,
                length=length,
                pattern=pattern,
                dtype=kind,
                pass_=pass_,
            )
            yield Case(variant, options | _needed(variant, length), workload)


def _needed(variant: str, length: int) -> dict[str, Any]:
    return {"max_len": length} if variant == "linformer" else {}


def _ratio(case: Case, *, padding: bool) -> float:
    """CPU time of formula / kernel, or padded / not."""
    kernel = build(case.variant, case.options, case.workload)
    if padding:
        other = build(case.variant, case.options, replace(case.workload, padding=0.2))
    else:
        other = build(case.variant, {**case.options, "implementation": "formula"}, case.workload)
    times: list[list[float]] = [[], []]
    stop = time.perf_counter() + BUDGET_S
    while len(times[0]) < ROUNDS or time.perf_counter() < stop:
        for call, taken in zip((kernel, other), times, strict=True):
            call.reset()
            start = time.thread_time()
            call()
            taken.append(time.thread_time() - start)
    return min(times[1]) / min(times[0])


def _falls_short(value: float, *, padding: bool) -> bool:
    return value > 1.1 if padding else value < 0.95


def _table(found: dict[Case, float], short: Sequence[Case], *, padding: bool) -> Table:
    worst: Callable[[list[float]], float] = max if padding else min
    title = "padded / not" if padding else "formula / kernel"
    table = Table("variant", "pass", "cases", "short", "worst", "median", title=title)
    for variant, pass_ in product(OPTIONS, ("forward", "forward_backward")):
        mine = [c for c in found if c.variant == variant and c.workload.pass_ == pass_]
        if not mine:
            continue
        values = [found[case] for case in mine]
        table.add_row(
            variant,
            pass_,
            str(len(mine)),
            str(sum(case in short for case in mine)),
            f"{worst(values):.2f}",
            f"{statistics.median(values):.2f}",
        )
    return table


if __name__ == "__main__":
    raise SystemExit(main())
