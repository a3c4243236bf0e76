"""What a person sees while a sweep runs: a bar with the time left, and a line per finished cell."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from efficient_attn.bench.cell import Cell
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store

_POLL_S = 0.5


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
        return Mute, ()

    def during(self, label: str, share: float, of: int, what: str) -> None:
        """`share` of a cell with `of` measurements is done."""
        if self._bar is not None:
            text = f"{label}  {what}" if what else label
            self._bar.update(self._task, completed=self._done + share * of, description=text)

    def waiting(self, label: str, why: str) -> None:
        """A cell cannot begin yet."""
        self.during(label, 0.0, 0, why)
        if self.console is not None and not self.console.is_terminal:
            self._print(f"{label}  {why}")

    def finished(self, label: str, records: Sequence[Record], seconds: float | None) -> None:
        """A cell is complete and stored; seconds: None when it was measured elsewhere."""
        self._done += len(records)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        if self.console is None:
            return
        counts = Counter(record.status for record in records)
        summary = ", ".join(f"{number} {status}" for status, number in counts.items())
        line = f"[{self._done}/{self._total}]  {label}  {summary}"
        line += "" if seconds is None else f"  ({seconds:.0f} s)"
        left = self._time_left()
        if left and not self.console.is_terminal:
            line += f"  about {left} left"
        self._print(line)

    def _print(self, line: str) -> None:
        if self.console is not None:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _time_left(self) -> str:
        if not self._done or self._done >= self._total:
            return ""
        spent = time.monotonic() - self._start
        seconds = spent / self._done * (self._total - self._done)
        return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


class Mute(SweepProgress):
    """Stands in for the bar in processes that have no terminal of their own."""

    def __init__(self) -> None:
        self.console = None
        self._bar = None
        self._total = self._done = 0
        self._start = time.monotonic()


@contextmanager
def watching(cells: Sequence[Cell], store: Store, progress: SweepProgress) -> Iterator[None]:
    """While jobs run in other processes: tell what the store shows of them."""
    awaited = {number: _missing(cell, store) for number, cell in enumerate(cells)}
    ended = threading.Event()

    def look() -> None:
        for number, keys in list(awaited.items()):
            arrived = [record for key in keys if store.has(key) and (record := store.get(key))]
            if keys and len(arrived) == len(keys):
                progress.finished(cells[number].label, arrived, None)
                awaited[number] = []
            elif arrived:
                progress.during(cells[number].label, len(arrived) / len(keys), len(keys), "")

    def poll() -> None:
        while not ended.wait(_POLL_S):
            look()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()


def _missing(cell: Cell, store: Store) -> list[str]:
    return [key for one in cell.contestants if not store.has(key := cell.key(one))]
