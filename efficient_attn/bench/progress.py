"""What a person sees while a sweep runs: a bar with the time left, and a line per finished cell."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from efficient_attn.bench.record import Record


class SweepProgress:
    """Progress over `total` contestant measurements. A pickled copy, in another process, is mute.

    Where the output is no terminal there is no bar, and the lines tell the time left.
    """

    def __init__(self, total: int, console: Console | None = None) -> None:
        self.console: Console | None = console or Console()
        self._total = total
        self._done = 0
        self._start = time.monotonic()
        self._bar: Progress | None = Progress(
            TextColumn("{task.percentage:>3.0f}%"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> SweepProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __reduce__(self) -> Any:
        return _Mute, ()

    def during(self, label: str, share: float, of: int, what: str) -> None:
        """`share` of a cell with `of` measurements is done."""
        if self._bar is not None:
            text = f"{label}  {what}" if what else label
            self._bar.update(self._task, completed=self._done + share * of, description=text)

    def finished(self, label: str, records: Sequence[Record], seconds: float) -> None:
        """A cell is complete and stored."""
        self._done += len(records)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        if self.console is None:
            return
        counts = Counter(record.status for record in records)
        summary = ", ".join(f"{number} {status}" for status, number in counts.items())
        line = f"[{self._done}/{self._total}]  {label}  {summary}  ({seconds:.0f} s)"
        left = self._time_left()
        if left and not self.console.is_terminal:
            line += f"  about {left} left"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _time_left(self) -> str:
        if not self._done or self._done >= self._total:
            return ""
        spent = time.monotonic() - self._start
        seconds = spent / self._done * (self._total - self._done)
        return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


class _Mute(SweepProgress):
    """Stands in for the bar in processes that have no terminal of their own."""

    def __init__(self) -> None:
        self.console = None
        self._bar = None
        self._total = self._done = 0
        self._start = time.monotonic()
