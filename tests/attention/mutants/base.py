"""What a mutation is, and the files they are made in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """`old`, which stands in `file` exactly once, becomes `new`.

    kind: number of the fault; what: the fault in words; variant: whose tests are asked first, None
    where it concerns every variant.
    """

    kind: int
    what: str
    variant: str | None
    file: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.kind} {self.variant or 'all'}: {self.what}"


_ATTENTION = "efficient_attn/attention"
MASKS = f"{_ATTENTION}/masks.py"
APPLY = f"{_ATTENTION}/apply.py"
MULTIHEAD = f"{_ATTENTION}/multihead.py"
GRID = f"{_ATTENTION}/grid.py"
FULL = f"{_ATTENTION}/variants/full.py"
LINFORMER = f"{_ATTENTION}/variants/linformer.py"
KERNELS = f"{_ATTENTION}/kernels"
MIXING = f"{KERNELS}/mixing.py"
LOCAL = f"{_ATTENTION}/variants/local_window.py"
PERFORMER = f"{_ATTENTION}/variants/performer.py"
PERFORMER_KERNEL = f"{KERNELS}/performer.py"
PERFORMER_CAUSAL = f"{KERNELS}/performer_causal.py"
WINDOWS = f"{KERNELS}/windows.py"
SHIFTED = f"{_ATTENTION}/variants/shifted_window.py"

_BENCH = "efficient_attn/bench"
CELL = f"{_BENCH}/cell.py"
CONFIG = f"{_BENCH}/config.py"
COST = f"{_BENCH}/cost.py"
CLOCK = f"{_BENCH}/clock.py"
INTERVALS = f"{_BENCH}/intervals.py"
PASSES = f"{_BENCH}/passes.py"
RACE = f"{_BENCH}/race.py"
ENVIRONMENT = f"{_BENCH}/environment.py"
MEMORY = f"{_BENCH}/memory.py"
STORE = f"{_BENCH}/store.py"
SWEEP = f"{_BENCH}/sweep.py"
SWEEP_COMMAND = "efficient_attn/commands/sweep.py"
