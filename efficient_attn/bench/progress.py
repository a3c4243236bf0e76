"""What a person sees while a sweep runs: a bar with the time left, and a line per finished cell."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from efficient_attn.bench.cell import Cell
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.bench.training_state import TrainingState, duration, sparkline

BETWEEN_LINES_S = 30.0
CURVE_WIDTH = 20
_POLL_S = 0.5


class SweepProgress:
    """Progress over `total` contestant measurements. A pickled copy, in another process, is mute.

    In a terminal there are a bar and, below it, a line with a curve for every running training.
    Elsewhere the lines tell the time left, and of a training now and then how it goes on.
    """

    def __init__(
        self,
        total: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or Console()
        self._total = total
        self._done = 0
        self._share = 0.0
        self._clock = clock
        self._start = clock()
        self._trainings: Sequence[TrainingState] = ()
        self._told: dict[tuple[str, str], float] = {}
        self._bar = Progress(
            TextColumn("{task.percentage:>3.0f}%"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=total)
        self._live: Live | None = None
        if self.console.is_terminal:
            self._live = Live(get_renderable=self._picture, console=self.console, transient=True)

    def __enter__(self) -> SweepProgress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def __reduce__(self) -> Any:
        return Mute, ()

    def during(
        self,
        label: str,
        share: float,
        of: int,
        what: str,
        trainings: Sequence[TrainingState] = (),
    ) -> None:
        """`share` of a cell with `of` measurements is done, and how its trainings go on."""
        self._share = share * of
        self._trainings = trainings
        text = f"{label}  {what}" if what else label
        self._bar.update(self._task, completed=self._done + share * of, description=text)
        if self._live is None:
            for state in trainings:
                if state.running:
                    self._tell_now_and_then(label, state)

    def waiting(self, label: str, why: str) -> None:
        """A cell cannot begin yet."""
        self.during(label, 0.0, 0, why)
        if self._live is None:
            self._print(f"{label}  {why}")

    def stored(self, label: str, record: Record) -> None:
        """One contestant is measured and stored; of a training it is told what came out."""
        if record.measure == "accuracy":
            self._print(f"{label}  {record.contestant}: {_outcome(record)}")

    def finished(self, label: str, records: Sequence[Record], seconds: float | None) -> None:
        """A cell is complete and stored; seconds: None when it was measured elsewhere."""
        self._done += len(records)
        self._share = 0.0
        self._trainings = ()
        self._bar.update(self._task, completed=self._done)
        counts = Counter(record.status for record in records)
        summary = ", ".join(f"{number} {status}" for status, number in counts.items())
        line = f"[{self._done}/{self._total}]  {label}  {summary}"
        line += "" if seconds is None else f"  ({seconds:.0f} s)"
        left = self._time_left()
        if left and self._live is None:
            line += f"  about {left} left"
        self._print(line)

    def _tell_now_and_then(self, label: str, state: TrainingState) -> None:
        now = self._clock()
        if now - self._told.setdefault((label, state.name), now) < BETWEEN_LINES_S:
            return
        self._told[label, state.name] = now
        words = ", ".join(word for word in state.words()[1:] if word)
        left = self._time_left()
        sweep = f"  [sweep {(self._done + self._share) / self._total:.0%}"
        sweep += f", about {left} left]" if left else "]"
        self._print(f"{label}  {state.name}: {words}{sweep}")

    def _picture(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for state in self._trainings:
            if state.running:
                curve = Text(sparkline(state.losses, CURVE_WIDTH))
                table.add_row(*map(Text, state.words()), curve)
        return Group(self._bar, table) if table.row_count else self._bar

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _time_left(self) -> str:
        done = self._done + self._share
        if not done or done >= self._total:
            return ""
        return duration((self._clock() - self._start) / done * (self._total - done))


def _outcome(record: Record) -> str:
    if not record.ok:
        return record.status
    result = record.result
    return (
        f"{result['metric']} {result['value']:.3f}, trained in {duration(result['train_seconds'])} "
        f"at the rate {result['learning_rate']:g}"
    )


class Mute(SweepProgress):
    """Stands in for the bar in processes that have no terminal of their own."""

    def __init__(self) -> None:
        super().__init__(1, Console(quiet=True))


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
