"""`efficient-attn report`: a results folder as one HTML page."""

from __future__ import annotations

import argparse
import sys

from efficient_attn.plots.report.build import report

ALL_DONE, SOME_LEFT_OUT = 0, 1


def main(arguments: argparse.Namespace) -> int:
    """Write the page and print its path; 1 when a file of the folder could not be read."""
    path, left_out = report(arguments.results, arguments.out)
    for warning in left_out:
        print(warning, file=sys.stderr)
    print(path)
    return SOME_LEFT_OUT if left_out else ALL_DONE
