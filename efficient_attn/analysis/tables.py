"""Records as one pandas table, for exports and for people's own questions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from efficient_attn.bench.record import Record

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


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """One row per record.

    Columns: the record's own fields; the request flattened with dots (``length``, ``pass``,
    ``task.name``, ``model.d_model``, ``seed``); the result's fields as they are called in
    `CostResult` and `AccuracyResult`; the environment as ``environment.cpu`` and so on. Options
    and whatever is a list or has free keys (samples, baselines, curve, trials) are JSON text, so
    that CSV and Parquet keep them; read them back with `json.loads`. Absent values are missing.
    """
    rows = [_row(record) for record in records]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(_LEADING))


def _row(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(record, name) for name in _LEADING}
    row["options"] = json.dumps(record.options, sort_keys=True)
    row.update(_flatten(record.request))
    row.update({name: _cell(value) for name, value in record.result.items()})
    row.update(_flatten(record.environment, "environment."))
    return row


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = _cell(value)
    return flat


def _cell(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, (list, tuple, dict)) else value
