"""The record: everything known about one contestant in one cell, as plain data.

A record is complete in itself: what was asked, what answered, where, and what came out. Failures
are records too. Nothing here imports torch, so that readers of results start at once.
"""

from __future__ import annotations

import hashlib
import json
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import orjson

from efficient_attn.bench.workload import Workload

SCHEMA_VERSION = 2

Status = Literal["ok", "oom", "timeout", "crashed", "unsupported", "diverged"]
Measure = Literal["cost", "accuracy", "fidelity", "swap", "model"]
STATUSES: tuple[Status, ...] = get_args(Status)
MEASURES: tuple[Measure, ...] = get_args(Measure)


@dataclass(frozen=True)
class Record:
    """One measured (or failed) contestant.

    key: hash of the request, the code that answered and the versions of what it stands on.
    cell: identifier of the run of the cell; samples of records that share it are paired by round.
    contestant: the name it was entered under; `variant` and `options` say what that is.
    options: the options in effect, read back from the module; as requested when it never existed.
    request: the workload (cost, fidelity), the task with its model and training settings
        (accuracy, swap), or somebody's model and its input (model).
    result: empty unless status is ``ok``; the result of the measure (`RESULTS`) as a dict.
    reason: what went wrong, for people; None when ok.
    """

    key: str
    measure: Measure
    status: Status
    contestant: str
    variant: str
    options: dict[str, Any]
    request: dict[str, Any]
    cell: str
    created: str
    environment: dict[str, Any]
    result: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    schema: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.schema != SCHEMA_VERSION:
            raise ValueError(
                f"record {self.key} has schema {self.schema}; this version reads {SCHEMA_VERSION}"
            )
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is not one of {', '.join(STATUSES)}")
        if self.measure not in MEASURES:
            raise ValueError(f"measure {self.measure!r} is not one of {', '.join(MEASURES)}")

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @cached_property
    def workload(self) -> Workload:
        """What a cost record asks; ValueError or TypeError where its request is no workload."""
        return Workload.from_dict(self.request)

    def renamed(self, contestant: str) -> Record:
        """The same under another name."""
        record = copy(self)  # with what is cached, which `replace` would lose
        object.__setattr__(record, "contestant", contestant)
        return record

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Parse and validate; ValueError says what is missing or unknown.

        Records of schema 1 are read too: what was not measured then is None.
        """
        values = orjson.loads(text)
        if not isinstance(values, dict):
            raise ValueError("a record is a JSON object")
        if values.get("schema") == 1:
            values = _from_schema_1(values)
        unknown = sorted(values.keys() - cls.__dataclass_fields__.keys())
        if unknown:
            raise ValueError(f"unknown record field(s): {', '.join(unknown)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"incomplete record: {error}") from error


@dataclass(frozen=True)
class CostResult:
    """Time and memory of one pass.

    samples_ms: one duration per round, in round order (the same round of every contestant of
        the cell is one pair).
    waits: for each sample the share of its time that the process's threads waited for a core that
        others had; None where the system does not tell.
    median_ms, low_ms, high_ms: median and its 95 % order-statistic interval, of the samples that
        did not wait where those are enough, else of all.
    noisy: the interval is wider than the target after all rounds were spent.
    compile_ms: first call of a compiled workload, in which it is compiled; None without.
    first_call_ms: the first call (after compiling), with every one-off cost; not among the samples.
    peak_tensor_bytes: peak of live tensor bytes above the inputs, None when unknown.
    peak_method: where that peak comes from (``profiler`` or ``cuda_allocator``).
    peak_reserved_bytes: what the CUDA allocator held at its peak; None on CPU.
    peak_rss_bytes: peak resident set of the worker above its baseline, None when unknown.
    state_bytes: of the decoding state after `length` tokens; None for passes without one.
    flops: arithmetic of one pass in matrix products, 2 per multiply-add, as executed.
    flops_method: ``formula`` (the variant's own) or ``counter``; None with unknown flops.
    traffic_bytes: what one pass must at least read and write; None when unknown.
    """

    samples_ms: list[float]
    waits: list[float] | None
    median_ms: float
    low_ms: float
    high_ms: float
    noisy: bool
    compile_ms: float | None
    first_call_ms: float
    calls_per_sample: int
    peak_tensor_bytes: int | None
    peak_method: str | None
    peak_reserved_bytes: int | None
    peak_rss_bytes: int | None
    state_bytes: int | None
    flops: int | None
    flops_method: str | None
    traffic_bytes: int | None
    parameters: int


@dataclass(frozen=True)
class AccuracyResult:
    """What a small model reached with one variant, one seed.

    value: `metric` on the test split, at the learning rate that validation picked.
    baselines: metric of trivial predictors on the same test split (chance, majority, ...).
    curve: [step, training loss] pairs of the picked run.
    trials: one entry per learning rate: {"learning_rate", "validation", "status"}.
    details: more figures of the model on the test split, for each way of using it.
    sample: text that the trained model made, for tasks that ask for some.
    state_bytes: what the model carries from token to token after `length` tokens, batch 1; None
        where it does not decode.
    validations: [step, `metric` on the validation split] pairs of the picked run; its end at least.
    peak_tensor_bytes: peak of live tensor bytes of one update above the model, the optimiser's
        state and the batch; None when unknown. peak_method: as in `CostResult`.
    """

    metric: str
    higher_is_better: bool
    value: float
    validation: float
    baselines: dict[str, float]
    learning_rate: float
    steps: int
    train_seconds: float
    parameters: int
    curve: list[list[float]]
    trials: list[dict[str, Any]]
    peak_rss_bytes: int | None
    details: dict[str, dict[str, float]] = field(default_factory=dict)
    sample: str | None = None
    state_bytes: int | None = None
    validations: list[list[float | None]] = field(default_factory=list)
    peak_tensor_bytes: int | None = None
    peak_method: str | None = None


@dataclass(frozen=True)
class FidelityResult:
    """How far a variant's output is from that of full attention on the same random q, k, v.

    relative_error: ‖out − full‖ / ‖full‖ of a head, over samples, queries and width; mean over
        heads and draws, with the ends of its 95 % interval over draws (None for a single draw).
    cosine: of the angle between both outputs of a head, mean over heads and draws.
    errors, cosines: of each draw, mean over heads.
    """

    relative_error: float
    error_low: float | None
    error_high: float | None
    cosine: float
    errors: list[float]
    cosines: list[float]
    parameters: int


@dataclass(frozen=True)
class SwapResult:
    """What is left of a trained full model when its attention is replaced, one seed.

    before, swapped, tuned: `metric` on the test split of the full model, right after the swap, and
        after the fine-tune; the last is None without one, and when it diverged at every rate.
    layers: for each attention that was replaced its name, and for each of its heads
        ``relative_error`` and ``cosine`` to full on the q, k, v that the full model has there.
    learning_rate, steps, train_seconds, curve, trials: of the fine-tune, as in `AccuracyResult`.
    fresh_parameters: those that the full model does not have.
    """

    metric: str
    higher_is_better: bool
    before: float
    swapped: float
    tuned: float | None
    baselines: dict[str, float]
    layers: list[dict[str, Any]]
    learning_rate: float | None
    steps: int
    train_seconds: float | None
    curve: list[list[float]]
    trials: list[dict[str, Any]]
    parameters: int
    fresh_parameters: int


@dataclass(frozen=True)
class ModelResult(CostResult):
    """Time and memory of one pass of a whole model with one attention.

    drift: ‖out − original‖ / ‖original‖ of the model's output in eval, with the same weights and
        input; None where the attention has random parameters of its own, and without attention.
    attention: of each call of attention in a pass, where it is known: {"heads", "head_dim",
        "queries", "keys", "causal"}.
    """

    drift: float | None = None
    attention: list[dict[str, Any]] = field(default_factory=list)


RESULTS: dict[Measure, type] = {
    "cost": CostResult,
    "accuracy": AccuracyResult,
    "fidelity": FidelityResult,
    "swap": SwapResult,
    "model": ModelResult,
}


_NEW_IN_SCHEMA_2 = (
    "waits",
    "compile_ms",
    "peak_reserved_bytes",
    "state_bytes",
    "flops",
    "flops_method",
    "traffic_bytes",
)


def _from_schema_1(values: dict[str, Any]) -> dict[str, Any]:
    values = {**values, "schema": SCHEMA_VERSION}
    if values.get("measure") == "cost":
        values["request"] = {"compile": False, **values["request"]}
        if values.get("result"):
            values["result"] = {**dict.fromkeys(_NEW_IN_SCHEMA_2), **values["result"]}
    return values


def digest(value: Any) -> str:
    """Short stable hash of plain data."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:20]
