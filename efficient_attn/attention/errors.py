"""Errors of the attention package, and the checks that raise them for options."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


class UnsupportedAttention(ValueError):  # noqa: N818  (a public name that is a contract)
    """A variant cannot honour what was asked; the message names the variants that can."""


class OptionError(ValueError):
    """An option of a wrong name, type or range; the message says what is allowed."""


def require_int(option: str, value: Any, *, low: int, high: int | None = None) -> None:
    """Raise `OptionError` unless `value` is a whole number in [low, high]."""
    allowed = f"a whole number of at least {low}" if high is None else f"in {low}...{high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{option}={value!r}: allowed is {allowed}")
    if value < low or (high is not None and value > high):
        raise OptionError(f"{option}={value!r}: allowed is {allowed}")


def require_number(option: str, value: Any, *, low: float | None = None) -> None:
    """Raise `OptionError` unless `value` is a finite number, of at least `low` where given."""
    allowed = "a finite number" if low is None else f"a finite number of at least {low:g}"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or (low is not None and value < low):
        raise OptionError(f"{option}={value!r}: allowed is {allowed}")


def require_probability(option: str, value: Any) -> None:
    """Raise `OptionError` unless `value` is a number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise OptionError(f"{option}={value!r}: allowed is a probability in [0, 1)")


def require_choice(option: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise `OptionError` unless `value` is one of `allowed`."""
    choices = list(allowed)
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise OptionError(f"{option}={value!r}: allowed are {', '.join(map(repr, choices))}")


def as_pair(option: str, value: Any, *, low: int) -> tuple[int, int]:
    """A pair of whole numbers of at least `low`, from a list or tuple of two."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise OptionError(f"{option}={value!r}: allowed is a pair of whole numbers, e.g. (4, 4)")
    for part in value:
        require_int(option, part, low=low)
    return int(value[0]), int(value[1])


def as_sides(option: str, value: Any, *, low: int) -> tuple[int, int]:
    """A pair as in `as_pair`, or one whole number for both sides."""
    if isinstance(value, (list, tuple)):
        return as_pair(option, value, low=low)
    require_int(option, value, low=low)
    return value, value
