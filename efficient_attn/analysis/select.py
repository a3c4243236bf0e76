"""Which records belong together: the same workload apart from length, the same contestant.

A results folder may hold several sweeps, machines, code versions and option sets. Everything that
draws or ranks goes through here first, so that nothing unlike is ever joined into one curve.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from efficient_attn.bench.record import Record
from efficient_attn.bench.workload import PASSES, PATTERNS, Workload

# Options that the surroundings of a module decide (length, image, run): they make no new variant.
SURROUNDINGS = frozenset({"max_len", "grid", "seed"})

PEER = "peer:"
"""How names of other people's implementations begin, which are raced and never picked."""

_NUMBER = re.compile(r"(\d+)")

NO_MIXING = "no_mixing"
"""Name of the trained baseline whose tokens see themselves alone, which is never picked."""

PATTERN_NAMES = {
    "noncausal_self": "self-attention",
    "causal_self": "causal self-attention",
    "noncausal_cross": "cross-attention",
    "causal_cross": "causal cross-attention",
}
PASS_NAMES = {
    "forward": "forward",
    "forward_backward": "forward+backward",
    "train_step": "training step",
    "prefill": "prefill",
    "decode": "decoding, per token",
}


@dataclass(frozen=True)
class Setting:
    """What a curve over lengths keeps fixed besides pattern and pass.

    key_length: None when the keys grow with the queries.
    machine: name of the device the records were taken on.
    """

    batch: int
    heads: int
    head_dim: int
    key_length: int | None
    padding: float
    dtype: str
    device: str
    threads: int | None
    scope: str
    compile: bool
    machine: str

    @classmethod
    def of(cls, record: Record) -> Setting:
        return _setting(record.workload, machine(record))

    def parts(self) -> list[tuple[str, dict[str, Any]]]:
        """What is fixed, each as a template of ``str.format`` and its values."""
        parts: list[tuple[str, dict[str, Any]]] = [
            ("batch {batch}", {"batch": self.batch}),
            ("{heads} heads × {head_dim}", {"heads": self.heads, "head_dim": self.head_dim}),
            ("{name}", {"name": self.dtype}),
            ("{name}", {"name": self.device}),
        ]
        if self.threads is not None:
            plural = "" if self.threads == 1 else "s"
            parts.append((f"{{threads}} thread{plural}", {"threads": self.threads}))
        parts.append(("{scope} scope", {"scope": self.scope}))
        if self.compile:
            parts.append(("compiled", {}))
        if self.key_length is not None:
            parts.append(("{keys} keys", {"keys": self.key_length}))
        if self.padding:
            parts.append(("{padding:.0%} padding", {"padding": self.padding}))
        return parts

    def __str__(self) -> str:
        return ", ".join(text.format(**values) for text, values in self.parts())


@lru_cache(maxsize=2**16)
def _setting(work: Workload, machine: str) -> Setting:
    return Setting(
        batch=work.batch,
        heads=work.heads,
        head_dim=work.head_dim,
        key_length=None if work.keys == work.length else work.keys,
        padding=work.padding,
        dtype=work.dtype,
        device=work.device,
        threads=work.threads,
        scope=work.scope,
        compile=work.compile,
        machine=machine,
    )


def machine(record: Record) -> str:
    """Name of the device a record was taken on; empty when it was not recorded."""
    environment = record.environment
    return str(environment.get("device_name") or environment.get("cpu") or "")


def length_of(record: Record) -> int:
    """Queries N of a workload, tokens of a task (0 when it has none)."""
    return int(_asked(record).get("length") or 0)


def pass_of(record: Record) -> str:
    return str(record.request.get("pass", "forward"))


def pattern_of(record: Record) -> str:
    return str(_asked(record).get("pattern", "noncausal_self"))


def costs(records: Iterable[Record]) -> list[Record]:
    """Cost records, contestants told apart by their options."""
    return relabel(record for record in records if record.measure == "cost")


def newest(records: Iterable[Record]) -> list[Record]:
    """One record per contestant, setting, pattern, pass and length: the one created last."""
    kept: dict[tuple[Any, ...], Record] = {}
    for record in records:
        place = (record.contestant, _group(record), length_of(record))
        if place not in kept or kept[place].created <= record.created:
            kept[place] = record
    return list(kept.values())


def by_setting(records: Iterable[Record]) -> dict[Setting, list[Record]]:
    """Cost records by setting, the setting with most records first."""
    groups: dict[Setting, list[Record]] = defaultdict(list)
    for record in newest(costs(records)):
        groups[Setting.of(record)].append(record)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), str(item[0]))))


