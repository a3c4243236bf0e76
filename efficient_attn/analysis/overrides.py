"""The words of a sweep that measures what a request asks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from efficient_attn.analysis.knobs import KNOBS
from efficient_attn.analysis.request import Request

Candidate: TypeAlias = tuple[str, str, Mapping[str, Any]]
"""Name (options in brackets), variant and options in effect."""


def sweep_command(candidates: Iterable[Candidate], request: Request) -> str:
    """The command line that measures the request for these contestants.

    candidates: name, variant and options. Options that the name has in brackets are repeated, and
    knobs; a contestant that stands there with several values is measured with each.
    """
    return " ".join(["efficient-attn sweep", *map(quoted, sweep_words(candidates, request))])


def quoted(word: str) -> str:
    """A word of Hydra as a shell takes it."""
    return f"'{word}'" if word.startswith("attention") else word


def sweep_words(candidates: Iterable[Candidate], request: Request) -> list[str]:
    """The overrides of `sweep_command`, one a word."""
    options: dict[str, dict[str, list[str]]] = {}
    for name, variant, given in candidates:
        entry, _, rest = name.partition(" (")
        mine = options.setdefault(entry, {})
        values = dict(part.split("=", 1) for part in _split_options(rest.removesuffix(")")))
        values.pop("variant", None)
        own = KNOBS.get(variant)
        if own and given.get(own) is not None:
            values.setdefault(own, json.dumps(given[own], separators=(",", ":")))
        for option, value in values.items():
            if value not in mine.setdefault(option, []):
                mine[option].append(value)
    asked: dict[str, Any] = {
        "length": ",".join(str(length) for length, _ in request.shares),
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
    if request.compile:
        asked["compile"] = "true"
    return [
        f"attention=[{','.join(options)}]",
        *(f"workload.{name}={value}" for name, value in asked.items()),
        *(
            f"attention.{entry}.{option}={','.join(values)}"
            for entry, given in options.items()
            for option, values in given.items()
        ),
    ]


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
