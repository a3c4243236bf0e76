"""Measured peak memory beside the tensors alive at the peak, counted by hand.

    python benchmarks/memory_truth.py [--length 4096] [--dtype float32] [--terms]

prints, for every variant and pass, the peak of tensor bytes above the inputs as a record states
it, and the sum of the terms of tests/bench/memory_by_hand.py. Exit code 0 when all differ by at
most 2 %.

Full attention at 4096 tokens, 8 heads, fp32, written out (full_naive): the scores are 512 MiB and
so are the probabilities, 1024 MiB in all. The output (8 MiB) is not among them, since the scores
are freed before it is made: 1032 MiB, the sum of all three, is never alive at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read once, when the profiler's library loads

from rich.console import Console
from rich.table import Table

import efficient_attn as ea
from efficient_attn.attention import variant_class
from efficient_attn.bench import memory
from efficient_attn.bench.passes import build
from efficient_attn.bench.workload import Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "bench"))
from memory_by_hand import Terms, by_hand

TOLERANCE = 0.02
MIB = 2**20
WIDE = 120  # characters of a line in a file or a pipe


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 when every measured peak is within the tolerance of its sum."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--terms", action="store_true", help="list the tensors alive at each peak")
    asked = parser.parse_args(arguments)
    out = Console() if sys.stdout.isatty() else Console(width=WIDE)
    table = Table(title=f"{asked.length} tokens, {asked.heads} heads of 64, {asked.dtype}, MiB")
    for column in ("variant", "pattern", "pass", "measured", "by hand", "difference"):
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    worst = 0.0
    for name, workload, measured, terms in _rows(asked):
        counted = sum(terms.values())
        difference = measured / counted - 1
        worst = max(worst, abs(difference))
        numbers = (f"{measured / MIB:.1f}", f"{counted / MIB:.1f}", f"{difference:+.2%}")
        table.add_row(name, workload.pattern, workload.pass_, *numbers)
        if asked.terms:
            for term, size in terms.items():
                if size:
                    table.add_row("", "", f"[dim]{term}", "", f"[dim]{size / MIB:.1f}", "")
    out.print(table)
    return 0 if worst <= TOLERANCE else 1


NUMBERS = ("measured", "by hand", "difference")


def _rows(asked: argparse.Namespace) -> Iterator[tuple[str, Workload, int, Terms]]:
    contestants: list[tuple[str, str, dict[str, Any]]] = [
        (name, name, {}) for name in ea.list_variants()
    ]
    contestants.insert(1, ("full_naive", "full", {"implementation": "naive"}))
    for name, variant, options in contestants:
        for pattern in ("noncausal_self", "causal_self"):
            if not getattr(variant_class(variant).capabilities, pattern):
                continue
            for pass_ in ("forward", "forward_backward"):
                workload = Workload(
                    heads=asked.heads,
                    length=asked.length,
                    dtype=asked.dtype,
                    pattern=pattern,
                    pass_=pass_,
                )
                yield name, workload, *_measure(variant, options, workload)


def _measure(variant: str, options: dict[str, Any], workload: Workload) -> tuple[int, Terms]:
    call = build(variant, options, workload)
    if call.backward:
        call()  # makes the gradient of the output, an input of the measured call
        call.reset()
    return memory.peak_tensor_bytes(call, "cpu").tensor_bytes, by_hand(call, workload)


if __name__ == "__main__":
    sys.exit(main())
