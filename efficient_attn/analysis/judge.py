"""One contestant against one request: its evidence, or the reason why it is out."""

from __future__ import annotations

from efficient_attn.analysis.accuracy import Score, TaskScores
from efficient_attn.analysis.choice import AccuracyEvidence, Choice, Rejection
from efficient_attn.analysis.ratios import time_interval
from efficient_attn.analysis.request import Request
from efficient_attn.analysis.scaling import (
    MIN_LENGTHS,
    fit_scaling,
    memory_curve,
    peak_bytes,
    time_curve,
)
from efficient_attn.analysis.select import entry_name, length_of, shared_difference
from efficient_attn.analysis.snippet import snippet
from efficient_attn.bench.intervals import Interval
from efficient_attn.bench.record import Record

GIB = 2**30

_HAPPENED = {
    "oom": "ran out of memory",
    "timeout": "ran out of time",
    "crashed": "crashed",
    "unsupported": "does not support this",
    "diverged": "diverged",
}


def judge(records: list[Record], request: Request, tasks: list[TaskScores]) -> Choice | Rejection:
    """Evidence for one contestant.

    records: its newest record of the requested workload at each length, of any status.
    tasks: accuracy of all contestants, on tasks of the requested pattern.
    """
    example = next((record for record in records if record.ok), records[0])
    reason = _ruled_out(records, request) or _lacks_weights(example.variant, request)
    if reason is None:
        choice = _measured(records, request, tasks) or _predicted(records, request, tasks)
        reason = choice if isinstance(choice, str) else _over_limit(choice, request)
        if reason is None and isinstance(choice, Choice):
            return choice
    return Rejection(example.contestant, example.variant, str(reason))


def _ruled_out(records: list[Record], request: Request) -> str | None:
    """The failure at the requested length, or the one below it that no longer length overcame."""
    at_length = [record for record in records if length_of(record) == request.length]
    if at_length:
        return None if at_length[0].ok else _failure(at_length[0])
    longest = max((length_of(record) for record in records if record.ok), default=0)
    for record in sorted(records, key=length_of):
        below = longest < length_of(record) < request.length
        if record.status in ("oom", "timeout") and below:
            return f"{_HAPPENED[record.status]} already at N={length_of(record)}{_because(record)}"
    if longest == 0:
        return _failure(records[0])
    return None


def _failure(record: Record) -> str:
    if record.status == "unsupported" and record.reason:
        return record.reason.splitlines()[0]
    return f"{_HAPPENED[record.status]} at N={length_of(record)}{_because(record)}"


def _because(record: Record) -> str:
    lines = (record.reason or "").strip().splitlines()
    return f": {lines[0]}" if lines else ""


def _lacks_weights(variant: str, request: Request) -> str | None:
    if not request.need_weights:
        return None
    # Capabilities live beside the tensors' code, which is loaded for this question alone.
    from efficient_attn.attention import describe

    try:
        able = describe(variant).capabilities.weights
    except ValueError:
        return f"variant {variant!r} is not installed here: its weights are unknown"
    return None if able else "cannot return attention weights"


def _over_limit(choice: Choice | None, request: Request) -> str | None:
    if choice is None:
        return "no evidence"
    how = "" if choice.measured else f" ({choice.evidence})"
    if request.memory_gb is not None:
        if choice.memory_bytes is None:
            return f"its memory at N={request.length} is unknown, and the limit is a hard one"
        used = choice.memory_bytes / GIB
        if used > request.memory_gb:
            return f"needs {used:.3g} GiB{how}, more than the limit of {request.memory_gb:g} GiB"
    if request.time_ms is not None and choice.time.value > request.time_ms:
        return (
            f"takes {choice.time.value:.3g} ms{how}, more than the limit of {request.time_ms:g} ms"
        )
    return None


def _measured(records: list[Record], request: Request, tasks: list[TaskScores]) -> Choice | None:
    for record in records:
        if record.ok and length_of(record) == request.length:
            return _choice(
                record,
                request,
                tasks,
                evidence="measured",
                time=time_interval(record),
                memory=peak_bytes(record),
                noisy=bool(record.result["noisy"]),
                fit=None,
            )
    return None


def _predicted(records: list[Record], request: Request, tasks: list[TaskScores]) -> Choice | str:
    """A choice from the scaling fit, or why there can be none."""
    done = [record for record in records if record.ok]
    curve = time_curve(done)
    if len(curve.lengths) < MIN_LENGTHS:
        known = ", ".join(map(str, curve.lengths))
        return (
            f"not measured at N={request.length}, and {len(curve.lengths)} measured length(s) "
            f"({known}) are too few to predict from"
        )
    fit = fit_scaling(curve)
    there = fit.at(request.length)
    memory = memory_curve(done)
    bytes_ = (
        fit_scaling(memory).predict(request.length) if len(memory.lengths) >= MIN_LENGTHS else None
    )
    nearest = min(done, key=lambda record: abs(length_of(record) - request.length))
    return _choice(
        nearest,
        request,
        tasks,
        evidence=there.kind,
        time=Interval(there.value, there.low, there.high, len(curve.lengths), 0.0),
        memory=bytes_,
        noisy=any(record.result["noisy"] for record in done),
        fit=str(fit),
    )


def _choice(
    record: Record,
    request: Request,
    tasks: list[TaskScores],
    *,
    evidence: str,
    time: Interval,
    memory: float | None,
    noisy: bool,
    fit: str | None,
) -> Choice:
    return Choice(
        contestant=record.contestant,
        variant=record.variant,
        options=record.options,
        evidence=evidence,
        time=time,
        memory_bytes=memory,
        noisy=noisy,
        fit=fit,
        accuracy=tuple(_accuracy(record, tasks)),
        snippet=snippet(record.variant, record.options, request),
    )


def _accuracy(record: Record, tasks: list[TaskScores]) -> list[AccuracyEvidence]:
    found = []
    for task in tasks:
        for score in task.scores:
            mine = entry_name(score.contestant) == entry_name(record.contestant)
            if mine and score.variant == record.variant:
                found.append(
                    AccuracyEvidence(
                        task=task.label,
                        length=task.length,
                        metric=task.metric,
                        higher_is_better=task.higher_is_better,
                        baselines=task.references,
                        score=score,
                        note=_caution(record, score),
                    )
                )
    return found


def _caution(record: Record, score: Score) -> str:
    names = shared_difference(record.options, score.options) if score.value else []
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
