"""`efficient-attn plot`: figures of a results folder."""

from __future__ import annotations

import argparse

from efficient_attn.plots.render import plot


def main(arguments: argparse.Namespace) -> int:
    """Write the figures and print their paths."""
    for path in plot(arguments.results, arguments.out, tuple(arguments.format or ("png", "svg"))):
        print(path)
    return 0
