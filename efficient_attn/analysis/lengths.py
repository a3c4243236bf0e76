"""A distribution of lengths, read from a file that counts or lists them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MOST = 32
"""Different lengths that a distribution keeps; more are joined to that many."""


def read_lengths(path: str | Path) -> tuple[tuple[int, float], ...]:
    """(length, count) by rising length.

    A text file has one length a line, or a length, a tab and how often it occurs; blank lines and
    those that begin with # do not count. A ``.json`` file holds a list of lengths, a list of
    [length, count] pairs, or an object {"length": count}. More than `MOST` different lengths are
    joined: neighbours of about equal total count, at their mean length; the longest stays as it is.
    ValueError names the file, the line or entry, and what is allowed.
    """
    path = Path(path)
    text = path.read_text()
    pairs = _json(text, path) if path.suffix == ".json" else _lines(text, path)
    counts: Counter[int] = Counter()
    for place, length, count in pairs:
        if not (_is_number(length) and length == int(length) and length >= 1):
            raise ValueError(f"{path}, {place}: {length!r} is not a whole length of at least 1")
        if not (_is_number(count) and math.isfinite(count) and count > 0):
            raise ValueError(f"{path}, {place}: {count!r} is not a count above 0")
        counts[int(length)] += count
    if not counts:
        raise ValueError(f"{path} holds no lengths: write one a line, or length<TAB>count")
    return joined(counts)


def joined(counts: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """At most `MOST` lengths with the same total count and the same longest."""
    ordered = sorted(counts.items())
    if len(ordered) <= MOST:
        return tuple((length, float(count)) for length, count in ordered)
    *rest, longest = ordered
    total = sum(count for _, count in rest)
    groups: dict[int, list[tuple[int, float]]] = {}
    passed = 0.0
    for length, count in rest:
        place = int((passed + count / 2) / total * (MOST - 1))
        groups.setdefault(place, []).append((length, count))
        passed += count
    means = []
    for group in groups.values():
        weight = sum(count for _, count in group)
        mean = sum(length * count for length, count in group) / weight
        means.append((round(mean), float(weight)))
    return (*means, (longest[0], float(longest[1])))


def _lines(text: str, path: Path) -> Iterable[tuple[str, Any, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise ValueError(
                f"{path}, line {number}: {line!r} is not a length, or length and count"
            )
        values = [_number(word) for word in words]
        yield f"line {number}", values[0], values[1] if len(values) == 2 else 1


def _json(text: str, path: Path) -> Iterable[tuple[str, Any, Any]]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    if isinstance(values, dict):
        for length, count in values.items():
            yield f"entry {length!r}", _number(length), count
    elif isinstance(values, list):
        for number, value in enumerate(values):
            pair = value if isinstance(value, list) and len(value) == 2 else [value, 1]
            yield f"entry {number}", pair[0], pair[1]
    else:
        raise ValueError(f"{path}: allowed are a list of lengths or an object of counts")


def _number(word: str) -> Any:
    try:
        return float(word)
    except ValueError:
        return word


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
