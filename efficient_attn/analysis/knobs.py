"""The option by which a variant trades time for closeness to full attention: its knob."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

KNOBS = {
    "local_window": "window",
    "shifted_window": "window",
    "performer": "num_features",
    "linformer": "k",
}
"""Variant → its knob. Variants of one's own have none that is known here."""


def knob(
    variant: str, options: Mapping[str, Any], length: int, keys: int, *, causal: bool
) -> float:
    """K, what one query meets under these options: 1 for a variant without a knob.

    Keys in sight of a window (left + right + 1, and left + 1 when causal; at most M), tokens of a
    shifted window (at most N), ``num_features`` of Performer, ``k`` of Linformer.
    """
    value = options.get(KNOBS.get(variant, ""))
    if value is None:
        return 1.0
    pair = isinstance(value, (list, tuple))
    if variant == "local_window":
        left, right = value if pair else (value, value)
        return float(min(left + 1 + (0 if causal else right), keys))
    if variant == "shifted_window":
        return float(min(math.prod(value) if pair else value, length))
    return float(value)


def with_knob(variant: str, options: Mapping[str, Any], value: int) -> dict[str, Any]:
    """The options with another value of the knob, a window on both sides where both are open."""
    name = KNOBS[variant]
    old = options.get(name)
    given: Any = value
    if isinstance(old, (list, tuple)):
        given = [value if side else 0 for side in old]
    return {**options, name: given}


def grid_values(low: float, high: float) -> list[int]:
    """Powers of two from `low` to `high`."""
    first = math.ceil(math.log2(max(low, 1.0)) - 1e-9)
    last = math.floor(math.log2(max(high, 1.0)) + 1e-9)
    return [2**power for power in range(first, last + 1)]


def is_exact(
    variant: str, options: Mapping[str, Any], length: int, keys: int, *, causal: bool
) -> bool:
    """Whether the outputs are those of softmax attention, by the definition of the variant.

    Full attention always; a window with every key in sight; an unshifted window, without a bias,
    that holds the whole sequence.
    """
    if variant == "full":
        return True
    if variant == "local_window":
        value = options["window"]
        left, right = value if isinstance(value, (list, tuple)) else (value, value)
        return left >= length - 1 and (causal or right >= length - 1)
    if variant == "shifted_window":
        value = options["window"]
        alone = options.get("shift") == 0 and not options.get("relative_bias")
        on_a_line = options.get("grid") is None and not isinstance(value, (list, tuple))
        return alone and on_a_line and value >= length
    return False
