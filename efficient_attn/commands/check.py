"""`efficient-attn check`: what a variant does, observed, beside what it declares."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.table import Table

from efficient_attn.attention.conformance import Observation, observe
from efficient_attn.commands.options import look_here, parse_options


def main(arguments: argparse.Namespace) -> int:
    """Print the matrix; 0 when all is as declared and every general property holds, else 1."""
    look_here()
    observation = observe(arguments.variant, parse_options(arguments.option or []))
    if arguments.json:
        print(json.dumps(observation.to_dict(), indent=1))
    else:
        _print(observation)
    return 0 if observation.agrees else 1


def _print(observation: Observation) -> None:
    options = ", ".join(f"{name}={value!r}" for name, value in observation.options.items())
    # Evidence holds masks' shapes and the like in brackets, which rich would read as markup.
    console = Console(markup=False, highlight=False)
    console.print(f"{observation.variant}({options})\n")
    capabilities = _table("capability", "declared", "observed", "evidence")
    for name, finding in observation.observed.items():
        declared = "yes" if observation.declared[name] else "no"
        capabilities.add_row(name, declared, finding.status, finding.evidence)
    console.print(capabilities)
    properties = _table("every variant promises", "", "evidence")
    for name, finding in observation.general.items():
        properties.add_row(name, finding.status, finding.evidence)
    console.print()
    console.print(properties)
    console.print()
    differences = observation.differences
    if not differences:
        skipped = sum(finding.status == "skipped" for finding in observation.general.values())
        rest = f"; {skipped} of them skipped" if skipped else ""
        console.print(f"observed as declared, and every general property holds{rest}")
        return
    console.print(f"differences: {len(differences)}")
    for line in differences:
        console.print(f"- {line}")


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1], overflow="fold")
    return table
