"""The sweep: a Hydra multirun of cells, planned first, resumed by what the store already holds."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_module
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from efficient_attn.bench.cell import Cell, Contestant
from efficient_attn.bench.config import cell_from_config
from efficient_attn.bench.progress import SweepProgress
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store

CONFIG_MODULE = "efficient_attn.conf"
CONFIG_NAME = "sweep"


class SweepError(ValueError):
    """The request cannot be run as it stands; the message says what to change."""


@dataclass(frozen=True)
class Plan:
    """overrides: for Hydra, one multirun. cells: what they compose to, without repetition."""

    overrides: list[str]
    cells: list[Cell]
    results: Path

    @property
    def keys(self) -> list[str]:
        return [cell.key(contestant) for cell in self.cells for contestant in cell.contestants]

    @property
    def store(self) -> Store:
        return Store(self.results)

    def missing(self) -> int:
        return sum(not self.store.has(key) for key in self.keys)


def make_plan(arguments: Sequence[str]) -> Plan:
    """Compose every job of the multirun and check it, without measuring anything.

    arguments: Hydra overrides. A value given there replaces the sweep of the same key in an
    experiment. Raises `SweepError`.
    """
    try:
        with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
            overrides = _with_experiment_sweeps(arguments)
            parsed = OverridesParser.create().parse_overrides(overrides)
            jobs = BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
            configs = [_compose(job) for job in jobs]
        cells = [cell_from_config(config) for config in configs]
    except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:
        raise SweepError(str(error)) from error
    distinct = {tuple(cell.key(one) for one in cell.contestants): cell for cell in cells}
    return Plan(overrides, list(distinct.values()), Path(configs[0].results))


def measure_cell(cell: Cell, store: Store, progress: SweepProgress) -> None:
    """Measure the contestants of a cell whose records are missing, and store each at once."""
    missing = missing_contestants(cell, store)
    if not missing:
        return
    start = time.monotonic()
    records: list[Record] = []

    def tell(share: float, what: str) -> None:
        progress.during(cell.label, share, len(missing), what)

    for record in cell.run(missing, tell):
        store.write(record)
        records.append(record)
    progress.finished(cell.label, records, time.monotonic() - start)


def missing_contestants(cell: Cell, store: Store) -> list[Contestant]:
    """The contestants of a cell that have no record yet."""
    return [one for one in cell.contestants if not store.has(cell.key(one))]


def launch(plan: Plan, progress: SweepProgress) -> None:
    """Hand the plan to Hydra, whose launcher may run jobs here or elsewhere.

    Raises OSError when a record cannot be stored.
    """
    plan.store.records_folder.mkdir(parents=True, exist_ok=True)

    def job(config: DictConfig) -> None:
        measure_cell(cell_from_config(config), Store(config.results), progress)

    decorated = hydra.main(
        config_path=f"pkg://{CONFIG_MODULE}", config_name=CONFIG_NAME, version_base="1.3"
    )(job)
    own_arguments = sys.argv
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through, rather than exit inside Hydra
    sys.argv = [own_arguments[0], "--multirun", *plan.overrides, "hydra.sweeper.params=null"]
    try:
        decorated()
    finally:
        sys.argv = own_arguments


def _with_experiment_sweeps(arguments: Sequence[str]) -> list[str]:
    """The arguments, and before them what the experiment sweeps unless they say otherwise."""
    parsed = OverridesParser.create().parse_overrides(list(arguments))
    fixed = [item.input_line or "" for item in parsed if not item.is_sweep_override()]
    config = _compose(fixed, return_hydra_config=True)
    swept = config.hydra.sweeper.params or {}
    given = {item.key_or_group for item in parsed}
    return [*(f"{key}={value}" for key, value in swept.items() if key not in given), *arguments]


def _compose(overrides: Sequence[str], **flags: Any) -> DictConfig:
    try:
        return compose(CONFIG_NAME, list(overrides), **flags)
    except HydraException as error:
        raise SweepError(_explain(error, list(overrides))) from error


def _explain(error: HydraException, overrides: list[str]) -> str:
    """Hydra's message; for an unknown key, what stands at that place instead."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        available = GlobalHydra.instance().config_loader().get_group_options(group)
        if available:
            return f"there is no {group}={choice}; available: {', '.join(available)}"
    found = re.search(r"Could not override '([^']+)'", str(error))
    if not found:
        return str(error)
    *parents, unknown = found.group(1).split(".")
    rest = [item for item in overrides if not item.startswith(f"{found.group(1)}=")]
    try:
        place: Any = compose(CONFIG_NAME, rest)
    except HydraException:
        return str(error)
    path: list[str] = []
    for part in parents:
        if not isinstance(place, DictConfig) or part not in place:
            unknown = part
            break
        place = place[part]
        path.append(part)
    allowed = ", ".join(sorted(map(str, place))) if isinstance(place, DictConfig) else "nothing"
    where = ".".join(path) or "the configuration"
    return f"unknown option {unknown!r} in {where} ({found.group(1)}); allowed there: {allowed}"
