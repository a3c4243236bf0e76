"""Options of a variant as words of a command line: ``--option window=8``."""

from __future__ import annotations

import ast
import os
import sys
from typing import Any

_WORDS = {"true": True, "false": False, "null": None}


def look_here() -> None:
    """Let "module:Class" be found in the working directory, after everything installed."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """``["window=8", "grid=(6, 6)"]`` as ``{"window": 8, "grid": (6, 6)}``.

    A value is read as a Python literal, or as a sweep's overrides spell it (true, false, null);
    anything else is text. ValueError for a pair of another form and for a name given twice.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (name.isidentifier() and equals and value):
            raise ValueError(
                f"option {pair!r} is not of the form name=value, for example window=8, "
                "grid='(6, 6)' or implementation=naive"
            )
        if name in options:
            raise ValueError(f"option {name!r} is given twice, last as {pair!r}: give it once")
        options[name] = _read(value)
    return options


def _read(value: str) -> Any:
    if value in _WORDS:
        return _WORDS[value]
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value
