"""What changed between two results folders: time, memory, accuracy and status, with intervals.

A record's key changes with the code, its request does not. So records are joined by what was
asked: measure, request, contestant, options. Of several that answer the same, the newest counts.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from efficient_attn.analysis.ratios import divide, ratio, time_interval
from efficient_attn.analysis.select import (
    PASS_NAMES,
    PATTERN_NAMES,
    Setting,
    asked,
    length_of,
    machine,
    pass_of,
    pattern_of,
    relabel,
    shared_difference,
)
from efficient_attn.bench.intervals import Interval, mean_interval
from efficient_attn.bench.record import Record

Quantity = Literal["time", "memory", "accuracy", "status"]
Verdict = Literal["worse", "better", "same", "unclear", "unknown", "changed"]

QUANTITIES: tuple[Quantity, ...] = ("time", "memory", "accuracy")
FACTS = ("device_name", "cores", "threads", "python", "torch", "malloc")
"""What should be equal on both sides for times to be comparable."""


@dataclass(frozen=True)
class Place:
    """A contestant under a request, in words; for accuracy the task and its tokens.

    contestant: with the options that tell it from others of its name.
    setting: of a workload; of a task what tells it from others of its name.
    """

    contestant: str
    where: str
    setting: str
    length: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Change:
    """One quantity in A and in B.

    verdict: ``worse`` or ``better``: beyond the threshold with the whole interval; ``same``: within
        it with the whole interval; ``unclear``: the interval reaches over the threshold;
        ``unknown``: a side lacks the number; ``changed``: two different failures.
    before, after: ms (times the reference's with `relative_to`), bytes, the metric, or a status.
    ratio: after over before; None for a status and where it is unknown.
    note: what else is to be known: a failure's reason, a missing reference.
    """

    quantity: Quantity
    verdict: Verdict
    place: Place
    before: Interval | str | None
    after: Interval | str | None
    ratio: Interval | None
    note: str

    @property
    def severity(self) -> float:
        """For sorting: how far from unchanged, in either direction; a status comes first."""
        if self.ratio is None or self.ratio.value <= 0:
            return math.inf
        return abs(math.log(self.ratio.value)) if math.isfinite(self.ratio.value) else math.inf

    def to_dict(self) -> dict[str, Any]:
        return {
            "quantity": self.quantity,
            "verdict": self.verdict,
            **self.place.to_dict(),
            "before": _plain(self.before),
            "after": _plain(self.after),
            "ratio": _plain(self.ratio),
            "note": self.note,
        }


@dataclass(frozen=True)
class Comparison:
    """compared: how many contestants under one request both sides have. changes: worst first.
    only_in_a, only_in_b: what has no counterpart. notes: what limits the comparison as a whole,
    such as another machine."""

    threshold: float
    relative_to: str | None
    compared: int
    changes: tuple[Change, ...]
    only_in_a: tuple[Place, ...]
    only_in_b: tuple[Place, ...]
    notes: tuple[str, ...]

    @property
    def worse(self) -> bool:
        return any(change.verdict == "worse" for change in self.changes)

    def counts(self) -> dict[str, dict[str, int]]:
        """How many changes there are, by quantity and verdict."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for change in self.changes:
            found[change.quantity][change.verdict] += 1
        return {quantity: dict(counter) for quantity, counter in found.items()}

    def to_dict(self) -> dict[str, Any]:
        return {
            "threshold": self.threshold,
            "relative_to": self.relative_to,
            "worse": self.worse,
            "compared": self.compared,
            "counts": self.counts(),
            "notes": list(self.notes),
            "changes": [change.to_dict() for change in self.changes],
            "only_in_a": [place.to_dict() for place in self.only_in_a],
            "only_in_b": [place.to_dict() for place in self.only_in_b],
        }


def compare(
    records_a: Iterable[Record],
    records_b: Iterable[Record],
    *,
    threshold: float = 0.1,
    relative_to: str | None = None,
    what: Sequence[Quantity] = QUANTITIES,
) -> Comparison:
    """What became worse or better from A to B.

    threshold: 0.1 tolerates 10 %: ratios from 1/1.1 to 1.1. relative_to: compare not the times but
    their paired ratios to this contestant in the same folder, in which the drift of the machine
    cancels, and with it whatever happened to that contestant. what: quantities to look at.

    Memory is exact, so its ratio has no interval. Accuracy is the mean over seeds; where two or
    more seeds are shared, the interval is that of the differences seed by seed.

    ValueError for a wrong threshold or quantity, for an unknown `relative_to`, and when the two
    sides have nothing in common.
    """
    _check(threshold, what)
    measures = {"accuracy" if quantity == "accuracy" else "cost" for quantity in what}
    a, b = (
        [record for record in records if record.measure in measures]
        for records in (records_a, records_b)
    )
    shared_machines = {machine(record) for record in a} & {machine(record) for record in b}
    matches = list(_matches(a, b, shared_machines))
    both = [match for match in matches if match.old and match.new]
    if not both:
        raise ValueError(
            f"nothing to compare: {len(a)} and {len(b)} records of {' and '.join(sorted(measures))}"
            ", none with the same request, contestant and options"
        )
    labels = _labels(matches)
    judge = _Judge(threshold, tuple(what), _References(relative_to, a, b))
    changes = [change for match in both for change in judge.changes(match, labels[match.key])]
    return Comparison(
        threshold=threshold,
        relative_to=relative_to,
        compared=len(both),
        changes=tuple(sorted(changes, key=_order)),
        only_in_a=tuple(labels[match.key] for match in matches if not match.new),
        only_in_b=tuple(labels[match.key] for match in matches if not match.old),
        notes=tuple(_notes(both)),
    )


@dataclass(frozen=True)
class _Match:
    """Answers to one request by one contestant: the newest of each side by seed (0 for costs)."""

    old: dict[int, Record]
    new: dict[int, Record]

    @property
    def example(self) -> Record:
        """An ok record where there is one: it states every option."""
        records = [*self.new.values(), *self.old.values()]
        return next((record for record in records if record.ok), records[0])

    @property
    def key(self) -> str:
        return self.example.key


class _References:
    """The contestant that times are divided by, if any: by side and request."""

    def __init__(self, name: str | None, a: list[Record], b: list[Record]) -> None:
        self.name = name
        self.records: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for side, records in (("a", a), ("b", b)):
            costs = [record for record in records if record.measure == "cost"]
            if name is not None and all(record.contestant != name for record in costs):
                known = ", ".join(sorted({record.contestant for record in costs})) or "none"
                raise ValueError(f"no contestant {name!r} in {side.upper()}; there are: {known}")
            for record in costs:
                if record.ok and record.contestant == name:
                    self.records[side, _asked(record)].append(record)

    def of(self, side: str, record: Record) -> Record | None:
        """The one measured in the record's own cell, else the newest on the same machine."""
        found = [
            one for one in self.records[side, _asked(record)] if machine(one) == machine(record)
        ]
        return max(found, key=lambda one: (one.cell == record.cell, one.created), default=None)


@dataclass(frozen=True)
class _Judge:
    threshold: float
    what: tuple[Quantity, ...]
    references: _References

    def changes(self, match: _Match, label: Place) -> Iterator[Change]:
        """Every change of one contestant under one request."""
        shared = sorted(set(match.old) & set(match.new))
        pairs = [(match.old[seed], match.new[seed]) for seed in shared]
        for old, new in pairs or [(_best(match.old), _best(match.new))]:
            yield from self._status(old, new, label)
        if match.example.measure == "accuracy":
            yield from self._accuracy(match, label)
            return
        for old, new in pairs:
            if old.ok and new.ok and "time" in self.what:
                yield from self._time(old, new, label)
            if old.ok and new.ok and "memory" in self.what:
                yield self._memory(old, new, label)

    def _status(self, old: Record, new: Record, label: Place) -> Iterator[Change]:
        if old.status == new.status:
            return
        verdict: Verdict = "worse" if old.ok else "better" if new.ok else "changed"
        seed = f"seed {_seed(new)}" if new.measure == "accuracy" else ""
        note = ": ".join(part for part in (seed, new.reason or old.reason) if part)
        yield Change("status", verdict, label, old.status, new.status, None, note)

    def _time(self, old: Record, new: Record, label: Place) -> Iterator[Change]:
        name = self.references.name
        if name is None:
            ends = time_interval(old), time_interval(new)
            yield self._judged("time", label, *ends, ratio(new, old))
            return
        if new.contestant == name:
            return
        base_old, base_new = self.references.of("a", old), self.references.of("b", new)
        if base_old is None or base_new is None:
            note = f"no time of {name} beside it"
            yield Change("time", "unknown", label, None, None, None, note)
            return
        before, after = ratio(old, base_old), ratio(new, base_new)
        differing = shared_difference(base_old.options, base_new.options)
        if differing:
            note = f"{name} itself differs in {', '.join(differing)}"
            yield Change("time", "unknown", label, before, after, None, note)
            return
        same = (old, base_old) == (new, base_new)
        change: Interval = _exact(1.0) if same else divide(after, before)
        note = "" if before.paired and after.paired else f"not measured together with {name}"
        yield self._judged("time", label, before, after, change, note)

    def _memory(self, old: Record, new: Record, label: Place) -> Change:
        before, after = (record.result["peak_tensor_bytes"] for record in (old, new))
        if before is None or after is None:
            one, other = (None if peak is None else _exact(peak) for peak in (before, after))
            note = "not measured on both sides"
            return Change("memory", "unknown", label, one, other, None, note)
        ways = [record.result["peak_method"] for record in (old, new)]
        if ways[0] != ways[1]:
            note = f"measured by {ways[0]} and by {ways[1]}"
            return Change("memory", "unknown", label, _exact(before), _exact(after), None, note)
        quotient = after / before if before else math.inf if after else 1.0
        return self._judged("memory", label, _exact(before), _exact(after), _exact(quotient))

    def _accuracy(self, match: _Match, label: Place) -> Iterator[Change]:
        old, new = _values(match.old), _values(match.new)
        if not old or not new:
            return  # the statuses tell
        before, after = (mean_interval(list(side.values())) for side in (old, new))
        change = _relative_change(old, new)
        result = match.example.result
        note = f"{result['metric']}, {len(old)} and {len(new)} seeds"
        if change is None:
            yield Change("accuracy", "unknown", label, before, after, None, note)
        else:
            higher = result["higher_is_better"]
            yield self._judged("accuracy", label, before, after, change, note, higher)

    def _judged(
        self,
        quantity: Quantity,
        label: Place,
        before: Interval,
        after: Interval,
        change: Interval,
        note: str = "",
        more_is_better: bool = False,
    ) -> Change:
        low, high = 1 / (1 + self.threshold), 1 + self.threshold
        verdict: Verdict = "unclear"
        if change.low > high:
            verdict = "better" if more_is_better else "worse"
        elif change.high < low:
            verdict = "worse" if more_is_better else "better"
        elif low <= change.low and change.high <= high:
            verdict = "same"
        return Change(quantity, verdict, label, before, after, change, note)


def _matches(a: list[Record], b: list[Record], shared_machines: set[str]) -> Iterator[_Match]:
    """Whatever either side has. A machine that only one side knows is joined with any other."""
    places: dict[tuple[Any, ...], list[tuple[str, Record]]] = defaultdict(list)
    for side, records in (("a", a), ("b", b)):
        for record in records:
            where = machine(record) if machine(record) in shared_machines else None
            place = (record.measure, _asked(record), record.contestant, record.variant, where)
            places[place].append((side, record))
    for members in places.values():
        for group in _alike(members):
            yield _Match(_newest(group, "a"), _newest(group, "b"))


def _alike(members: list[tuple[str, Record]]) -> list[list[tuple[str, Record]]]:
    """Split into groups whose options agree.

    An option that only one of two records states (code of another age) does not part them. Nor do
    failures that leave an option open, as long as there is one group they fit; records that ended
    well state every option and so come first.
    """
    groups: list[list[tuple[str, Record]]] = []
    for member in sorted(members, key=lambda member: not member[1].ok):
        fitting = [
            group for group in groups if not any(_contradict(member[1], one) for _, one in group)
        ]
        if len(fitting) == 1:
            fitting[0].append(member)
        else:
            groups.append([member])
    return groups


def _contradict(one: Record, other: Record) -> bool:
    """None in the options of a failure leaves the choice open."""
    mine, theirs = (
        {name: value for name, value in record.options.items() if record.ok or value is not None}
        for record in (one, other)
    )
    return bool(shared_difference(mine, theirs))


def _newest(group: list[tuple[str, Record]], side: str) -> dict[int, Record]:
    kept: dict[int, Record] = {}
    mine = [record for where, record in group if where == side]
    for record in sorted(mine, key=lambda record: record.created):
        kept[_seed(record)] = record
    return kept


def _best(side: dict[int, Record]) -> Record:
    return next((record for record in side.values() if record.ok), next(iter(side.values())))


def _values(side: dict[int, Record]) -> dict[int, float]:
    return {seed: float(record.result["value"]) for seed, record in side.items() if record.ok}


def _seed(record: Record) -> int:
    """A workload's seed is part of what is asked; a training's is one draw of several."""
    return int(record.request.get("seed") or 0) if record.measure == "accuracy" else 0


def _asked(record: Record) -> str:
    request = asked(record) if record.measure == "accuracy" else record.request
    return json.dumps(request, sort_keys=True, default=str)


def _relative_change(before: dict[int, float], after: dict[int, float]) -> Interval | None:
    """Mean of B over mean of A, None when A's is 0; A's mean counts as known in the interval."""
    shared = sorted(set(before) & set(after))
    if len(shared) >= 2:
        mean = statistics.fmean(before[seed] for seed in shared)
        moved = mean_interval([after[seed] - before[seed] for seed in shared])
        reach = moved.high - moved.value
    else:
        old, new = (mean_interval(list(side.values())) for side in (before, after))
        mean = old.value
        moved = replace(old if old.n < new.n else new, value=new.value - old.value)
        reach = math.hypot(old.high - old.value, new.high - new.value)
    if mean == 0:
        return None
    value, reach = 1 + moved.value / abs(mean), reach / abs(mean)
    return Interval(value, value - reach, value + reach, moved.n, moved.confidence)


def _labels(matches: list[_Match]) -> dict[str, Place]:
    """How to name what was compared, by key; options join the names that they tell apart."""
    examples = [match.example for match in matches]
    # Without its environment a record belongs to no machine: one name on both sides.
    named = relabel(replace(example, environment={}) for example in examples)
    names = {record.key: record.contestant for record in named}
    tasks = [example for example in examples if example.measure == "accuracy"]
    return {
        example.key: Place(
            contestant=names[example.key],
            where=_where(example),
            setting=_setting(example, tasks),
            length=length_of(example),
        )
        for example in examples
    }


def _where(record: Record) -> str:
    if record.measure == "accuracy":
        return str(record.request["task"]["name"])
    name = PASS_NAMES.get(pass_of(record), pass_of(record))
    return f"{PATTERN_NAMES[pattern_of(record)]}, {name}"


def _setting(record: Record, tasks: list[Record]) -> str:
    """A workload's setting; of a task whatever differs among its requests."""
    return str(Setting.of(record)) if record.measure == "cost" else _task_setting(record, tasks)


def _task_setting(record: Record, tasks: list[Record]) -> str:
    mine = _fields(record)
    others = [_fields(task) for task in tasks if _where(task) == _where(record)]
    differing = sorted(
        name
        for name in mine
        if name != "task.length" and any(other.get(name) != mine[name] for other in others)
    )
    return ", ".join(f"{name}={mine[name]}" for name in differing)


def _fields(record: Record) -> dict[str, Any]:
    groups = {name: value for name, value in record.request.items() if isinstance(value, Mapping)}
    return {f"{group}.{name}": groups[group][name] for group in groups for name in groups[group]}


def _notes(both: list[_Match]) -> list[str]:
    """What differs between the sides besides the code."""
    old = [record.environment for match in both for record in match.old.values()]
    new = [record.environment for match in both for record in match.new.values()]
    notes = []
    for fact in FACTS:
        a, b = ({_text(side[fact]) for side in sides if fact in side} for sides in (old, new))
        if a and b and a != b:
            found = f"{', '.join(sorted(a))} in A, {', '.join(sorted(b))} in B"
            notes.append(
                f"the machines differ: {found}. Times then tell of the machines, not of the code"
                if fact == "device_name"
                else f"{fact} differs: {found}"
            )
    return notes


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _check(threshold: float, what: Sequence[str]) -> None:
    if not (threshold >= 0 and math.isfinite(threshold)):
        raise ValueError(f"threshold={threshold!r} must be at least 0, e.g. 0.1 for 10 %")
    unknown = sorted(set(what) - set(QUANTITIES))
    if unknown or not what:
        raise ValueError(
            f"quantities {', '.join(unknown) or 'none'}: choose from {', '.join(QUANTITIES)}"
        )


def _order(change: Change) -> tuple[Any, ...]:
    verdicts = ("worse", "changed", "better", "unclear", "unknown", "same")
    place = change.place
    named = place.contestant, place.where, place.setting, place.length
    return verdicts.index(change.verdict), -change.severity, change.quantity, *named


def _exact(value: float) -> Interval:
    return Interval(value, value, value, 1, 1.0)


def _plain(value: Interval | str | None) -> Any:
    """Plain data fit for JSON; an infinite ratio is None."""
    if not isinstance(value, Interval):
        return value
    plain = value.to_dict()
    return {**plain, "value": plain["value"] if math.isfinite(plain["value"]) else None}
