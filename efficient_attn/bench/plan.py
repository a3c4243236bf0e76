"""The plan of a sweep: every job composed and checked, equal questions put together, before
anything is measured."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from efficient_attn.bench.cell import Cell
from efficient_attn.bench.config import cell_from_config
from efficient_attn.bench.own_config import own_configuration
from efficient_attn.bench.record import Record, digest
from efficient_attn.bench.store import Store

# Hydra remarks that a preset has the name of its launcher's schema; it has on purpose.
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/")

CONFIG_MODULE = "efficient_attn.conf"
CONFIG_NAME = "sweep"

Redo = Literal["all", "failed"]

SETTLED = ("ok", "unsupported")
"""Statuses that need no second try."""

_EXTRAS = {
    "hydra_submitit_launcher": "slurm",
    "hydra_joblib_launcher": "joblib",
    "hydra_ray_launcher": "ray",
}


class SweepError(ValueError):
    """The request cannot be run as it stands; the message says what to change."""


class PlanStore(Store):
    """A store as a plan sees it.

    outdated: by key, the run of the cell that a record is from which is to be replaced and does not
    count. A record of another run replaces it, so that a job which is started twice measures once.

    A key names the CPU, and a job may run on a machine with another CPU than the one that plans:
    its record then answers the key that was planned through a file in <results>/hydra/answers.
    """

    def __init__(self, folder: Path, outdated: Mapping[str, str]) -> None:
        super().__init__(folder)
        self.outdated = outdated

    def get(self, key: str) -> Record | None:
        record = super().get(key)
        if record is None:
            with suppress(OSError, ValueError):
                record = super().get(self._answer(key).read_text())
        return record

    def has(self, key: str) -> bool:
        record = self.get(key)
        return record is not None and record.cell != self.outdated.get(key)

    def answered_by(self, key: str, other: str) -> None:
        """The record of another key answers this one."""
        path = self._answer(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(other)

    def _answer(self, key: str) -> Path:
        return self.folder / "hydra" / "answers" / key


@dataclass(frozen=True)
class Plan:
    """What a sweep measures.

    cells: without repetition; contestants that are asked the same in the same way share one.
    results: the folder of records, as given. job: overrides of one job of the sweep, which say how
    it is launched. outdated: see `PlanStore`.
    """

    cells: list[Cell]
    results: Path
    job: list[str]
    outdated: dict[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        return [cell.key(contestant) for cell in self.cells for contestant in cell.contestants]

    @property
    def store(self) -> PlanStore:
        return PlanStore(self.results.absolute(), self.outdated)

    def missing(self) -> int:
        store = self.store
        return sum(not store.has(key) for key in self.keys)


def make_plan(arguments: Sequence[str], redo: Redo | None = None) -> Plan:
    """Compose every job of the multirun and check it, without measuring anything.

    arguments: Hydra overrides. A value given there replaces the sweep of the same key in an
    experiment. redo: measure again all that is asked, or only (and nothing else) what failed.
    Raises `SweepError`.
    """
    try:
        with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
            overrides = _with_experiment_sweeps([*own_configuration(arguments), *arguments])
            jobs = _jobs(overrides)
            configs = _composed(jobs)
            launching = _compose(jobs[0], return_hydra_config=True)
            _require_launcher(str(launching.hydra.launcher._target_))
        cells = _merged([cell_from_config(config) for config in configs])
    except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:
        raise SweepError(str(error)) from error
    plan = Plan(cells, Path(configs[0].results), jobs[0])
    return _redone(plan, redo) if redo else plan


def _merged(cells: Sequence[Cell]) -> list[Cell]:
    """One cell for each question and way of measuring, with the contestants of all."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        question = digest([cell.measure, cell.request, cell.settings])
        groups.setdefault(question, []).append(cell)
    merged = []
    for first, *others in groups.values():
        contestants = {
            digest(vars(one)): one for cell in (first, *others) for one in cell.contestants
        }
        merged.append(replace(first, contestants=tuple(contestants.values())))
    return merged


def _redone(plan: Plan, redo: Redo) -> Plan:
    """The plan with the records that there are marked as outdated."""
    cells, outdated = [], {}
    for cell in plan.cells:
        again = []
        for contestant in cell.contestants:
            record = plan.store.get(cell.key(contestant))
            if record is not None and (redo == "all" or record.status not in SETTLED):
                outdated[record.key] = record.cell
                again.append(contestant)
        if again:
            cells.append(replace(cell, contestants=tuple(again)))
    return replace(plan, cells=cells if redo == "failed" else plan.cells, outdated=outdated)


