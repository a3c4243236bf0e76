"""Under which circumstances records were taken: machine, software, commit, load."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from efficient_attn.bench.record import Record

_PASSING = ("load_before", "load_after", "cell_seconds", "machine_peak")
"""What differs from one cell to the next without anyone having changed anything."""


def circumstances(record: Record) -> str:
    """What one environment is told apart from another by, as text."""
    kept = {name: value for name, value in record.environment.items() if name not in _PASSING}
    return json.dumps(kept, sort_keys=True, default=str)


def environments_of(records: list[Record]) -> dict[str, dict[str, Any]]:
    """Each different environment with how many records it made, when, and under which load."""
    members: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.created):
        members[circumstances(record)].append(record)
    return {
        key: {
            "number": number,
            "fields": _flat(json.loads(key)),
            "records": len(taken),
            "noisy": sum(bool(record.result.get("noisy")) for record in taken),
            "created": [seconds(taken[0].created), seconds(taken[-1].created)],
            "load": _span(record.environment.get("load_before") for record in taken),
            "flops_per_s": _span(_peak(record, "flops_per_s") for record in taken),
            "bytes_per_s": _span(_peak(record, "bytes_per_s") for record in taken),
        }
        for number, (key, taken) in enumerate(members.items())
    }


def _peak(record: Record, name: str) -> Any:
    return (record.environment.get("machine_peak") or {}).get(name)


def _span(values: Iterable[Any]) -> list[float | None] | None:
    known = [value for value in values if value is not None]
    return [short(min(known)), short(max(known))] if known else None


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def short(value: float) -> float | None:
    """Six significant digits; None for what is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def seconds(created: str) -> int | None:
    """Since 1970, of an ISO 8601 time in UTC; None for what is no such time."""
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return int(moment.timestamp())
