"""A whole model and its attention alone, measured at several lengths with several variants."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from efficient_attn.attention import list_variants, make_options
from efficient_attn.bench.cell import Cell, Contestant, start_server
from efficient_attn.bench.cost_cell import CostCell
from efficient_attn.bench.model import ORIGINAL, WITHOUT, FreeAttention, ModelWorkload
from efficient_attn.bench.model_cell import ModelCell
from efficient_attn.bench.progress import SweepProgress
from efficient_attn.bench.race import CostSettings
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.bench.sweep import measure_cell, missing_contestants
from efficient_attn.bench.worker import Limits
from efficient_attn.bench.workload import Workload

SETTINGS = CostSettings(target=0.03, min_rounds=7, budget_s=10.0)


def bench_model(
    model: str | Callable[..., Any],
    lengths: Sequence[int],
    variants: Sequence[str] | None = None,
    *,
    options: dict[str, dict[str, Any]] | None = None,
    results: str | Path = "results/bench-model",
    settings: CostSettings = SETTINGS,
    limits: Limits | None = None,
    console: Console | None = None,
    **workload: Any,
) -> list[Record]:
    """Time, memory and drift of a model with its own attention, without any, and with `variants`.

    model: a source as of `ModelWorkload`, or a function at the top of a module that is called with
    length and batch and returns model and input. variants: names, all of `list_variants` when None;
    options: of them, by name. workload: further fields of `ModelWorkload`. Records go to the folder
    `results`, where what is measured already is not measured again; each length has one cell of
    the model and one of attention alone at the model's sizes. Progress goes to `console`.

    Returns the records of both. A variant that the model refuses is a record with the reason.
    """
    source = model if isinstance(model, str) else _source(model)
    names = list_variants() if variants is None else list(variants)
    given = options or {}
    strangers = sorted(set(given) - set(names))
    if strangers:
        raise ValueError(f"options of {', '.join(strangers)}, which is not among {names}")
    contestants = tuple(Contestant(name, name, given.get(name, {})) for name in names)
    for one in contestants:
        make_options(one.variant, one.options)
    limits = limits or Limits(timeout_s=600.0)
    store = Store(results)
    whole = (
        Contestant(ORIGINAL, "full", {}),
        Contestant(WITHOUT, FreeAttention.name, {}),
        *contestants,
    )
    cells = [
        ModelCell(whole, limits, ModelWorkload(source, length, **workload), settings)
        for length in lengths
    ]
    start_server()
    found = []
    with SweepProgress(_count(cells, store) * 2, console or Console(stderr=True)) as progress:
        for cell in cells:
            measure_cell(cell, store, progress)
            records = _records(cell, store)
            found += records
            alone = _alone(cell, records, contestants)
            if alone is not None:
                measure_cell(alone, store, progress)
                found += _records(alone, store)
    return found


def _source(function: Callable[..., Any]) -> str:
    name = f"{function.__module__}:{function.__qualname__}"
    if function.__module__ == "__main__" or "<locals>" in name:
        raise ValueError(
            f"{name} cannot be found by the processes that measure: define the function at the top "
            "of a module that they can import"
        )
    if not hasattr(sys.modules[function.__module__], function.__qualname__):
        raise ValueError(f"{name} is no function at the top of its module")
    return name


def _records(cell: Cell, store: Store) -> list[Record]:
    keys = [cell.key(one) for one in cell.contestants]
    return [record for key in keys if (record := store.get(key)) is not None]


def _count(cells: Sequence[Cell], store: Store) -> int:
    return sum(len(missing_contestants(cell, store)) for cell in cells)


def _alone(
    cell: ModelCell, records: Sequence[Record], contestants: tuple[Contestant, ...]
) -> CostCell | None:
    """Attention on split heads at the sizes of the model's first; None where those are unknown."""
    free = next((one for one in records if one.contestant == WITHOUT and one.ok), None)
    if free is None or not free.result["attention"]:
        return None
    first, w = free.result["attention"][0], cell.workload
    names = {one.name for one in contestants}
    entered = contestants if "full" in names else (Contestant("full", "full", {}), *contestants)
    cross = first["queries"] != first["keys"]
    workload = Workload(
        batch=w.batch,
        heads=first["heads"],
        head_dim=first["head_dim"],
        length=first["queries"],
        key_length=first["keys"] if cross else None,
        pattern=f"{'causal' if first['causal'] else 'noncausal'}_{'cross' if cross else 'self'}",  # type: ignore[arg-type]
        dtype=w.dtype,  # type: ignore[arg-type]
        device=w.device,
        threads=w.threads,
        pass_="forward" if w.pass_ == "forward" else "forward_backward",
    )
    return CostCell(entered, cell.limits, workload, cell.how)
