"""Numbers, tables and the console as every printed table uses them."""

from __future__ import annotations

import math
import sys
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

ABSENT = "·"
MIB = 2**20
GIB = 2**30


def console(file: TextIO | None = None) -> Console:
    """A console that fits a terminal and never cuts anything elsewhere."""
    stream = sys.stdout if file is None else file
    if stream.isatty():
        return Console(file=stream, highlight=False)
    return Console(file=stream, highlight=False, width=10_000, no_color=True, soft_wrap=True)


def number(value: float) -> str:
    """Three significant digits without an exponent where it stays readable."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}" if digits < 7 else f"{value:.2e}"


def new_table(title: str) -> Table:
    """With a column of contestants, whose names are folded and never cut."""
    table = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("contestant", overflow="fold")
    return table


def number_column(table: Table, title: str) -> None:
    table.add_column(Text(title), justify="right", overflow="fold")
