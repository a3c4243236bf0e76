"""From composed configuration to a cell, with every option checked before anything is measured."""

from __future__ import annotations

import math
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from efficient_attn.attention import OptionError, make_options
from efficient_attn.bench.accuracy_cell import AccuracyCell
from efficient_attn.bench.cell import Cell, Contestant
from efficient_attn.bench.cost_cell import CostCell, CostSettings
from efficient_attn.bench.tracking import Tracking
from efficient_attn.bench.training import Training
from efficient_attn.bench.worker import Limits
from efficient_attn.bench.workload import Workload
from efficient_attn.tasks import ModelConfig, make_task


def _nearly_square(length: int) -> list[int]:
    rows = next(r for r in range(math.isqrt(length), 0, -1) if length % r == 0)
    return [rows, length // rows]


# For experiments over lengths with variants that want a grid: ${nearly_square:${workload.length}}
OmegaConf.register_new_resolver("nearly_square", _nearly_square, replace=True)


def cell_from_config(config: DictConfig) -> Cell:
    """The cell that one composed configuration asks for; ValueError says what is wrong in it."""
    values: Any = OmegaConf.to_container(config, resolve=True)
    entries = (values.get("attention") or {}).items()
    contestants = tuple(
        _contestant(name, entry) for name, entry in entries if not _left_out(name, entry)
    )
    if not contestants:
        raise ValueError("no contestants: choose some, e.g. attention=[full,local_window]")
    how = dict(values["measure"])
    measure = how.pop("name")
    limits = Limits(how.pop("memory_cap_gb"), how.pop("timeout_s"))
    if measure == "cost":
        return CostCell(
            contestants, limits, Workload.from_dict(values["workload"]), CostSettings(**how)
        )
    if measure == "accuracy":
        return AccuracyCell(
            contestants,
            limits,
            make_task(**values["task"]),
            ModelConfig(**values["model"]),
            Training(**values["training"]),
            how["seed"],
            how["device"],
            how["threads"],
            how["workers"],
            how["validate_every"],
            None
            if how["log"] is None
            else Tracking(how["log"], Path(values["results"]).absolute()),
        )
    raise ValueError(f"measure.name={measure!r} is not one of cost, accuracy")


def _left_out(name: str, entry: dict[str, Any]) -> bool:
    """Whether an experiment sets options of a shipped contestant that was not chosen."""
    shipped = resources.files("efficient_attn.conf").joinpath("attention").joinpath(f"{name}.yaml")
    return "variant" not in entry and shipped.is_file()


def _contestant(name: str, entry: dict[str, Any]) -> Contestant:
    options = dict(entry)
    variant = options.pop("variant", None)
    shown = options.pop("name", name)
    if variant is None:
        raise ValueError(f"attention.{name} names no variant: add attention.{name}.variant=...")
    try:
        make_options(variant, options)
    except OptionError as error:
        raise OptionError(f"attention.{name}: {error}") from None
    return Contestant(shown, variant, options)
