"""The workload a person describes, and which stored records speak about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from efficient_attn.analysis.select import (
    PASS_NAMES,
    PATTERN_NAMES,
    Setting,
    contestants_in,
    costs,
    length_of,
    newest,
    pass_of,
    pattern_of,
    setting_names,
)
from efficient_attn.bench.record import Record
from efficient_attn.bench.workload import Dtype, Pass, Pattern, Scope, Workload


class NothingMeasured(LookupError):  # noqa: N818  (says what happened, as UnsupportedAttention)
    """No stored record is about the requested workload; the text says what would measure it."""


@dataclass(frozen=True)
class Request:
    """A described workload with its hard limits.

    length: queries N; key_length: keys M, equal to `length` when None (differs only for cross).
    padding: share of right padding in [0, 1). pass_, compile: as in `Workload`.
    threads, scope, machine: None takes whatever was measured, never mixed, and says which.
    memory_gb: limit on peak memory above the inputs, in GiB (2^30 bytes); time_ms: limit on the
        median time of one pass; None for no limit. need_weights: only variants that can return
        attention weights.

    ValueError names the field that is out of range.
    """

    length: int
    pattern: Pattern = "noncausal_self"
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    key_length: int | None = None
    padding: float = 0.0
    dtype: Dtype = "float32"
    device: str = "cpu"
    pass_: Pass = "forward"
    threads: int | None = None
    scope: Scope | None = None
    compile: bool = False
    machine: str | None = None
    memory_gb: float | None = None
    time_ms: float | None = None
    need_weights: bool = False

    def __post_init__(self) -> None:
        self.workload  # noqa: B018  its own checks are the checks of the fields they share
        for name in ("memory_gb", "time_ms"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"{name}={limit!r} must be greater than 0; leave it out for none")

    @property
    def workload(self) -> Workload:
        return Workload(
            batch=self.batch,
            heads=self.heads,
            head_dim=self.head_dim,
            length=self.length,
            key_length=self.key_length,
            pattern=self.pattern,
            padding=self.padding,
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
            pass_=self.pass_,
            scope=self.scope or "core",
            compile=self.compile,
        )

    @property
    def keys(self) -> int:
        """Number of keys M."""
        return self.workload.keys

    def __str__(self) -> str:
        parts = [
            f"{PATTERN_NAMES[self.pattern]}, {PASS_NAMES[self.pass_]}",
            f"N={self.length}" + ("" if self.keys == self.length else f", M={self.keys}"),
            f"batch {self.batch}, {self.heads} heads × {self.head_dim}",
            f"{self.dtype}, {self.device}",
        ]
        if self.padding:
            parts.append(f"{self.padding:.0%} padding")
        if self.memory_gb is not None:
            parts.append(f"at most {self.memory_gb:g} GiB")
        if self.time_ms is not None:
            parts.append(f"at most {self.time_ms:g} ms")
        if self.need_weights:
            parts.append("with attention weights")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        return {item.name.rstrip("_"): getattr(self, item.name) for item in fields(self)}


def matching(records: Iterable[Record], request: Request) -> tuple[list[Record], list[str]]:
    """Cost records of the requested workload at every length, and notes on what was chosen.

    Contestants carry their distinguishing options in the name. Where the request leaves threads,
    scope or machine open and several were measured, one is taken: that which measured the
    requested length, then that with most contestants, then the newest. NothingMeasured when no
    record fits.
    """
    groups: dict[Setting, list[Record]] = defaultdict(list)
    cost = costs(records)
    for record in cost:
        if _fits(record, request):
            groups[Setting.of(record)].append(record)
    if not groups:
        raise NothingMeasured(explain_absence(cost, request))

    def worth(setting: Setting) -> tuple[bool, int, str]:
        members = groups[setting]
        at_length = any(length_of(record) == request.length for record in members)
        return at_length, len(contestants_in(members)), max(record.created for record in members)

    chosen = max(groups, key=worth)
    notes = [f"taken with {_circumstances(chosen)}"]
    if len(groups) > 1:
        others = "; ".join(_circumstances(other) for other in groups if other != chosen)
        notes.append(f"also in these results: {others} (ask for them by threads, scope or machine)")
    return groups[chosen], notes


def sweep_command(names: Iterable[str], request: Request) -> str:
    """The command line that measures the request for these contestants.

    names: contestants, with the options that `relabel` put in brackets after them, if any.
    """
    entries, options = [], []
    for name in names:
        entry, _, rest = name.partition(" (")
        if entry in entries:
            continue
        entries.append(entry)
        for option in _split_options(rest.removesuffix(")")):
            if not option.startswith("variant="):
                options.append(f"'attention.{entry}.{option}'")
    asked: dict[str, Any] = {
        "length": request.length,
        "pattern": request.pattern,
        "batch": request.batch,
        "heads": request.heads,
        "head_dim": request.head_dim,
        "dtype": request.dtype,
        "device": request.device,
        "pass": request.pass_,
    }
    if request.keys != request.length:
        asked["key_length"] = request.keys
    if request.padding:
        asked["padding"] = request.padding
    if request.threads is not None:
        asked["threads"] = request.threads
    if request.scope is not None:
        asked["scope"] = request.scope
    overrides = [f"workload.{name}={value}" for name, value in asked.items()]
    return " ".join(
        ["efficient-attn sweep", f"'attention=[{','.join(entries)}]'", *overrides, *options]
    )


def explain_absence(cost: list[Record], request: Request) -> str:
    """Which requests the results do contain, nearest first, and the command for this one."""
    names = contestants_in(cost) or ["full"]
    lines = [f"These results hold no measurement of: {request}."]
    groups: dict[tuple[Setting, str, str], list[Record]] = defaultdict(list)
    for record in newest(cost):
        groups[Setting.of(record), pattern_of(record), pass_of(record)].append(record)
    if not groups:
        lines.append("They hold no cost measurement at all.")
    else:
        lines.append("They do hold:")
        names_of = setting_names(dict.fromkeys(setting for setting, _, _ in groups))
        nearest = sorted(groups, key=lambda key: len(_differences(groups[key][0], request)))
        for key in nearest[:12]:
            setting, pattern, pass_ = key
            lengths = sorted({length_of(record) for record in groups[key]})
            asked = ", ".join(_differences(groups[key][0], request))
            lines.append(
                f"  {PATTERN_NAMES[pattern]}, {PASS_NAMES[pass_]}, {names_of[setting]}: "
                f"N = {', '.join(map(str, lengths))}" + (f"  (differs in: {asked})")
            )
        if len(nearest) > 12:
            lines.append(f"  and {len(nearest) - 12} more settings")
    lines += ["To measure it:", f"  {sweep_command(names, request)}"]
    return "\n".join(lines)


def _fits(record: Record, request: Request) -> bool:
    return not _differences(record, request)


def _differences(record: Record, request: Request) -> list[str]:
    """Names of the requested fields, apart from length, that a record was taken without."""
    setting = Setting.of(record)
    asked = {
        "pattern": (pattern_of(record), request.pattern),
        "pass": (pass_of(record), request.pass_),
        "key_length": (
            setting.key_length,
            None if request.keys == request.length else request.keys,
        ),
    }
    for name in ("batch", "heads", "head_dim", "padding", "dtype", "device", "compile"):
        asked[name] = (getattr(setting, name), getattr(request, name))
    for name in ("threads", "scope", "machine"):
        if getattr(request, name) is not None:
            asked[name] = (getattr(setting, name), getattr(request, name))
    return [name for name, (found, wanted) in asked.items() if found != wanted]


def _circumstances(setting: Setting) -> str:
    threads = "all threads" if setting.threads is None else f"threads={setting.threads}"
    parts = [f"scope={setting.scope}", threads]
    if setting.machine:
        parts.append(f"machine={setting.machine!r}")
    return ", ".join(parts)


def _split_options(text: str) -> list[str]:
    """``window=[8,8], share=kv`` at its commas outside brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "[{") - (sign in "]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]
