"""From which length on a contestant is faster than full, read between measured lengths only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from efficient_attn.analysis.ratios import Ratio, ratio
from efficient_attn.analysis.select import (
    Setting,
    by_setting,
    contestants_in,
    length_of,
    pass_of,
    passes_in,
    pattern_of,
    patterns_in,
)
from efficient_attn.bench.record import Record


@dataclass(frozen=True)
class Crossover:
    """Where a contestant's time over full's falls below 1 for good.

    length: the crossing, interpolated log-log between two measured lengths; ``None`` where the
        ratio still is 1 or more at the longest length, 0 where it is below 1 at every length.
    low, high: the same for the ends of the ratio's interval, so they hold the noise of the ratios
        and not the bend of the curve between two lengths. 0 and None mean what they mean for
        `length`: that end lies before the first or beyond the last measured length.
    lengths: what both were measured at. paired: whether every ratio was formed within a cell.
    """

    contestant: str
    setting: Setting
    pattern: str
    pass_: str
    length: float | None
    low: float | None
    high: float | None
    lengths: tuple[int, ...]
    paired: bool

    def __str__(self) -> str:
        first, last = self.lengths[0], self.lengths[-1]
        if self.length is None:
            tail = f"; cannot be excluded from N={self.low:.0f} on" if self.low else ""
            return f"not reached up to N={last}" + tail
        if self.length == 0:
            sure = "" if self.high == 0 else f"; sure {_from(self.high, last)}"
            return f"faster from N={first} on{sure}"
        low = f"below {first}" if self.low == 0 else f"{self.low:.0f}"
        high = f"beyond {last}" if self.high is None else f"{self.high:.0f}"
        return f"N={self.length:.0f} ({low} to {high})"


def crossovers(records: Iterable[Record]) -> list[Crossover]:
    """Crossover with full for every contestant, setting, pattern and pass with common lengths."""
    found = []
    for setting, members in by_setting(records).items():
        for pattern in patterns_in(members):
            for pass_ in passes_in(members):
                here = [
                    record
                    for record in members
                    if record.ok and (pattern_of(record), pass_of(record)) == (pattern, pass_)
                ]
                found += _against_full(here, setting, pattern, pass_)
    return found


def _against_full(
    records: list[Record], setting: Setting, pattern: str, pass_: str
) -> list[Crossover]:
    full = {length_of(record): record for record in records if record.contestant == "full"}
    found = []
    for name in contestants_in(records):
        mine = {length_of(record): record for record in records if record.contestant == name}
        common = sorted(set(mine) & set(full))
        if name == "full" or not common:
            continue
        ratios = [ratio(mine[length], full[length]) for length in common]
        found.append(_crossover(name, setting, pattern, pass_, common, ratios))
    return found


def _crossover(
    name: str,
    setting: Setting,
    pattern: str,
    pass_: str,
    lengths: list[int],
    ratios: list[Ratio],
) -> Crossover:
    return Crossover(
        contestant=name,
        setting=setting,
        pattern=pattern,
        pass_=pass_,
        length=_crossing(lengths, [item.value for item in ratios]),
        low=_crossing(lengths, [item.low for item in ratios]),
        high=_crossing(lengths, [item.high for item in ratios]),
        lengths=tuple(lengths),
        paired=all(item.paired for item in ratios),
    )


def _crossing(lengths: Sequence[int], ratios: Sequence[float]) -> float | None:
    """Length after which the ratios stay below 1; 0 when always, None when not at the last."""
    above = [i for i, value in enumerate(ratios) if value >= 1]
    if not above:
        return 0.0
    i = above[-1]
    if i == len(ratios) - 1:
        return None
    before, after = ratios[i], ratios[i + 1]
    if not math.isfinite(before) or after <= 0:
        return float(lengths[i + 1])
    share = math.log(before) / (math.log(before) - math.log(after))
    return float(lengths[i] * (lengths[i + 1] / lengths[i]) ** share)


def _from(length: float | None, last: int) -> str:
    return f"only beyond N={last}" if length is None else f"from N={length:.0f} on"
