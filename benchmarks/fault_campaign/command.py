"""The command line of the campaign."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from fault_campaign.contests import contestant_faults
from fault_campaign.infrastructure import infrastructure_faults
from fault_campaign.kills import kills
from fault_campaign.outcome import Outcome, table
from fault_campaign.scene import scene

WIDE = 200  # characters of a line in a file or a pipe


def main(arguments: Sequence[str], description: str | None) -> int:
    """Run the campaign and print its table; 0 when every verdict is "ok", else 1."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10, help="kills of a sweep (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    asked = parser.parse_args(arguments)
    progress = Console(stderr=True)
    outcomes: list[Outcome] = []
    start = time.monotonic()
    with scene() as place:
        for part in (
            contestant_faults(place),
            infrastructure_faults(place),
            kills(place, asked.kills, asked.seed),
        ):
            for outcome in part:
                outcomes.append(outcome)
                line = f"{time.monotonic() - start:4.0f} s  {outcome.fault}: {outcome.verdict}"
                progress.print(line, markup=False, highlight=False)
    if asked.json:
        rows = [{**asdict(one), "verdict": one.verdict} for one in outcomes]
        print(json.dumps(rows, indent=1))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=WIDE)
        console.print(table(outcomes))
    return 0 if all(one.ok for one in outcomes) else 1
