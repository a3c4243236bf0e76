"""Which records of one workload are shown to be slower than which, round by round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from efficient_attn.analysis.ratios import Ratio, divide, ratio, time_interval
from efficient_attn.analysis.select import Setting, length_of, pass_of, pattern_of
from efficient_attn.bench.intervals import ENOUGH
from efficient_attn.bench.record import Record

Workload = tuple[Setting, str, str, int]


class Rounds:
    """Ratios between rows of the same workload.

    runs: every record, contestants told apart by their options. rows: the newest of each. A ratio
    is that of the newest runs of both that share a cell, and otherwise divides the medians of the
    newest, as `pick` has it.
    """

    def __init__(self, runs: Iterable[Record], rows: Sequence[Record]) -> None:
        self._rows = rows
        self._runs: dict[tuple[Workload, str], list[Record]] = defaultdict(list)
        for record in sorted(runs, key=lambda record: record.created, reverse=True):
            if record.ok:
                self._runs[_workload(record), record.contestant].append(record)
        self._workloads = [_workload(record) for record in rows]
        self._mates: dict[Workload, list[int]] = defaultdict(list)
        for place, workload in enumerate(self._workloads):
            if rows[place].ok:
                self._mates[workload].append(place)

    def to_full(self, place: int) -> Ratio | None:
        """Time of a row over that of the contestant ``full``; None for full and without it."""
        record = self._rows[place]
        if not record.ok or record.contestant == "full":
            return None
        for other in self._mates[self._workloads[place]]:
            if self._rows[other].contestant == "full":
                return self._ratio(place, other)
        return None

    def ties(self, place: int) -> list[int] | None:
        """Rows than which this one is not shown to be slower: ratios whose interval reaches 1."""
        if not self._rows[place].ok:
            return None
        others = (other for other in self._mates[self._workloads[place]] if other != place)
        return [other for other in others if self._not_slower(place, other)] or None

    def _not_slower(self, place: int, other: int) -> bool:
        clear = _compared_at_once(*self._shared(place, other))
        return self._ratio(place, other).low <= 1.0 if clear is None else clear

    def _ratio(self, place: int, other: int) -> Ratio:
        mine, theirs = self._shared(place, other)
        if mine.cell == theirs.cell:
            return ratio(mine, theirs)
        return divide(time_interval(mine), time_interval(theirs))

    def _shared(self, place: int, other: int) -> tuple[Record, Record]:
        """The newest runs of both that share a cell; the two themselves where none do."""
        workload, record, partner = self._workloads[place], self._rows[place], self._rows[other]
        if record.cell == partner.cell:
            return record, partner
        for mine in self._runs[workload, record.contestant]:
            for theirs in self._runs[workload, partner.contestant]:
                if mine.cell == theirs.cell:
                    return mine, theirs
        return record, partner


def _compared_at_once(one: Record, other: Record) -> bool | None:
    """Whether the ratio's interval reaches 1, where the extreme samples tell; else None.

    The ends of a median's interval are samples where there are enough of these, and a ratio of
    rounds lies between the ratios of the extremes.
    """
    mine, theirs = one.result["samples_ms"], other.result["samples_ms"]
    if min(len(mine), len(theirs)) < ENOUGH:
        return None
    if min(mine) > max(theirs):
        return False
    return True if max(mine) <= min(theirs) else None


def _workload(record: Record) -> Workload:
    return Setting.of(record), pattern_of(record), pass_of(record), length_of(record)
