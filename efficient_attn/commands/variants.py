"""`efficient-attn list` and `describe`: the registry in words."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, fields

from rich.console import Console
from rich.table import Table

from efficient_attn.attention import (
    Capabilities,
    VariantSpec,
    describe,
    list_variants,
    make_core,
    resolve_options,
)

A_GRID = (4, 4)


def list_command(arguments: argparse.Namespace) -> int:
    """Print a line per variant, or with --matrix a Markdown table of what each can do."""
    filters = {
        name: True
        for name in ("causal", "cross", "weights", "decode", "exact")
        if getattr(arguments, name)
    }
    names = list_variants(**filters)
    if arguments.matrix and not arguments.json:
        print("\n".join(matrix_lines(names)))
        return 0
    specs = [describe(name) for name in names]
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


def matrix_lines(names: Sequence[str] | None = None) -> list[str]:
    """Variants × capabilities as the lines of a Markdown table; all variants when None.

    A cell is yes, no, or the condition of a yes: "equal lengths" for crossing between as many keys
    as queries, "on a sequence" for what a variant gives up when its input is a grid.
    """
    abilities = [field.name for field in fields(Capabilities) if field.name != "equal_lengths"]
    headings = ["variant", "exact", *(name.replace("_", " ") for name in abilities)]
    rows = [headings, ["---"] * len(headings)]
    for name in list_variants() if names is None else names:
        spec = describe(name)
        on_grid = _on_a_grid(name)
        cells = [_cell(ability, spec.capabilities, on_grid) for ability in abilities]
        rows.append([f"`{name}`", "yes" if spec.exact else "no", *cells])
    return [f"| {' | '.join(row)} |" for row in rows]


def _cell(ability: str, can: Capabilities, on_grid: Capabilities) -> str:
    if not getattr(can, ability):
        return "no"
    if ability.endswith("_cross") and can.equal_lengths:
        return "equal lengths"
    return "yes" if getattr(on_grid, ability) else "on a sequence"


def _on_a_grid(name: str) -> Capabilities:
    """What the variant can do when the surroundings give it a grid, if it takes note of one."""
    options = resolve_options(name, {}, max_len=A_GRID[0] * A_GRID[1], grid=A_GRID)
    if options.get("grid") is None:
        return describe(name).capabilities
    return make_core(name, 1, 2, **options).capabilities


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
