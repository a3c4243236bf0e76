"""The same weights, the same numbers: our modules beside implementations that others wrote.

    python benchmarks/parity.py

prints, for torch.nn's attention and Transformer and for BERT, Swin and Longformer of transformers,
the largest absolute difference in fp32: of outputs and attention weights in eval (without
gradients, where torch.nn takes its fast path) and in training without dropout, and of the
gradients of parameters and inputs, the largest of which counts as 1. Exit code 0 when each is at
most 1e-5.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec

import torch
from peers import hugging_face, torch_nn
from peers.comparison import TOLERANCE, B, Comparison, E, H
from rich.console import Console
from rich.table import Table

WIDE = 140  # characters of a line in a file or a pipe


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 when every module was compared and is within the tolerance, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    as_json = parser.parse_args(arguments).json
    complete = find_spec("transformers") is not None
    with torch.random.fork_rng(), warnings.catch_warnings():
        # torch.nn warns of the paths it takes or leaves, which are what is compared.
        warnings.simplefilter("ignore", UserWarning)
        torch.manual_seed(0)
        rows = [*torch_nn.rows()]
        if complete:
            rows += hugging_face.rows()
    if as_json:
        print(json.dumps([{**asdict(row), "ok": row.ok} for row in rows], indent=1))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=WIDE)
        console.print(table(rows))
    if not complete:
        print(
            "BERT, Swin and Longformer were not compared: transformers is not installed "
            "(pip install '.[transformers]')",
            file=sys.stderr,
        )
    return 0 if complete and all(row.ok for row in rows) else 1


def table(rows: Sequence[Comparison]) -> Table:
    """The comparisons, under a heading that says what the numbers are."""
    made = Table(
        title=f"Largest absolute difference in fp32, allowed {TOLERANCE:g}. Width {E}, {H} heads, "
        f"batch {B}, of ragged lengths where padded",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for heading in ("module", "shapes", "settings"):
        made.add_column(heading, no_wrap=heading == "module")
    for heading in ("eval", "train", "gradients"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    for row in rows:
        numbers = (f"{value:.1e}" for value in (row.evaluated, row.trained, row.gradient))
        verdict = "ok" if row.ok else "DIFFERENT"
        made.add_row(row.module, row.shapes, row.settings, *numbers, verdict)
    return made


if __name__ == "__main__":
    sys.exit(main())
