"""The sizes of ``conf/experiment/reference_sizes.yaml``: a design that fills the space of sizes.

    python benchmarks/design.py             # the block of swept values that the experiment holds

Points of a scrambled Sobol sequence over log length, batch, heads, head_dim and the share of each
knob's range, those left out whose full attention would take more than `MOST` multiply-adds. Each
axis is covered evenly however few the points, which a cross of all values would not do for its
price.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from scipy.stats import qmc

POINTS = 48
MOST = 2e10
LENGTHS = (200, 4500)
BATCHES = (1, 2, 4, 8)
HEADS = (4, 6, 8, 12, 16)
HEAD_DIMS = (32, 48, 64, 80, 96, 128)
KNOBS = {
    "attention.local_window.window": (32, 512),
    "attention.linformer.k": (32, 512),
    "attention.performer.num_features": (32, 512),
    "attention.shifted_window.window": (16, 256),
}


def design(points: int = POINTS, seed: int = 0) -> dict[str, list[int]]:
    """Values by the name of what is swept, as many of each as points."""
    sampler = qmc.Sobol(4 + len(KNOBS), seed=seed)
    rows: list[list[int]] = []
    while len(rows) < points:
        for row in sampler.random(64):
            length = _between(LENGTHS, row[0])
            batch, heads, head_dim = (
                _one_of(values, share)
                for values, share in zip((BATCHES, HEADS, HEAD_DIMS), row[1:4], strict=True)
            )
            if batch * heads * length**2 * head_dim * 2 <= MOST and len(rows) < points:
                knobs = [_between(ends, s) for ends, s in zip(KNOBS.values(), row[4:], strict=True)]
                rows.append([length, batch, heads, head_dim, *knobs])
    names = [*(f"workload.{name}" for name in ("length", "batch", "heads", "head_dim")), *KNOBS]
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _between(ends: Sequence[int], share: float) -> int:
    low, high = np.log(ends)
    return round(float(np.exp(low + share * (high - low))))


def _one_of(values: Sequence[int], share: float) -> int:
    return values[int(share * len(values))]


def main() -> int:
    """Print the block."""
    for name, values in design().items():
        print(f'      {name}: "{",".join(map(str, values))}"')
    return 0


if __name__ == "__main__":
    sys.exit(main())