def setting_names(settings: Iterable[Setting]) -> dict[Setting, str]:
    """How to write each setting; with its machine where one text would stand for several."""
    settings = list(settings)
    texts = [str(setting) for setting in settings]
    return {
        setting: text
        if texts.count(text) == 1
        else f"{text}, {setting.machine or 'unnamed machine'}"
        for setting, text in zip(settings, texts, strict=True)
    }


def patterns_in(records: Iterable[Record]) -> list[str]:
    found = {pattern_of(record) for record in records}
    return [pattern for pattern in PATTERNS if pattern in found]


def passes_in(records: Iterable[Record]) -> list[str]:
    found = {pass_of(record) for record in records}
    return [name for name in PASSES if name in found]


def contestants_in(records: Iterable[Record]) -> list[str]:
    """Names in the order people look for them: full first, then the alphabet."""
    return sorted({record.contestant for record in records}, key=contestant_order)


def contestant_order(name: str) -> tuple[int, tuple[str | int, ...]]:
    """Full first, then by name, numbers by their size."""
    base = entry_name(name)
    rank = 0 if base == "full" else 1 if base.startswith("full") else 2
    return rank, tuple(int(part) if part.isdecimal() else part for part in _NUMBER.split(name))


def entry_name(contestant: str) -> str:
    """The name a contestant was entered under, without the options that `relabel` added."""
    return contestant.split(" (", 1)[0]


def is_variant(contestant: str) -> bool:
    """Whether it is to be ranked and recommended: not other people's, and no baseline."""
    return not contestant.startswith(PEER) and entry_name(contestant) != NO_MIXING


def asked(record: Record) -> dict[str, Any]:
    """The request of a record without its seed, the same whichever version made it.

    What a version added with a default is filled in; the capability, which follows from the task,
    is left out.
    """
    request = {name: value for name, value in record.request.items() if name != "seed"}
    for group, defaults in _ADDED.items():
        if isinstance(request.get(group), Mapping):
            request[group] = {**defaults, **request[group]}
    if "task" in request:
        request["task"] = {n: v for n, v in request["task"].items() if n != "capability"}
    return request


_ADDED = {"model": {"dropout": 0.0}}


def relabel(records: Iterable[Record]) -> list[Record]:
    """Tell apart records of one name that were taken with different options.

    Where one name covers several option sets in the same workload (apart from length) or task,
    the options that differ join the name: ``local_window (window=64)``. Failures carry the options
    as requested, perhaps fewer; they join the only set they agree with, or keep the bare name.
    """
    groups: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        groups[(record.measure, record.contestant, _group(record))].append(record)
    return [named for members in groups.values() for named in _tell_apart(members)]


def shared_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Options that both have with different values, those of the surroundings aside."""
    names = (set(one) & set(other)) - SURROUNDINGS
    return sorted(name for name in names if _text(one[name]) != _text(other[name]))


def _asked(record: Record) -> Mapping[str, Any]:
    """The workload of a record, or its task."""
    return record.request.get("task", record.request)


def _group(record: Record) -> Hashable:
    """The request apart from length and seed, with pattern, pass and machine."""
    if record.measure == "cost":
        return Setting.of(record), pattern_of(record), pass_of(record)
    request = {name: value for name, value in asked(record).items() if name != "length"}
    return _text({**request, "machine": machine(record)})


def _tell_apart(members: list[Record]) -> list[Record]:
    sets = {_text(identity(record)): identity(record) for record in members if record.ok}
    if len(sets) < 2:
        return members
    shared = set.intersection(*(set(identity) for identity in sets.values()))
    differing = sorted(
        name for name in shared if len({_text(identity[name]) for identity in sets.values()}) > 1
    )
    suffixes = {
        suffix_of(identity, differing): {name: identity[name] for name in differing}
        for identity in sets.values()
    }
    named = []
    for record in members:
        mine = identity(record)
        fitting = [
            suffix
            for suffix, values in suffixes.items()
            if not any(contradicts(mine.get(name), value) for name, value in values.items())
        ]
        suffix = fitting[0] if len(fitting) == 1 else ""
        named.append(record.renamed(record.contestant + suffix))
    return named


def contradicts(requested: Any, effective: Any) -> bool:
    """None in a request leaves the choice open."""
    return requested is not None and _text(requested) != _text(effective)


def identity(record: Record) -> dict[str, Any]:
    """The variant and its options, without those of the surroundings."""
    kept = {name: value for name, value in record.options.items() if name not in SURROUNDINGS}
    return {"variant": record.variant, **kept}


def suffix_of(identity: Mapping[str, Any], names: list[str]) -> str:
    """`` (window=64)``: what joins the name of a contestant; empty without names."""
    if not names:
        return ""
    return " (" + ", ".join(f"{name}={_plain(identity[name])}" for name in names) + ")"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
