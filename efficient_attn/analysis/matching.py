"""Which stored records speak about a request, and what to say when none does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from efficient_attn.analysis.overrides import sweep_command
from efficient_attn.analysis.request import Request
from efficient_attn.analysis.rivals import Ground, grounds
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
from efficient_attn.bench.workload import Workload


class NothingMeasured(LookupError):  # noqa: N818  (says what happened, as UnsupportedAttention)
    """No stored record is about the requested workload; the text says what would measure it."""


def matching(records: Iterable[Record], request: Request) -> tuple[Ground, list[Record], list[str]]:
    """The ground of the request with its records of every size, and notes on what was chosen.

    Where the request leaves threads, scope or machine open and several were measured, one is taken:
    that which measured the requested workload, then that with most contestants, then the newest.
    NothingMeasured when no record of the requested pattern fits.
    """
    cost = [record for record in records if record.measure == "cost"]
    found = {
        ground: members
        for ground, members in grounds(cost).items()
        if not _differences(ground, request)
        and any(pattern_of(record) == request.pattern for record in members)
    }
    if not found:
        raise NothingMeasured(explain_absence(cost, request))
    asked = [request.at_length(length) for length, _ in request.shares]

    def worth(ground: Ground) -> tuple[bool, int, str]:
        members = found[ground]
        same = any(is_about(record, work) for record in members for work in asked)
        return same, len(contestants_in(members)), max(record.created for record in members)

    chosen = max(found, key=worth)
    notes = [f"taken with {_circumstances(chosen)}"]
    if len(found) > 1:
        others = "; ".join(_circumstances(other) for other in found if other != chosen)
        notes.append(f"also in these results: {others} (ask for them by threads, scope or machine)")
    return chosen, found[chosen], notes


def is_about(record: Record, work: Workload) -> bool:
    """Whether a record of the right ground is of this very pattern and size."""
    request = record.request
    return (
        request["length"] == work.length
        and (request["key_length"] or request["length"]) == work.keys
        and all(
            request[name] == getattr(work, name)
            for name in ("pattern", "batch", "heads", "head_dim", "padding")
        )
    )


def explain_absence(cost: list[Record], request: Request) -> str:
    """Which requests the results do contain, nearest first, and the command for this one."""
    known = {record.contestant: (record.variant, record.options) for record in cost if record.ok}
    names = contestants_in(costs(cost)) or ["full"]
    candidates = [(name, *known.get(name, ("", {}))) for name in names]
    lines = [f"These results hold no measurement of: {request}."]
    groups: dict[tuple[Setting, str, str], list[Record]] = defaultdict(list)
    for record in newest(costs(cost)):
        groups[Setting.of(record), pattern_of(record), pass_of(record)].append(record)
    if not groups:
        lines.append("They hold no cost measurement at all.")
    else:
        lines.append("They do hold:")
        names_of = setting_names(dict.fromkeys(setting for setting, _, _ in groups))
        nearest = sorted(
            groups, key=lambda key: len(_differences(Ground.of(groups[key][0]), request))
        )
        for key in nearest[:12]:
            setting, pattern, pass_ = key
            lengths = sorted({length_of(record) for record in groups[key]})
            asked = ", ".join(_differences(Ground.of(groups[key][0]), request)) or "pattern"
            lines.append(
                f"  {PATTERN_NAMES[pattern]}, {PASS_NAMES[pass_]}, {names_of[setting]}: "
                f"N = {', '.join(map(str, lengths))}" + (f"  (differs in: {asked})")
            )
        if len(nearest) > 12:
            lines.append(f"  and {len(nearest) - 12} more settings")
    lines += ["To measure it:", f"  {sweep_command(candidates, request)}"]
    return "\n".join(lines)


def _differences(ground: Ground, request: Request) -> list[str]:
    """Names of the requested fields that a ground was measured without."""
    wanted = Ground.asked(request.workload, threads=request.threads, machine="")
    crossing = request.workload.cross and ground.scope != "core"
    asked = {
        "pattern": ((ground.causal, ground.cross), (request.workload.causal, crossing)),
        "pass": (ground.pass_, wanted.pass_),
        "padding": (ground.padded, wanted.padded),
    }
    for name in ("dtype", "device", "compile"):
        asked[name] = (getattr(ground, name), getattr(wanted, name))
    for name in ("threads", "scope", "machine"):
        if getattr(request, name) is not None:
            asked[name] = (getattr(ground, name), getattr(request, name))
    return [name for name, (found, sought) in asked.items() if found != sought]


def _circumstances(ground: Ground) -> str:
    threads = "all threads" if ground.threads is None else f"threads={ground.threads}"
    parts = [f"scope={ground.scope}", threads]
    if ground.machine:
        parts.append(f"machine={ground.machine!r}")
    return ", ".join(parts)
