"""Who is fastest at every length, and by how much: measured, or on paper beyond what was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from efficient_attn.analysis.ratios import Ratio, divide, ratio
from efficient_attn.analysis.scaling import (
    MIN_LENGTHS,
    ScalingFit,
    fit_scaling,
    memory_curve,
    time_curve,
)
from efficient_attn.analysis.select import (
    PEER,
    contestants_in,
    length_of,
    pass_of,
    passes_in,
    pattern_of,
    patterns_in,
)
from efficient_attn.bench.intervals import Interval
from efficient_attn.bench.record import Record


@dataclass(frozen=True)
class Fastest:
    """The fastest of the variants (other people's implementations aside) at one length.

    even: who else may be, since the interval of the ratio holds 1.
    gain: time of full over the time of the fastest; None where full has no time.
    failed: who was tried and gave no time, with its status.
    predicted: from the scaling fits, beyond the longest measured length.
    """

    pattern: str
    pass_: str
    length: int
    contestant: str
    even: tuple[str, ...]
    gain: Ratio | None
    failed: tuple[tuple[str, str], ...] = ()
    predicted: bool = False


def fastest(records: Iterable[Record], until: int | None = None) -> list[Fastest]:
    """Of every pattern, pass and length of one setting's records that somebody was timed at.

    until: predict at doubled lengths beyond the longest measured one, up to this.
    """
    mine = [record for record in records if not record.contestant.startswith(PEER)]
    found: list[Fastest] = []
    for pattern in patterns_in(mine):
        for pass_ in passes_in(mine):
            here = [r for r in mine if (pattern_of(r), pass_of(r)) == (pattern, pass_)]
            for length in sorted({length_of(record) for record in here}):
                taken = [record for record in here if length_of(record) == length]
                if any(record.ok for record in taken):
                    found.append(_measured(taken, pattern, pass_, length))
            found += _predicted(here, pattern, pass_, until)
    return found


def doubled(lengths: Iterable[int], until: int | None) -> list[int]:
    """Lengths to predict at: twice the longest, four times, and so on up to `until`."""
    length, beyond = 2 * max(lengths), []
    while until is not None and length <= until:
        beyond.append(length)
        length *= 2
    return beyond


def fits(records: Iterable[Record], quantity: str = "time") -> dict[str, ScalingFit]:
    """Scaling fits of one pattern and pass by contestant, where there are enough lengths.

    quantity: ``time`` or ``memory``.
    """
    records = list(records)
    curve_of = {"time": time_curve, "memory": memory_curve}[quantity]
    curves = {
        name: curve_of(record for record in records if record.contestant == name)
        for name in contestants_in(records)
    }
    return {
        name: fit_scaling(curve)
        for name, curve in curves.items()
        if len(curve.lengths) >= MIN_LENGTHS
    }


def _measured(records: list[Record], pattern: str, pass_: str, length: int) -> Fastest:
    timed = sorted((r for r in records if r.ok), key=lambda record: record.result["median_ms"])
    best = timed[0]
    full = next((record for record in timed if record.contestant == "full"), None)
    return Fastest(
        pattern,
        pass_,
        length,
        best.contestant,
        even=tuple(other.contestant for other in timed[1:] if ratio(other, best).low <= 1),
        gain=None if full is None else ratio(full, best),
        failed=tuple((r.contestant, r.status) for r in records if not r.ok),
    )


def _predicted(
    records: list[Record], pattern: str, pass_: str, until: int | None
) -> Iterable[Fastest]:
    timed = [length_of(record) for record in records if record.ok]
    if not timed:
        return
    known = fits(records)
    for length in doubled(timed, until):
        there = {
            name: Interval(at.value, at.low, at.high, len(fit.lengths), 0.0)
            for name, fit in known.items()
            for at in [fit.at(length)]
        }
        if not there:
            return
        best = min(there, key=lambda name: there[name].value)
        yield Fastest(
            pattern,
            pass_,
            length,
            best,
            even=tuple(n for n in there if n != best and there[n].low <= there[best].high),
            gain=divide(there["full"], there[best]) if "full" in there else None,
            predicted=True,
        )
