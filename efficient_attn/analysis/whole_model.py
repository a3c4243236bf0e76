"""What a swap of attention does to a whole model, beside what it does to attention alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from efficient_attn.analysis.crossover import in_words, read
from efficient_attn.analysis.ratio_curve import ratio_curve
from efficient_attn.analysis.ratios import Ratio, ratio, time_interval
from efficient_attn.bench.record import Record

ORIGINAL, WITHOUT, FULL = "original", "no attention", "full"


@dataclass(frozen=True)
class Row:
    """A model with one attention at one length.

    ms: median and ends of its interval; to_original: its time over that of the model as it is, and
    alone: the time of attention by itself over that of full, below 1 is faster; share: of its time
    that is spent in attention, in [0, 1]. None where it is not known; reason: why there is no time.
    """

    length: int
    contestant: str
    status: str
    reason: str | None
    ms: tuple[float, float, float] | None = None
    to_original: Ratio | None = None
    share: tuple[float, float, float] | None = None
    peak_bytes: int | None = None
    parameters: int | None = None
    drift: float | None = None
    alone: Ratio | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Flip:
    """From which length on a variant is the faster one: the whole model, and attention alone."""

    contestant: str
    whole: str | None
    alone: str | None


def rows(records: Sequence[Record]) -> list[Row]:
    """By length, the model as it is first and without attention second."""
    models = [record for record in records if record.measure == "model"]
    costs = {
        (record.workload.length, record.contestant): record
        for record in records
        if record.measure == "cost" and record.ok
    }
    found = []
    for length in sorted({record.request["length"] for record in models}):
        here = {r.contestant: r for r in models if r.request["length"] == length}
        original, free = (_ok(here.get(name)) for name in (ORIGINAL, WITHOUT))
        for name, record in here.items():
            if not record.ok:
                found.append(Row(length, name, record.status, record.reason))
                continue
            ms = time_interval(record)
            mine, full = costs.get((length, name)), costs.get((length, FULL))
            found.append(
                Row(
                    length,
                    name,
                    "ok",
                    None,
                    (ms.value, ms.low, ms.high),
                    None if original is None or name == ORIGINAL else ratio(record, original),
                    None if free is None or name == WITHOUT else _share(ratio(free, record)),
                    record.result["peak_tensor_bytes"],
                    record.result["parameters"],
                    record.result["drift"],
                    None if mine is None or full is None or name == FULL else ratio(mine, full),
                )
            )
    return found


def flips(records: Sequence[Record]) -> list[Flip]:
    """Where each variant begins to be faster, the model against itself as it was and attention
    alone against full."""
    whole = _curves([r for r in records if r.measure == "model"], ORIGINAL)
    alone = _curves([r for r in records if r.measure == "cost"], FULL)
    names = [name for name in whole if name != WITHOUT]
    names += [name for name in alone if name not in names]
    return [Flip(name, whole.get(name), alone.get(name)) for name in names]


def _curves(records: Sequence[Record], baseline: str) -> dict[str, str]:
    """The crossing of each contestant with the baseline, in words."""
    times: dict[str, dict[int, Record]] = {}
    for record in records:
        if record.ok:
            times.setdefault(record.contestant, {})[record.request["length"]] = record
    found = {}
    for name, mine in times.items():
        lengths = sorted(set(mine) & set(times.get(baseline, {})))
        if name == baseline or len(lengths) < 2:
            continue
        base = times[baseline]
        curve = ratio_curve([mine[n] for n in lengths], [base[n] for n in lengths], lengths)
        found[name] = in_words(*read(curve), lengths)
    return found


def _share(free: Ratio) -> tuple[float, float, float]:
    """Of a model's time, what is gone without attention."""
    value, low, high = (min(1.0, max(0.0, 1 - each)) for each in (free.value, free.high, free.low))
    return value, low, high


def _ok(record: Record | None) -> Record | None:
    return record if record is not None and record.ok else None
