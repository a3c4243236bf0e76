"""`efficient-attn sweep`: plan, measure what is missing, say what came out."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

from rich.console import Console

from efficient_attn.analysis.report_text import print_closing, print_samples, print_slopes
from efficient_attn.analysis.select import PEER
from efficient_attn.bench.cell import start_server
from efficient_attn.bench.estimate import Estimate, estimate
from efficient_attn.bench.plan import Redo
from efficient_attn.bench.progress import SweepProgress
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.bench.sweep import Plan, SweepError, launch, make_plan, missing_contestants
from efficient_attn.commands.sweep_words import EXAMPLE, add_words

ALL_DONE, SOME_FAILED, WRONG_REQUEST, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str]) -> int:
    """Hydra overrides and flags, in any order; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="efficient-attn sweep",
        epilog=f"example:\n  {EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_words(parser)
    words = parser.parse_intermixed_args(list(arguments))
    if words.json and not words.dry_run:
        parser.error("--json goes with --dry-run")
    console = Console()
    try:
        redo: Redo | None = "all" if words.force else "failed" if words.only == "failed" else None
        plan = make_plan(words.overrides, redo)
        if words.dry_run:
            return _list_cells(plan, words.earlier, console, as_json=words.json)
        return run(plan, console)
    except (SweepError, OSError) as error:
        Console(stderr=True).print(f"efficient-attn sweep: {error}", markup=False, soft_wrap=True)
        return WRONG_REQUEST
    except KeyboardInterrupt:
        console.print("Interrupted. The same command goes on with what is missing.")
        return INTERRUPTED


def run(plan: Plan, console: Console) -> int:
    """Measure what the store lacks, then tell what the results say."""
    start = time.monotonic()
    store = plan.store
    missing = [key for key in plan.keys if not store.has(key)]
    asked = len(plan.keys)
    _say(
        console,
        f"{asked} measurements asked, {asked - len(missing)} already in {plan.results}, "
        f"{len(missing)} to do",
    )
    lost: list[str] = []
    if missing:
        start_server()
        with SweepProgress(len(missing), console) as progress:
            lost = launch(plan, progress)
    else:
        _say(console, "Nothing to measure: every record is there.")
    code = _conclude(plan, lost, console)
    if missing:
        fresh = [record for key in missing if store.has(key) and (record := store.get(key))]
        _say(console, _time_spent(fresh, time.monotonic() - start))
    _say(console, f"Next: efficient-attn plot {plan.results}")
    return code


def _conclude(plan: Plan, problems: Sequence[str], console: Console) -> int:
    """Closing tables with every failure, and what has no record; returns the exit code."""
    store = plan.store
    records = [record for key in plan.keys if store.has(key) and (record := store.get(key))]
    shown, remarks = _peers_marked(plan, records, console)
    print_closing(shown)
    if any(record.measure == "cost" for record in records):
        print_slopes(shown)
    print_samples(shown)
    for remark in remarks:
        _say(console, remark)
    failed = [record for record in records if record.status not in ("ok", "unsupported")]
    lost = len(plan.keys) - len(records)
    for problem in problems:
        _say(console, f"Lost: {problem}")
    _say(
        console,
        f"{len(records) - len(failed)} of {len(plan.keys)} measurements done"
        + (f", {len(failed)} failed" if failed else "")
        + (f", {lost} without a record (run the same command again)" if lost else "")
        + f". Records: {plan.results / 'records'}",
    )
    return SOME_FAILED if failed or lost else ALL_DONE


def _peers_marked(
    plan: Plan, records: list[Record], console: Console
) -> tuple[list[Record], list[str]]:
    """The records with other people's implementations marked that fail a probe, and what fails."""
    if not any(record.contestant.startswith(PEER) for record in records):
        return records, []
    from efficient_attn.peers import conform

    _say(console, "Probing the peers that have no verdict yet")
    verdicts = conform.verdicts(plan.store.folder, records)
    asked = {record.contestant for record in records}
    return conform.marked(records, verdicts), conform.remarks(
        {name: verdict for name, verdict in verdicts.items() if name in asked}
    )


def _time_spent(records: Sequence[Record], wall: float) -> str:
    """Wall time, and what of the cells' own time was neither warm-up nor timed."""
    cells = {record.cell: record.environment.get("cell_seconds") for record in records}
    known = [seconds for seconds in cells.values() if seconds]
    text = f"Took {wall:.0f} s"
    total = sum(seconds["total"] for seconds in known)
    if not total:
        return text + "."
    useful = sum(seconds["warm_up"] + seconds["timed"] for seconds in known)
    return f"{text}; harness {1 - useful / total:.0%} of {total:.0f} s in timed cells."


def _list_cells(plan: Plan, earlier: str | None, console: Console, *, as_json: bool) -> int:
    """What would be measured, and how long that may take; nothing is measured."""
    store = plan.store
    records = [*store.read(), *(Store(earlier).read() if earlier else ())]
    rows: list[tuple[str, list[str], Estimate]] = []
    for cell in plan.cells:
        missing = missing_contestants(cell, store)
        names = [one.name for one in missing]
        rows.append((cell.label, names, estimate(cell, missing, records)))
    seconds = sum(row.seconds or 0.0 for _, _, row in rows)
    unknown = sum(row.seconds is None for _, _, row in rows)
    if as_json:
        listed = [
            {"cell": label, "contestants": names, "seconds": row.seconds, "source": row.source}
            for label, names, row in rows
        ]
        total = {"seconds": seconds, "cells_unknown": unknown}
        counts = {"asked": len(plan.keys), "missing": plan.missing()}
        print(json.dumps({"cells": listed, "estimate": total, "measurements": counts}, indent=1))
        return ALL_DONE
    for label, names, row in rows:
        told = row.source if row.seconds is None else f"{_duration(row.seconds)}, from {row.source}"
        time_text = f"  (estimate {told})" if names else ""
        _say(console, f"{label}: {', '.join(names) or 'complete'}{time_text}")
    _say(console, f"{plan.missing()} of {len(plan.keys)} measurements to do")
    if plan.missing():
        known = _duration(seconds) if seconds or not unknown else ""
        rest = f"{unknown} cells of unknown duration" if unknown else ""
        text = ", and ".join(filter(None, [known, rest]))
        _say(console, f"Estimate, one cell after the other: {text}")
    return ALL_DONE


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
