"""`efficient-attn merge`: the records of several results folders in one."""

from __future__ import annotations

import argparse
import sys

from efficient_attn.bench.store import Store


def main(arguments: argparse.Namespace) -> int:
    """Copy what is new or newer and say how much; 1 when a file could not be read."""
    target, sources = Store(arguments.into), [Store(folder) for folder in arguments.results]
    for source in sources:
        if not source.records_folder.is_dir():
            raise ValueError(f"{source.folder} is no results folder: it has no records in it")
    target.require_writable()
    left_out = 0
    for source in sources:
        new, replaced = target.merge(source)
        for warning in source.warnings:
            print(warning, file=sys.stderr)
        left_out += len(source.warnings)
        print(f"{source.folder}: {new} new, {replaced} newer than those of {arguments.into}")
    return 1 if left_out else 0
