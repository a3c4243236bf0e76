"""Contestants that were measured under one class of workload, at any size, and their cost models.

What every size of a class has in common is its `Ground`: pattern class, pass, number format,
machine. On split heads (scope ``core``) attention from one sequence to another of the same length
is the same computation as self-attention, so the two share a ground there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from efficient_attn.analysis.cost_fit import Point, fit_rivals
from efficient_attn.analysis.knobs import KNOBS, scored
from efficient_attn.analysis.predict import CostModel, Size
from efficient_attn.analysis.ratios import time_interval
from efficient_attn.analysis.scaling import peak_bytes
from efficient_attn.analysis.select import (
    Setting,
    contestant_order,
    contradicts,
    entry_name,
    identity,
)
from efficient_attn.bench.record import Record
from efficient_attn.bench.workload import Workload

# A 95 % interval is 2 × 1.96 standard errors wide.
_STANDARD_ERRORS = 3.92


@dataclass(frozen=True)
class Ground:
    """What cost models keep fixed. cross: only outside scope core; padded: whether some are."""

    causal: bool
    cross: bool
    pass_: str
    scope: str
    dtype: str
    device: str
    compile: bool
    padded: bool
    threads: int | None
    machine: str

    @classmethod
    def of(cls, record: Record) -> Ground:
        work = record.workload
        return cls.asked(work, threads=work.threads, machine=Setting.of(record).machine)

    @classmethod
    def asked(cls, work: Workload, *, threads: int | None, machine: str) -> Ground:
        return cls(
            causal=work.causal,
            cross=work.cross and work.scope != "core",
            pass_=work.pass_,
            scope=work.scope,
            dtype=work.dtype,
            device=work.device,
            compile=work.compile,
            padded=work.padding > 0,
            threads=threads,
            machine=machine,
        )

    def to_dict(self) -> dict[str, Any]:
        return {name.rstrip("_"): value for name, value in asdict(self).items()}


@dataclass
class Entrant:
    """A contestant with all options fixed but its knob. records: of every size and status."""

    name: str
    variant: str
    fixed: dict[str, Any]
    records: list[Record] = field(default_factory=list)

    @cached_property
    def done(self) -> list[Record]:
        return [record for record in self.records if record.ok]

    @cached_property
    def knob(self) -> str | None:
        """Name of the option that its records vary, None for a variant without."""
        name = KNOBS.get(self.variant)
        return name if any(name in record.options for record in self.done) else None

    @cached_property
    def usual(self) -> dict[str, Any] | None:
        """The options that most of its ok records have, of equals the largest knob; None without.

        They are those of the newest of these records.
        """
        sets: dict[str, list[Record]] = defaultdict(list)
        for record in self.done:
            sets[str(record.options.get(self.knob or ""))].append(record)
        if not sets:
            return None
        most = max(sets.values(), key=lambda same: (len(same), size_of(same[0]).knob))
        return max(most, key=lambda record: record.created).options

    def points(self, quantity: str) -> list[Point]:
        """One point per size, of its newest ok record; quantity: ``time`` or ``memory``."""
        newest: dict[Size, Record] = {}
        for record in self.done:
            size = size_of(record)
            if size not in newest or newest[size].created <= record.created:
                newest[size] = record
        points = [_point(size, record, quantity) for size, record in newest.items()]
        return [point for point in points if point is not None]


class Rivals:
    """All entrants of one ground; their models are fitted when first asked for."""

    def __init__(self, ground: Ground, records: Iterable[Record]) -> None:
        self.ground = ground
        self.entrants = _entrants(records)

    @cached_property
    def times(self) -> dict[int, CostModel]:
        """ms of one pass, by number of the entrant."""
        return self._fit("time")

    @cached_property
    def memories(self) -> dict[int, CostModel]:
        """Peak bytes above the inputs, by number of the entrant."""
        return self._fit("memory")

    def _fit(self, quantity: str) -> dict[int, CostModel]:
        points = {str(n): one.points(quantity) for n, one in enumerate(self.entrants)}
        models = fit_rivals(
            points, projections=self.ground.scope != "core", ranges=quantity == "time"
        )
        return {int(name): model for name, model in models.items()}

    def to_dict(self) -> dict[str, Any]:
        """The ground and every entrant with its usual options and models, fit for JSON."""
        entrants = []
        for number, one in enumerate(self.entrants):
            models = {"time": self.times.get(number), "memory": self.memories.get(number)}
            entrants.append(
                {
                    "contestant": one.name,
                    "variant": one.variant,
                    "fixed": one.fixed,
                    "knob": one.knob,
                    "usual": one.usual,
                    **{name: model and model.to_dict() for name, model in models.items()},
                }
            )
        return {"ground": self.ground.to_dict(), "entrants": entrants}


def grounds(records: Iterable[Record]) -> dict[Ground, list[Record]]:
    """Cost records by what their models keep fixed."""
    found: dict[Ground, list[Record]] = defaultdict(list)
    for record in records:
        if record.measure == "cost":
            found[Ground.of(record)].append(record)
    return dict(found)


def size_of(record: Record) -> Size:
    """The size of a cost record, with the keys that its options score."""
    return size_with(record.workload, record.variant, record.options)


def size_with(work: Workload, variant: str, options: Mapping[str, Any]) -> Size:
    return Size(
        length=work.length,
        keys=work.keys,
        batch=work.batch,
        heads=work.heads,
        head_dim=work.head_dim,
        knob=scored(variant, options, work),
        padding=work.padding,
    )


def fixed_options(record: Record) -> dict[str, Any]:
    """The identity of a record without its knob."""
    name = KNOBS.get(record.variant)
    return {key: value for key, value in identity(record).items() if key != name}


def _entrants(records: Iterable[Record]) -> list[Entrant]:
    """By name and fixed options; failures, which carry fewer, join the first that they fit."""
    ordered = sorted(records, key=lambda record: (not record.ok, record.created))
    by_name: dict[tuple[str, str], list[Entrant]] = defaultdict(list)
    for record in ordered:
        mine = fixed_options(record)
        same = by_name[entry_name(record.contestant), record.variant]
        home = next((one for one in same if _agree(mine, one.fixed, exact=record.ok)), None)
        if home is None:
            home = Entrant(entry_name(record.contestant), record.variant, mine)
            same.append(home)
        home.records.append(record)
    everyone = [one for same in by_name.values() for one in same]
    return sorted(everyone, key=lambda one: (contestant_order(one.name), str(one.fixed)))


def _agree(mine: Mapping[str, Any], other: Mapping[str, Any], *, exact: bool) -> bool:
    if exact:
        return mine == other
    return not any(contradicts(mine.get(name), value) for name, value in other.items())


def _point(size: Size, record: Record, quantity: str) -> Point | None:
    if quantity == "memory":
        peak = peak_bytes(record)
        return Point(size, float(peak)) if peak else None
    time = time_interval(record)
    noise = (time.high - time.low) / (_STANDARD_ERRORS * time.value) if time.known else 0.0
    return Point(size, time.value, noise, record.cell)
