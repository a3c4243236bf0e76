"""One contestant with one set of options against a request: its evidence, or why it is out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from efficient_attn.analysis.accuracy import Score, TaskScores
from efficient_attn.analysis.candidates import judged, measured_records
from efficient_attn.analysis.choice import AccuracyEvidence, Choice, Rejection
from efficient_attn.analysis.cost_fit import MIN_LENGTHS
from efficient_attn.analysis.kept import Evidence, Kept, kept
from efficient_attn.analysis.knobs import is_exact, knob
from efficient_attn.analysis.overrides import sweep_words
from efficient_attn.analysis.predict import CostModel, Predicted, Size
from efficient_attn.analysis.ratios import time_interval
from efficient_attn.analysis.request import Request
from efficient_attn.analysis.rivals import Entrant, Rivals, size_of, size_with
from efficient_attn.analysis.scaling import peak_bytes
from efficient_attn.analysis.select import (
    PATTERN_NAMES,
    entry_name,
    length_of,
    pattern_of,
    shared_difference,
)
from efficient_attn.analysis.snippet import snippet
from efficient_attn.bench.intervals import Interval
from efficient_attn.bench.record import Record
from efficient_attn.bench.workload import Workload

GIB = 2**30

_HAPPENED = {
    "oom": "ran out of memory",
    "timeout": "ran out of time",
    "crashed": "crashed",
    "unsupported": "does not support this",
    "diverged": "diverged",
}


@dataclass(frozen=True)
class Cost:
    """Time (ms) and memory (bytes) of a pass, by one kind of evidence."""

    evidence: str
    time: Interval
    memory: float | None
    noisy: bool
    fit: str | None = None
    pair_width: float | None = None


@dataclass(frozen=True)
class Case:
    """A request with all that is known: who was measured, and accuracy by task and capability."""

    request: Request
    rivals: Rivals
    tasks: list[TaskScores]
    evidence: list[Evidence]

    def verdicts(self, number: int) -> list[Choice | Rejection]:
        """Of the entrant of this number, on each of its candidates."""
        entrant = self.rivals.entrants[number]
        reason = self._unsupported(entrant) or self._lacks_weights(entrant.variant)
        if reason is not None:
            return [Rejection(entrant.name, entrant.variant, reason, entrant.usual or {})]
        return judged(entrant, self.request, lambda options: self._judge(number, options))

    def _judge(self, number: int, options: dict[str, Any]) -> Choice | Rejection:
        entrant, request = self.rivals.entrants[number], self.request
        exact = all(
            is_exact(entrant.variant, options, work.length, work.keys, causal=work.causal)
            for work in self._works()
        )
        cost: Cost | str = "is not softmax attention here, only near to it"
        if exact or not request.exact_only:
            cost = self._cost(number, options)
        if not isinstance(cost, str):
            cost = _over_limit(cost, request) or cost
        if isinstance(cost, str):
            return Rejection(entrant.name, entrant.variant, cost, options)
        share = self._kept(entrant, options, exact=exact) if request.needs else None
        return Choice(
            contestant=entrant.name,
            variant=entrant.variant,
            options=options,
            evidence=cost.evidence,
            time=cost.time,
            memory_bytes=cost.memory,
            noisy=cost.noisy,
            fit=cost.fit,
            pair_width=cost.pair_width,
            accuracy=tuple(_accuracy(entrant, options, self.tasks)),
            snippet=snippet(entrant.variant, options, request),
            overrides=sweep_words([(entrant.name, entrant.variant, options)], request),
            exact=exact,
            kept=share,
        )

    def _works(self) -> Iterator[Workload]:
        return (self.request.at_length(length) for length, _ in self.request.shares)

    def _kept(self, entrant: Entrant, options: dict[str, Any], *, exact: bool) -> Kept:
        work = self.request.workload
        return kept(
            entrant.variant,
            options,
            knob(entrant.variant, options, work.length, work.keys, causal=work.causal),
            exact=exact,
            pattern=work.pattern,
            needs=self.request.needs,
            tolerance=self.request.tolerance,
            evidence=self.evidence,
        )

    def _cost(self, number: int, options: dict[str, Any]) -> Cost | str:
        """What the options cost, or why that is not known."""
        entrant = self.rivals.entrants[number]
        records = measured_records(entrant, self.request, options)
        failed = [record for record in records if not record.ok]
        if failed:
            return _failure(failed[0])
        if records:
            return _measured(records, self.request)
        if not entrant.done:
            return _failure(entrant.records[0])
        sizes = [size_with(work, entrant.variant, options) for work in self._works()]
        reason = next(filter(None, (_blocked(size, entrant) for size in sizes)), None)
        if reason is not None:
            return reason
        model = self.rivals.times.get(number)
        if model is None:
            return _too_few(entrant, self.request)
        noisy = any(record.result["noisy"] for record in entrant.done)
        try:
            return _predicted(model, self.rivals.memories.get(number), sizes, self.request, noisy)
        except ValueError as error:
            return str(error)

    def _unsupported(self, entrant: Entrant) -> str | None:
        """The refusal of the pattern, or that it was never asked."""
        here = [record for record in entrant.records if pattern_of(record) == self.request.pattern]
        if not here:
            return f"was not measured in {PATTERN_NAMES[self.request.pattern]}"
        keys_differ = self.request.keys != self.request.length
        alike = [r for r in here if (size_of(r).keys != size_of(r).length) == keys_differ] or here
        if all(record.status == "unsupported" for record in alike):
            return _failure(alike[0])
        return None

    def _lacks_weights(self, variant: str) -> str | None:
        if not self.request.need_weights:
            return None
        # Capabilities live beside the tensors' code, which is loaded for this question alone.
        from efficient_attn.attention import describe

        try:
            able = describe(variant).capabilities.weights
        except ValueError:
            return f"variant {variant!r} is not installed here: its weights are unknown"
        return None if able else "cannot return attention weights"


def _measured(records: list[Record], request: Request) -> Cost:
    times = [time_interval(record) for record in records]
    peaks = [peak for record in records if (peak := peak_bytes(record)) is not None]
    return Cost(
        "measured",
        _mean(times, request, min(time.n for time in times), min(t.confidence for t in times)),
        float(max(peaks)) if len(peaks) == len(records) else None,
        any(bool(record.result["noisy"]) for record in records),
    )


def _predicted(
    model: CostModel,
    memory: CostModel | None,
    sizes: list[Size],
    request: Request,
    noisy: bool,
) -> Cost:
    """ValueError where a size lies beyond all prediction."""
    times = [model.at(size) for size in sizes]
    outside = sorted({name for time in times for name in time.outside})
    return Cost(
        "extrapolated" if outside else "interpolated",
        _mean(times, request, len(model.own.points), 0.0),
        None if memory is None else max(memory.at(size).value for size in sizes),
        noisy,
        f"{model}" + (f"; not measured at such: {', '.join(outside)}" if outside else ""),
        max(time.pair_width for time in times),
    )


def _mean(
    times: list[Interval] | list[Predicted], request: Request, n: int, confidence: float
) -> Interval:
    """Expected time over the lengths; the ends move together."""

    def over(end: Callable[[Any], float]) -> float:
        pairs = zip(request.shares, times, strict=True)
        return sum(share * end(time) for (_, share), time in pairs)

    return Interval(
        over(lambda time: time.value),
        over(lambda time: time.low),
        over(lambda time: time.high),
        n,
        confidence,
    )


def _blocked(size: Size, entrant: Entrant) -> str | None:
    """A failure at a size no larger in any way, that no ok record at least as large overcame."""
    done = [size_of(record) for record in entrant.done]
    for record in sorted(entrant.records, key=length_of):
        if record.status in ("oom", "timeout"):
            failed = size_of(record)
            if _within(failed, size) and not any(_within(failed, one) for one in done):
                return (
                    f"{_HAPPENED[record.status]} already at N={length_of(record)}{_because(record)}"
                )
    return None


def _within(small: Size, large: Size) -> bool:
    names = ("length", "keys", "head_dim", "knob")
    return small.batch * small.heads <= large.batch * large.heads and all(
        getattr(small, name) <= getattr(large, name) for name in names
    )


def _too_few(entrant: Entrant, request: Request) -> str:
    known = sorted({length_of(record) for record in entrant.done})
    return (
        f"not measured at N={request.length}, and {len(known)} measured length(s) "
        f"({', '.join(map(str, known))}) are too few to predict from ({MIN_LENGTHS} needed)"
    )


def _failure(record: Record) -> str:
    if record.status == "unsupported" and record.reason:
        return record.reason.splitlines()[0]
    return f"{_HAPPENED[record.status]} at N={length_of(record)}{_because(record)}"


def _because(record: Record) -> str:
    lines = (record.reason or "").strip().splitlines()
    return f": {lines[0]}" if lines else ""


def _over_limit(cost: Cost, request: Request) -> str | None:
    how = "" if cost.evidence == "measured" else f" ({cost.evidence})"
    if request.memory_gb is not None:
        if cost.memory is None:
            return f"its memory at N={request.length} is unknown, and the limit is a hard one"
        used = cost.memory / GIB
        if used > request.memory_gb:
            return f"needs {used:.3g} GiB{how}, more than the limit of {request.memory_gb:g} GiB"
    if request.time_ms is not None and cost.time.value > request.time_ms:
        return f"takes {cost.time.value:.3g} ms{how}, more than the limit of {request.time_ms:g} ms"
    return None


def _accuracy(
    entrant: Entrant, options: dict[str, Any], tasks: Iterable[TaskScores]
) -> Iterator[AccuracyEvidence]:
    for task in tasks:
        for score in task.scores:
            if entry_name(score.contestant) == entrant.name and score.variant == entrant.variant:
                yield AccuracyEvidence(
                    task=task.label,
                    length=task.length,
                    metric=task.metric,
                    higher_is_better=task.higher_is_better,
                    baselines=task.references,
                    score=score,
                    note=_caution(options, score),
                )


def _caution(mine: dict[str, Any], score: Score) -> str:
    names = shared_difference(mine, score.options) if score.value else []
    parts = []
    if names:
        options = ", ".join(f"{name}={score.options[name]}" for name in names)
        parts.append(f"trained with {options}")
    if score.value is not None:
        total = len(score.by_seed) + sum(score.failures.values())
        parts += [f"{count} of {total} seeds {name}" for name, count in score.failures.items()]
        if len(score.by_seed) == 1:
            parts.append("one seed, so no interval")
    return "; ".join(parts)
