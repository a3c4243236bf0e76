"""`efficient-attn plot`: figures of a results folder."""

from __future__ import annotations

import argparse

from efficient_attn.plots.render import plot


def main(arguments: argparse.Namespace) -> int:
    """Write the figures and print their paths."""
    formats = tuple(arguments.format or ("png", "svg"))
    written = plot(
        arguments.results, arguments.out, formats, arguments.language, arguments.predict_to
    )
    for path in written:
        print(path)
    return 0
