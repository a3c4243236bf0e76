"""Records as one pandas table, for exports and for people's own questions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any, Literal

import pandas as pd

from efficient_attn.analysis.roofline import roofline
from efficient_attn.bench.record import Record

Kind = Literal["text", "integer", "number", "boolean"]

_DTYPES = {"text": "string", "integer": "Int64", "number": "float64", "boolean": "boolean"}

_LEADING = (
    "key",
    "measure",
    "status",
    "contestant",
    "variant",
    "options",
    "cell",
    "created",
    "reason",
    "schema",
)

_DOCUMENTED: tuple[tuple[str, Kind | None, str], ...] = (
    ("key", "text", "name of the record: hash of what was asked and of the code that answered"),
    ("measure", "text", "cost, accuracy, fidelity or swap"),
    ("status", "text", "ok, oom, timeout, crashed, unsupported or diverged"),
    ("contestant", "text", "name it was entered under"),
    ("variant", "text", "registered name of the attention variant"),
    ("options", "text", "JSON: options in effect; as requested when the module never existed"),
    ("cell", "text", "run of the cell; samples of records that share it are paired by round"),
    ("created", "text", "ISO 8601 time of the record, UTC"),
    ("reason", "text", "what went wrong; missing when ok"),
    ("schema", "integer", "version of the record's format"),
    # The request of a cost record.
    ("batch", "integer", "cost: samples per call"),
    ("heads", "integer", "cost: attention heads"),
    ("head_dim", "integer", "cost: width of one head"),
    ("length", "integer", "cost, fidelity: queries N, tokens (accuracy: task.length)"),
    ("key_length", "integer", "cost: keys M, tokens; missing when equal to length"),
    ("pattern", "text", "cost: noncausal_self, causal_self, noncausal_cross or causal_cross"),
    ("padding", "number", "cost: share of the keys that is masked right padding, 0 to 1"),
    ("dtype", "text", "cost: number format"),
    ("device", "text", "device asked for, as torch names it"),
    ("threads", "integer", "cost: CPU threads asked for; missing: every core"),
    ("pass", "text", "cost: forward, forward_backward, train_step, prefill or decode"),
    ("scope", "text", "cost: core (attention alone), module (with projections) or block"),
    ("compile", "boolean", "cost: through torch.compile"),
    ("seed", "integer", "seed of the request"),
    ("scale", "number", "fidelity: standard deviation of q, k and v"),
    ("draws", "integer", "fidelity: how many q, k and v were compared"),
    # The request of an accuracy record.
    ("task.name", "text", "accuracy: the task"),
    ("task.length", "integer", "accuracy: tokens per sample"),
    ("task.pattern", "text", "accuracy: how attention is used"),
    ("task.capability", "text", "accuracy: what of attention the task asks for"),
    ("task.evaluation", "integer", "accuracy: samples per evaluation split"),
    ("task.*", None, "accuracy: further sizes of the task; provenance: the data it used"),
    ("model.d_model", "integer", "accuracy: width of the model"),
    ("model.nhead", "integer", "accuracy: attention heads"),
    ("model.num_layers", "integer", "accuracy: layers"),
    ("model.dim_feedforward", "integer", "accuracy: width of the feed-forward"),
    ("model.positions", "text", "accuracy: position encoding; missing: the task's own"),
    ("model.dropout", "number", "accuracy: probability of dropout in training"),
    ("model.short_conv", "integer", "accuracy: short convolution, tokens; missing: the task's own"),
    ("model.dropout", "number", "accuracy: dropout in training"),
    ("training.steps", "integer", "accuracy: updates per learning rate"),
    ("training.batch_size", "integer", "accuracy: samples per update"),
    ("training.learning_rates", "text", "accuracy: JSON list of the rates tried"),
    ("training.warmup", "number", "accuracy: share of the steps in which the rate rises"),
    ("training.weight_decay", "number", "accuracy: of AdamW"),
    ("training.clip", "number", "accuracy: largest gradient norm"),
    ("finetune.steps", "integer", "swap: updates after the swap, per learning rate"),
    ("finetune.learning_rates", "text", "swap: JSON list of the rates tried after the swap"),
    # The result of a cost record.
    ("median_ms", "number", "median time of one call, ms"),
    ("low_ms", "number", "lower end of the median's 95 % interval, ms"),
    ("high_ms", "number", "upper end of the median's 95 % interval, ms"),
    ("noisy", "boolean", "the interval missed its target width"),
    ("samples_ms", "text", "JSON list: time of one call in each round, ms"),
    ("waits", "text", "JSON list: share of each sample spent waiting for a core, 0 to 1"),
    ("calls_per_sample", "integer", "calls that one sample averages"),
    ("compile_ms", "number", "first call of a compiled workload, ms"),
    ("first_call_ms", "number", "first call (after compiling), ms"),
    (
        "peak_tensor_bytes",
        "integer",
        "peak of tensor memory above the inputs, bytes",
    ),
    ("peak_method", "text", "where that peak comes from: profiler or cuda_allocator"),
    ("peak_reserved_bytes", "integer", "peak the CUDA allocator held, bytes"),
    ("peak_rss_bytes", "integer", "peak resident memory of the process above its start, bytes"),
    ("state_bytes", "integer", "decoding state after `length` tokens, bytes"),
    ("flops", "integer", "arithmetic of one call in matrix products, FLOP (2 per multiply-add)"),
    ("flops_method", "text", "formula or counter"),
    ("traffic_bytes", "integer", "what one call must at least read and write, bytes"),
    ("parameters", "integer", "trainable parameters"),
    ("roofline.limit_ms", "number", "least time that the machine's measured peak allows, ms"),
    ("roofline.share", "number", "that limit over the median time; above 1 in caches"),
    ("roofline.bound", "text", "what sets the limit: compute or memory"),
    ("roofline.flops_per_s", "number", "arithmetic rate achieved, FLOP/s"),
    # The result of an accuracy record.
    ("metric", "text", "what value is"),
    ("higher_is_better", "boolean", "direction of the metric"),
    ("value", "number", "metric on the test split"),
    ("validation", "number", "metric on the validation split"),
    ("baselines", "text", "JSON: metric of trivial predictors on the test split"),
    ("learning_rate", "number", "the rate that validation picked"),
    ("steps", "integer", "updates made"),
    ("train_seconds", "number", "training time, s"),
    ("curve", "text", "JSON list of [step, training loss]"),
    ("validations", "text", "JSON list of [step, metric on the validation split]"),
    ("trials", "text", "JSON list: learning_rate, validation and status of each rate tried"),
    ("details", "text", "JSON: more figures on the test split, for each way of using the model"),
    ("sample", "text", "text that the trained model made"),
    # The result of a fidelity record.
    ("relative_error", "number", "norm of the difference to full over that of full"),
    ("error_low", "number", "lower end of its 95 % interval over draws"),
    ("error_high", "number", "upper end of its 95 % interval over draws"),
    ("cosine", "number", "of the angle between the output and that of full"),
    ("errors", "text", "JSON list: relative error of each draw"),
    ("cosines", "text", "JSON list: cosine of each draw"),
    ("source", "text", "model: where it came from, as it was asked for"),
    ("drift", "number", "model: ‖out − original‖ / ‖original‖ of its output"),
    ("attention", "text", "JSON list: sizes of each call of attention in a pass of the model"),
    # The result of a swap record.
    ("before", "number", "metric of the trained full model on the test split"),
    ("swapped", "number", "metric right after the swap"),
    ("tuned", "number", "metric after the fine-tune"),
    ("layers", "text", "JSON list: layer, and relative_error and cosine of each head"),
    ("fresh_parameters", "integer", "parameters that the full model does not have"),
    # The environment.
    ("environment.python", "text", "Python version"),
    ("environment.torch", "text", "torch version"),
    ("environment.numpy", "text", "numpy version"),
    ("environment.efficient_attn", "text", "version of this package"),
    ("environment.git_revision", "text", "revision of the checkout"),
    ("environment.cpu", "text", "model of the CPU"),
    ("environment.device_name", "text", "name of the device measured on"),
    ("environment.cores", "integer", "CPU cores the process might use"),
    ("environment.threads", "integer", "CPU threads in effect"),
    ("environment.memory_gb", "number", "memory of the machine, GiB"),
    ("environment.platform", "text", "operating system"),
    ("environment.malloc.*", "text", "settings of the C allocator"),
    ("environment.load_before", "number", "runnable processes over the minute before"),
    ("environment.load_after", "number", "runnable processes over the last minute"),
    ("environment.machine_peak.flops_per_s", "number", "best matrix product measured, FLOP/s"),
    ("environment.machine_peak.bytes_per_s", "number", "best copy measured, bytes/s"),
    ("environment.machine_peak.*", None, "further facts of the machine's measured peak"),
    ("environment.cell_seconds.*", "number", "what the cell's time was spent on, s"),
    ("environment.settings.target", "number", "half width of the interval aimed at, relative"),
    ("environment.settings.min_rounds", "integer", "fewest samples"),
    ("environment.settings.max_rounds", "integer", "most samples"),
    ("environment.settings.budget_s", "number", "time for the samples of a cell, s"),
    ("environment.settings.warm_up_s", "number", "shortest warm-up, s"),
    ("environment.settings.warm_up_max_s", "number", "longest warm-up, s"),
    ("environment.settings.sample_ms", "number", "length of a sample aimed at, ms"),
    ("environment.settings.rest_ms", "number", "longest wait before a sample, ms"),
    ("environment.settings.pause_ms", "number", "wait before a sample, ms"),
    ("environment.settings.memory_cap_gb", "number", "cap on a worker's memory, GiB"),
    ("environment.settings.timeout_s", "number", "longest wait for one answer of a worker, s"),
    ("environment.settings.threads", "integer", "accuracy: CPU threads of a training"),
    ("environment.settings.validate_every", "integer", "accuracy: steps between validations"),
    ("environment.settings.workers", "integer", "accuracy: trainings side by side"),
)

COLUMNS: dict[str, str] = {name: meaning for name, _, meaning in _DOCUMENTED}
"""Meaning and unit of every column of `frame`, in its order; ``*`` stands for any name."""

_KINDS = {name: kind for name, kind, _ in _DOCUMENTED}  # None: as the values are


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """One row per record; `COLUMNS` tells what each column is.

    Columns: the record's own fields; the request flattened with dots (``length``, ``pass``,
    ``task.name``, ``model.d_model``, ``seed``); the result's fields as they are called in
    `CostResult` and `AccuracyResult`; the environment as ``environment.cpu`` and so on; how far
    from the machine's limit, as ``roofline.share`` and so on, where it is known. Options and
    whatever is a list or has free keys (samples, baselines, curve, trials, details) are JSON text,
    so that CSV and Parquet keep them; read them back with `json.loads`. Absent values are missing.

    A documented column has the same type whatever the records hold; text, whole numbers and truth
    values are pandas's own types that know missing values. ValueError names a column whose values
    do not fit.
    """
    rows = [_row(record) for record in records]
    if not rows:
        return pd.DataFrame({name: _column(name, []) for name in _LEADING})
    names = _order({name for row in rows for name in row})
    return pd.DataFrame({name: _column(name, [row.get(name) for row in rows]) for name in names})


def meaning(column: str) -> str | None:
    """What a column of `frame` holds, with its unit; None when nothing is known of it."""
    place = _place(column)
    return None if place is None else COLUMNS[place]


def _row(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(record, name) for name in _LEADING}
    row["options"] = json.dumps(record.options, sort_keys=True)
    row.update(_flatten(record.request))
    row.update({name: _cell(value) for name, value in record.result.items()})
    row.update(_flatten(record.environment, "environment."))
    reached = roofline(record)
    row.update(_flatten(asdict(reached), "roofline.") if reached else {})
    return row


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A group that is None as a whole has no columns of its own."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}."))
        elif value is not None or f"{prefix}{name}.*" not in COLUMNS:
            flat[f"{prefix}{name}"] = _cell(value)
    return flat


def _cell(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, (list, tuple, dict)) else value


def _order(names: set[str]) -> list[str]:
    """In the order of `COLUMNS`, names of one pattern by the alphabet, unknown ones last."""
    places = {name: number for number, name in enumerate(COLUMNS)}
    return sorted(names, key=lambda name: (places.get(_place(name) or "", len(places)), name))


def _place(column: str) -> str | None:
    """The entry of `COLUMNS` that describes a column: its own, else the first pattern it fits."""
    if column in COLUMNS:
        return column
    patterns = (name for name in COLUMNS if name.endswith("*"))
    return next((name for name in patterns if fnmatchcase(column, name)), None)


def _column(name: str, values: list[Any]) -> pd.Series:
    kind = _KINDS.get(_place(name) or "") or _kind([value for value in values if value is not None])
    if kind == "text":
        values = [None if value is None else str(value) for value in values]
    try:
        return pd.Series(values, dtype="object").astype(_DTYPES[kind])
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"column {name} holds a value that is no {kind}: {error}") from error


def _kind(values: list[Any]) -> Kind:
    """Type of a column of which only the values tell it."""
    types = {type(value) for value in values}
    if types == {bool}:
        return "boolean"
    if types == {int}:
        return "integer"
    if types and types <= {int, float}:
        return "number"
    return "text"
