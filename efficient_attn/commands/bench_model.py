"""`efficient-attn bench-model`: what another attention does to the person's whole model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.table import Table
from rich.text import Text

from efficient_attn.analysis.ratios import Ratio
from efficient_attn.analysis.terminal import ABSENT, MIB, console, new_table, number, number_column
from efficient_attn.analysis.whole_model import ORIGINAL, WITHOUT, Row, flips, rows
from efficient_attn.bench.bench_model import bench_model
from efficient_attn.bench.model import HUGGING_FACE
from efficient_attn.commands.options import parse_options
from efficient_attn.plots.render import save
from efficient_attn.plots.whole_model import whole_model_figure


def main(arguments: argparse.Namespace) -> int:
    """Measure what is missing and print the table; 0 when every variant was measured or refused."""
    source = arguments.model or HUGGING_FACE + arguments.hf_config
    records = bench_model(
        source,
        _numbers(arguments.lengths),
        None if arguments.variants is None else _names(arguments.variants),
        options=_options(arguments.option or []),
        results=arguments.results,
        batch=arguments.batch,
        pass_=arguments.pass_,
        dtype=arguments.dtype,
        device=arguments.device,
        threads=arguments.threads,
    )
    found, where = rows(records), flips(records)
    figures = [
        str(save(whole_model_figure(found), Path(arguments.results) / f"model.{kind}"))
        for kind in ("png", "svg")
        if any(row.ms for row in found)
    ]
    if arguments.json:
        print(
            json.dumps(
                {
                    "rows": [row.to_dict() for row in found],
                    "crossovers": [vars(flip) for flip in where],
                    "figures": figures,
                },
                indent=1,
            )
        )
    else:
        out = console()
        for length in sorted({row.length for row in found}):
            out.print(_table([row for row in found if row.length == length], source))
        for flip in where:
            out.print(
                f"{flip.contestant}: the model {flip.whole or 'unknown'}; "
                f"attention alone {flip.alone or 'unknown'}",
                markup=False,
            )
        for row in found:
            if row.reason:
                out.print(f"{row.contestant}, N={row.length}: {row.reason}", markup=False)
        out.print(f"Records: {Path(arguments.results) / 'records'}", markup=False)
        for figure in figures:
            out.print(f"Figure: {figure}", markup=False)
    return 0 if all(row.status in ("ok", "unsupported") for row in found) else 1


def _table(found: list[Row], source: str) -> Table:
    table = new_table(f"{source}, N={found[0].length}")
    for title in (
        "ms (95 %)",
        "time / original\n(95 %)",
        "in attention",
        "attention alone\n/ full (95 %)",
        "peak MiB",
        "drift",
    ):
        number_column(table, title)
    limit = next((row for row in found if row.contestant == WITHOUT), None)
    for row in found:
        if row.ms is None:
            table.add_row(Text(row.contestant), Text(row.status), *[ABSENT] * 5)
            continue
        value, low, high = row.ms
        table.add_row(
            Text(row.contestant),
            f"{number(value)} ({number(low)}–{number(high)})",
            _ratio(row.to_original),
            ABSENT if row.share is None else f"{row.share[0]:.0%}",
            _ratio(row.alone),
            ABSENT if row.peak_bytes is None else number(row.peak_bytes / MIB),
            ABSENT if row.drift is None else number(row.drift),
        )
    if limit is not None and limit.to_original is not None:
        table.caption = Text(
            f"{WITHOUT}: tokens do not meet; the most that a swap can gain, "
            f"{1 / limit.to_original.value:.2f} times as fast. Drift: from {ORIGINAL}."
        )
        table.caption_justify = "left"
    return table


def _ratio(found: Ratio | None) -> str:
    if found is None:
        return ABSENT
    return f"{found.value:.2f} ({found.low:.2f}–{found.high:.2f})"


def _names(words: str) -> list[str]:
    return [name.strip() for name in words.split(",") if name.strip()]


def _numbers(words: str) -> list[int]:
    try:
        found = sorted({int(word) for word in _names(words)})
    except ValueError:
        found = []
    if not found:
        raise ValueError(f"--lengths {words!r}: write whole numbers, e.g. 512,1024,2048")
    return found


def _options(pairs: list[str]) -> dict[str, dict[str, object]]:
    """``["local_window.window=64"]`` as ``{"local_window": {"window": 64}}``."""
    found: dict[str, dict[str, object]] = {}
    for pair in pairs:
        variant, dot, rest = pair.partition(".")
        if not dot:
            raise ValueError(f"--option {pair!r}: write VARIANT.NAME=VALUE, local_window.window=64")
        given = found.setdefault(variant, {})
        given.update(parse_options([rest]))
    return found
