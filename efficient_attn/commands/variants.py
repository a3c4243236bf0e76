"""`efficient-attn list` and `describe`: the registry in words."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from efficient_attn.attention import VariantSpec, describe, list_variants, resolve_options


def list_command(arguments: argparse.Namespace) -> int:
    """Print a line per variant."""
    filters = {
        name: True
        for name in ("causal", "cross", "weights", "decode", "exact")
        if getattr(arguments, name)
    }
    specs = [describe(name) for name in list_variants(**filters)]
    if arguments.json:
        print(json.dumps([spec.to_dict() for spec in specs], indent=1))
        return 0
    table = Table(box=None, pad_edge=False)
    for heading in ("variant", "time", "memory", "exact", "what it is"):
        table.add_column(heading)
    for spec in specs:
        table.add_row(
            spec.name, spec.time, spec.memory, "yes" if spec.exact else "no", spec.summary
        )
    Console().print(table)
    return 0


def describe_command(arguments: argparse.Namespace) -> int:
    """Print everything the registry knows about one variant."""
    spec = describe(arguments.name)
    if arguments.json:
        print(json.dumps(spec.to_dict(), indent=1))
        return 0
    for line in _description(spec):
        print(line)
    return 0


def _description(spec: VariantSpec) -> list[str]:
    can = asdict(spec.capabilities)
    equal_lengths = can.pop("equal_lengths")
    lines = [
        f"{spec.name}: {spec.summary}",
        "",
        f"paper    {spec.paper}",
        f"formula  {spec.formula}",
        f"time     {spec.time}",
        f"memory   {spec.memory}",
        f"exact    {'yes' if spec.exact else 'no'}",
        "",
        "options",
        *(f"  {name} = {default!r}" for name, default in spec.options.items()),
        "",
        "supports",
    ]
    for name, value in can.items():
        note = ""
        if not value and name in spec.refusals:
            note = f"  ({spec.refusals[name]})"
        if value and name.endswith("_cross") and equal_lengths:
            note = "  (between equal lengths only)"
        lines.append(f"  {name:<16} {'yes' if value else 'no'}{note}")
    given = resolve_options(spec.name, {}, max_len=4096)
    example = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)
    lines += ["", f"ea.MultiHeadAttention(512, 8, variant={spec.name!r}{example})"]
    return lines
