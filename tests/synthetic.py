"""Records with a known truth, for the tests of everything that reads records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from efficient_attn.bench.record import Record, digest
from efficient_attn.bench.workload import Workload

MIB = 2**20
ENVIRONMENT = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "numpy": "2.4",
    "efficient_attn": "0.1.0",
    "git_revision": "abc1234",
    "cpu": "Example CPU",
    "cores": 2,
    "threads": 1,
    "memory_gb": 16.0,
    "platform": "Linux",
    "device_name": "Example CPU",
    "load_before": 0.1,
    "load_after": 0.2,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "full": {"implementation": "fused"},
    "full_naive": {"implementation": "naive"},
    "local_window": {"window": 64, "global_tokens": 0},
    "linformer": {"k": 64, "share": "heads", "max_len": 1024, "seed": 0},
    "performer": {"num_features": 64, "redraw_interval": None, "seed": 0},
    "shifted_window": {"window": 64, "shift": 0, "grid": None, "relative_bias": False},
}
TIMES: dict[str, Callable[[float], float]] = {
    "full": lambda n: 0.05 + 4e-6 * n**2,
    "full_naive": lambda n: 0.05 + 1.2e-5 * n**2,
    "local_window": lambda n: 0.30 + 2.0e-3 * n,
    "linformer": lambda n: 0.20 + 1.5e-3 * n,
    "performer": lambda n: 0.50 + 3.0e-3 * n,
    "shifted_window": lambda n: 0.40 + 1.8e-3 * n,
}
BYTES: dict[str, Callable[[float], float]] = {
    "full": lambda n: 2048 * n,
    "full_naive": lambda n: 64 * n**2 + 2048 * n,
    "local_window": lambda n: 12_000 * n,
    "linformer": lambda n: 5_000 * n,
    "performer": lambda n: 9_000 * n,
    "shifted_window": lambda n: 8_000 * n,
}


def variant_of(contestant: str) -> str:
    return "full" if contestant.startswith("full") else contestant.split("__")[0]


def cost(
    contestant: str = "full",
    length: int = 1024,
    *,
    median: float | None = None,
    samples: list[float] | None = None,
    noise: float = 0.02,
    rounds: int = 20,
    status: str = "ok",
    reason: str | None = None,
    cell: str | None = None,
    created: str = "2026-01-01T00:00:00",
    options: dict[str, Any] | None = None,
    peak: int | None = -1,
    noisy: bool = False,
    drift: np.ndarray | None = None,
    environment: dict[str, Any] | None = None,
    seed: int = 0,
    **workload: Any,
) -> Record:
    """One cost record. drift: factors of the rounds that every contestant of a cell shares."""
    request = Workload(length=length, **workload).to_dict()
    variant = variant_of(contestant)
    options = OPTIONS.get(contestant, OPTIONS.get(variant, {})) if options is None else options
    result: dict[str, Any] = {}
    if status == "ok":
        truth = TIMES.get(contestant, TIMES["full"])(length) if median is None else median
        if median is None and request["pass"] == "forward_backward":
            truth *= 3
        if samples is None:
            rng = np.random.default_rng([seed, length, *contestant.encode()])
            factors = np.exp(rng.normal(0, noise, rounds))
            factors = factors if drift is None else factors * drift
            samples = [float(truth * factor) for factor in factors]
        if peak == -1:
            peak = int(BYTES.get(contestant, BYTES["full"])(length))
        ordered = sorted(samples)
        result = {
            "samples_ms": samples,
            "median_ms": float(np.median(samples)),
            "low_ms": ordered[0],
            "high_ms": ordered[-1],
            "noisy": noisy,
            "waits": [0.0] * len(samples),
            "compile_ms": None,
            "first_call_ms": 2 * ordered[-1],
            "calls_per_sample": 1,
            "peak_tensor_bytes": peak,
            "peak_method": "profiler" if peak is not None else None,
            "peak_reserved_bytes": None,
            "peak_rss_bytes": None,
            "state_bytes": None,
            "flops": None,
            "flops_method": None,
            "traffic_bytes": None,
            "parameters": 0,
        }
    cell = digest(request) if cell is None else cell
    return Record(
        key=digest([contestant, request, options, cell, created]),
        measure="cost",
        status=status,  # type: ignore[arg-type]
        contestant=contestant,
        variant=variant,
        options=options,
        request=request,
        cell=cell,
        created=created,
        environment=ENVIRONMENT if environment is None else environment,
        result=result,
        reason=reason if status != "ok" else None,
    )


def accuracy(
    contestant: str = "full",
    seed: int = 0,
    *,
    task: str = "mqar",
    length: int = 64,
    pattern: str = "causal_self",
    value: float = 0.9,
    metric: str = "accuracy",
    higher_is_better: bool = True,
    baselines: dict[str, float] | None = None,
    status: str = "ok",
    reason: str | None = None,
    options: dict[str, Any] | None = None,
    created: str = "2026-01-01T00:00:00",
    train_seconds: float = 6.0,
    model: dict[str, Any] | None = None,
    state_bytes: int | None = None,
) -> Record:
    request = {
        "task": {"name": task, "length": length, "pattern": pattern},
        "model": {"d_model": 64} if model is None else model,
        "training": {"steps": 100},
        "seed": seed,
    }
    result: dict[str, Any] = {
        "metric": metric,
        "higher_is_better": higher_is_better,
        "value": value,
        "validation": value,
        "baselines": {"chance": 0.1} if baselines is None else baselines,
        "learning_rate": 1e-3,
        "steps": 100,
        "train_seconds": train_seconds,
        "parameters": 50_000,
        "curve": [[1, 3.0], [100, 0.2]],
        "trials": [{"learning_rate": 1e-3, "validation": value, "status": "ok"}],
        "peak_rss_bytes": None,
        "state_bytes": state_bytes,
    }
    variant = variant_of(contestant)
    options = OPTIONS.get(contestant, OPTIONS.get(variant, {})) if options is None else options
    return Record(
        key=digest([contestant, request, options, created]),
        measure="accuracy",
        status=status,  # type: ignore[arg-type]
        contestant=contestant,
        variant=variant,
        options=options,
        request=request,
        cell=digest(request),
        created=created,
        environment=ENVIRONMENT,
        result=result if status == "ok" else {},
        reason=reason if status != "ok" else None,
    )


def fidelity(
    contestant: str = "performer",
    length: int = 1024,
    *,
    error: float = 0.3,
    reach: float | None = 0.02,
    scale: float = 1.0,
    status: str = "ok",
    options: dict[str, Any] | None = None,
    **workload: Any,
) -> Record:
    """One fidelity record. reach: half of the interval, None for a single draw."""
    request = Workload(length=length, **workload).to_dict()
    request = {name: request[name] for name in request if name not in ("pass", "scope", "compile")}
    request |= {"scale": scale, "draws": 3}
    result = {
        "relative_error": error,
        "error_low": None if reach is None else error - reach,
        "error_high": None if reach is None else error + reach,
        "cosine": 0.9,
        "errors": [error] * 3,
        "cosines": [0.9] * 3,
        "parameters": 0,
    }
    return _record("fidelity", contestant, request, result, status, options)


def swap(
    contestant: str = "performer",
    seed: int = 0,
    *,
    before: float = 0.99,
    swapped: float = 0.3,
    tuned: float | None = 0.8,
    errors: tuple[float, ...] = (0.2, 0.4),
    higher_is_better: bool = True,
    steps: int = 50,
    status: str = "ok",
    options: dict[str, Any] | None = None,
) -> Record:
    """One swap record. errors: relative errors of the heads of its only layer."""
    request = {
        "task": {"name": "mqar", "length": 64, "pattern": "causal_self"},
        "model": {"d_model": 64},
        "training": {"steps": 100},
        "finetune": {"steps": steps, "learning_rates": [1e-3]},
        "seed": seed,
    }
    layer = {"layer": "layers.0", "relative_error": list(errors), "cosine": [0.9] * len(errors)}
    result = {
        "metric": "accuracy",
        "higher_is_better": higher_is_better,
        "before": before,
        "swapped": swapped,
        "tuned": tuned,
        "baselines": {"chance": 0.03},
        "layers": [layer],
        "learning_rate": None if tuned is None else 1e-3,
        "steps": steps,
        "train_seconds": None if tuned is None else 2.0,
        "curve": [],
        "trials": [],
        "parameters": 50_000,
        "fresh_parameters": 0,
    }
    return _record("swap", contestant, request, result, status, options)


def _record(
    measure: str,
    contestant: str,
    request: dict[str, Any],
    result: dict[str, Any],
    status: str,
    options: dict[str, Any] | None,
) -> Record:
    variant = variant_of(contestant)
    options = OPTIONS.get(contestant, OPTIONS.get(variant, {})) if options is None else options
    return Record(
        key=digest([measure, contestant, request, options]),
        measure=measure,  # type: ignore[arg-type]
        status=status,  # type: ignore[arg-type]
        contestant=contestant,
        variant=variant,
        options=options,
        request=request,
        cell=digest(request),
        created="2026-01-01T00:00:00",
        environment=ENVIRONMENT,
        result=result if status == "ok" else {},
        reason=None if status == "ok" else f"ended with {status}",
    )


def cells(
    lengths: Iterable[int] = (256, 512, 1024, 2048),
    contestants: Iterable[str] = tuple(TIMES),
    patterns: Iterable[str] = ("noncausal_self", "causal_self"),
    passes: Iterable[str] = ("forward", "forward_backward"),
    *,
    noise: float = 0.02,
    fail: dict[tuple[str, int], str] | None = None,
    **more: Any,
) -> list[Record]:
    """A whole sweep; linformer is unsupported where causal. fail: (contestant, N) → status."""
    records = []
    for pattern in patterns:
        for pass_ in passes:
            for length in lengths:
                rng = np.random.default_rng(length)
                drift = np.exp(np.cumsum(rng.normal(0, 0.05, 20)))
                for name in contestants:
                    status, reason = "ok", None
                    if variant_of(name) == "linformer" and pattern.startswith("causal"):
                        status = "unsupported"
                        reason = "linformer does not support causal self-attention"
                    elif fail and (name, length) in fail:
                        status = fail[name, length]
                        reason = f"ended with {status}"
                    records.append(
                        cost(
                            name,
                            length,
                            pattern=pattern,
                            pass_=pass_,
                            status=status,
                            reason=reason,
                            drift=drift,
                            noise=noise,
                            **more,
                        )
                    )
    return records


def counted(records: Iterable[Record]) -> list[Record]:
    """The same with FLOPs (those of full), traffic and the machine's peak."""
    peak = {"machine_peak": {"flops_per_s": 1e11, "bytes_per_s": 1e10}}
    found = []
    for record in records:
        n = record.request["length"]
        counts = {"flops": 2048 * n**2, "flops_method": "formula", "traffic_bytes": 8192 * n}
        result = {**record.result, **counts} if record.ok else {}
        found.append(replace(record, result=result, environment={**record.environment, **peak}))
    return found


def scores(
    values: dict[str, float] | None = None, seeds: int = 3, spread: float = 0.01, **fields: Any
) -> list[Record]:
    """An accuracy sweep; linformer is unsupported on causal tasks."""
    values = values or {
        "full": 0.97,
        "full_naive": 0.97,
        "local_window": 0.2,
        "linformer": 0.6,
        "performer": 0.9,
        "shifted_window": 0.25,
    }
    records = []
    for name, value in values.items():
        for seed in range(seeds):
            rng = np.random.default_rng([seed, *name.encode()])
            causal = str(fields.get("pattern", "causal_self")).startswith("causal")
            unsupported = name == "linformer" and causal
            records.append(
                accuracy(
                    name,
                    seed,
                    value=float(value + spread * rng.normal()),
                    status="unsupported" if unsupported else "ok",
                    reason="linformer does not support causal self-attention",
                    **fields,
                )
            )
    return records
