"""`efficient-attn sweep`: plan, measure what is missing, say what came out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from efficient_attn.analysis.report_text import print_closing, print_slopes
from efficient_attn.bench.progress import SweepProgress
from efficient_attn.bench.sweep import Plan, SweepError, launch, make_plan, missing_contestants

ALL_DONE, SOME_FAILED, WRONG_REQUEST, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str]) -> int:
    """Hydra overrides, and ``--dry-run``; returns the exit code."""
    console = Console()
    try:
        plan = make_plan([argument for argument in arguments if argument != "--dry-run"])
        return _list_cells(plan, console) if "--dry-run" in arguments else run(plan, console)
    except (SweepError, OSError) as error:
        Console(stderr=True).print(f"efficient-attn sweep: {error}", markup=False, soft_wrap=True)
        return WRONG_REQUEST
    except KeyboardInterrupt:
        console.print("Interrupted. The same command goes on with what is missing.")
        return INTERRUPTED


def run(plan: Plan, console: Console) -> int:
    """Measure what the store lacks, then tell what the results say."""
    asked, missing = len(plan.keys), plan.missing()
    _say(
        console,
        f"{asked} measurements asked, {asked - missing} already in {plan.results}, {missing} to do",
    )
    if missing:
        with SweepProgress(missing, console) as progress:
            launch(plan, progress)
    else:
        _say(console, "Nothing to measure: every record is there.")
    return _conclude(plan, console)


def _conclude(plan: Plan, console: Console) -> int:
    """Closing tables with every failure, where to look next; returns the exit code."""
    records = [record for key in plan.keys if (record := plan.store.get(key)) is not None]
    print_closing(records)
    if any(record.measure == "cost" for record in records):
        print_slopes(records)
    failed = [record for record in records if record.status not in ("ok", "unsupported")]
    lost = len(plan.keys) - len(records)
    _say(
        console,
        f"{len(records) - len(failed)} of {len(plan.keys)} measurements done"
        + (f", {len(failed)} failed" if failed else "")
        + (f", {lost} without a record (run the same command again)" if lost else "")
        + f". Records: {plan.store.records_folder}",
    )
    _say(console, f"Next: efficient-attn plot {plan.results}")
    return SOME_FAILED if failed or lost else ALL_DONE


def _list_cells(plan: Plan, console: Console) -> int:
    for cell in plan.cells:
        names = [one.name for one in missing_contestants(cell, plan.store)]
        _say(console, f"{cell.label}: {', '.join(names) or 'complete'}")
    _say(console, f"{plan.missing()} of {len(plan.keys)} measurements to do")
    return ALL_DONE


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