def _jobs(overrides: Sequence[str]) -> list[list[str]]:
    """Overrides of each job: the swept values crossed, those named in `paired` side by side."""
    swept: dict[str, list[str]] = {}
    fixed: dict[str, str] = {}
    for item in OverridesParser.create().parse_overrides(list(overrides)):
        key = item.get_key_element()
        swept.pop(key, None)
        fixed.pop(key, None)
        if item.is_sweep_override():
            swept[key] = _values(item)
        else:
            fixed[key] = item.input_line or ""
    config = _compose(list(fixed.values()))
    axes = _axes(swept, _paired(config))
    return [
        [*fixed.values(), *itertools.chain.from_iterable(point)]
        for point in itertools.product(*axes)
    ]


def _values(item: Override) -> list[str]:
    key = item.get_key_element()
    if not item.is_discrete_sweep():
        raise SweepError(f"{item.input_line}: only listed values can be swept, as {key}=1,2,3")
    if key.lstrip("+~").startswith(("hydra", "paired", "results")):
        raise SweepError(f"{item.input_line}: {key} cannot be swept, give it one value")
    return [f"{key}={value}" for value in item.sweep_string_iterator()]


def _paired(config: DictConfig) -> list[list[str]]:
    """Groups of swept names that advance together."""
    given: Any = OmegaConf.to_container(OmegaConf.create({"paired": config.paired}))
    paired = given["paired"] or []
    nested = isinstance(paired, list) and all(isinstance(one, list) for one in paired)
    groups = paired if nested else [paired]
    if not all(
        isinstance(group, list) and all(isinstance(n, str) for n in group) for group in groups
    ):
        raise SweepError(
            f"paired={paired} is neither a list of swept names, as "
            "paired=[workload.length,workload.batch], nor a list of such lists"
        )
    return [list(group) for group in groups]


def _axes(swept: Mapping[str, list[str]], paired: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    """What is crossed: for each axis its points, for each point its overrides."""
    keys = {key.lstrip("+"): key for key in swept}
    remaining = dict(swept)
    axes = []
    for group in paired:
        for name in group:
            if keys.get(name) not in remaining:
                raise SweepError(
                    f"paired names {name}, "
                    + ("which it has named before" if name in keys else "which is not swept")
                    + ": give it values (a,b,c), or change paired (paired=[] crosses all)"
                )
        lists = [remaining.pop(keys[name]) for name in group]
        if len({len(values) for values in lists}) > 1:
            counts = ", ".join(f"{name} has {len(swept[keys[name]])}" for name in group)
            raise SweepError(f"paired sweeps need equally many values: {counts}")
        axes.append([list(point) for point in zip(*lists, strict=True)])
    return [axis for axis in axes if axis] + [
        [[value] for value in values] for values in remaining.values()
    ]


def _composed(jobs: Sequence[Sequence[str]]) -> list[DictConfig]:
    """The configuration of every job. Those that differ by values alone are composed once, and the
    values set in copies: composing takes Hydra a fifth of a second."""
    configs: list[DictConfig] = []
    first: dict[tuple[str, ...], DictConfig] = {}
    for job in jobs:
        values = [
            item for item in OverridesParser.create().parse_overrides(list(job)) if _is_value(item)
        ]
        lines = {item.input_line for item in values}
        kind = (
            *(line for line in job if line not in lines),
            *(item.key_or_group for item in values),
        )
        if kind not in first:
            first[kind] = _compose(job)
        config = deepcopy(first[kind])
        for item in values:
            OmegaConf.update(config, item.key_or_group, item.value())
        configs.append(config)
    return configs


def _is_value(item: Override) -> bool:
    """Whether an override sets one value of the configuration, and no group, addition or tree."""
    plain = not (item.is_add() or item.is_force_add() or item.is_delete() or item.package)
    loader = GlobalHydra.instance().config_loader()
    return (
        plain
        and not isinstance(item.value(), (dict, list))
        and not loader.get_group_options(item.key_or_group)
        and not item.is_hydra_override()
    )


def _require_launcher(target: str) -> None:
    """SweepError when the launcher's plugin is not installed."""
    package, _, plugin = ".".join(target.split(".")[:2]).partition(".")
    if package != "hydra_plugins" or (find_spec(package) and find_spec(f"{package}.{plugin}")):
        return
    extra = _EXTRAS.get(plugin)
    what = f"'efficient-attn[{extra}]'" if extra else plugin.replace("_", "-")
    raise SweepError(f"this launcher's plugin is not installed: pip install {what}")


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
