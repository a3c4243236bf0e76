"""`efficient-attn adapt`: another attention for a trained language model, and lessons in it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from efficient_attn.analysis.terminal import console, new_table, number, number_column
from efficient_attn.commands.options import parse_options
from efficient_attn.integrations.adapt import Adapted, Adapting, adapt
from efficient_attn.integrations.lessons import Lessons


def main(arguments: argparse.Namespace) -> int:
    """Adapt, save the model and print the metric before, after the swap and after adapting."""
    options = parse_options(arguments.option or [])
    lessons = Lessons.of(
        arguments.checkpoint, arguments.text, arguments.length, arguments.batch, arguments.seed
    )
    out = Path(arguments.out)
    how = Adapting(match_steps=arguments.match_steps, steps=arguments.steps, rate=arguments.rate)
    torch.manual_seed(arguments.seed)
    with _bars() as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, step: int, steps: int, loss: float) -> None:
            if stage not in tasks:
                words = {"match": "matching attention", "task": "learning the task"}
                tasks[stage] = bars.add_task(words[stage], total=steps, loss=loss)
            bars.update(tasks[stage], completed=step, loss=loss)

        result = adapt(
            lessons.model,
            arguments.variant,
            batches=lessons.batch,
            loss=lessons.loss,
            metric=lessons.metric,
            how=how,
            checkpoint=out / "adapt.pt",
            report=report,
            max_len=arguments.length,
            run=lessons.identity(),
            **options,
        )
    lessons.save(out / "model", arguments.variant, options, _evidence(result, lessons.unit))
    (out / "adapt.json").write_text(json.dumps(result.to_dict(), indent=1) + "\n")
    if arguments.json:
        print(json.dumps({**result.to_dict(), "unit": lessons.unit}, indent=1))
        return 0
    screen = console()
    table = new_table(f"{arguments.checkpoint}: full to {arguments.variant}")
    for title in ("before", "after the swap", "after matching", "after adapting", "minutes"):
        number_column(table, title)
    stages = (result.before, result.swapped, result.matched, result.adapted)
    table.add_row(lessons.unit, *map(number, stages), number(result.seconds / 60))
    screen.print(table)
    screen.print(f"Model: {out / 'model'}", markup=False)
    return 0


def _evidence(result: Adapted, unit: str) -> str:
    return (
        f"Adapted from full attention: {unit} {result.before:.4f} before, {result.swapped:.4f} "
        f"right after the swap, {result.adapted:.4f} after {result.match_steps} steps of matching "
        f"attention outputs and {result.steps} of the task."
    )


def _bars() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}  loss {task.fields[loss]:.4f}"),
        TimeRemainingColumn(),
        console=console(sys.stderr),
        disable=not sys.stderr.isatty(),
    )
