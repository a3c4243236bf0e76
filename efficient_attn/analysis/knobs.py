"""The option by which a variant trades time for closeness to full attention: its knob."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from efficient_attn.bench.workload import Workload

KNOBS = {
    "local_window": "window",
    "shifted_window": "window",
    "performer": "num_features",
    "linformer": "k",
}
"""Variant → its knob. Variants of one's own have none that is known here."""

BLOCK, WHOLE = 64, 96
"""Queries of a block of `local_window`; tokens up to which `shifted_window` takes all at once."""


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
        return float(min(1 + sum(sides(value, causal=causal)), keys))
    if variant == "shifted_window":
        return float(min(math.prod(value) if pair else value, length))
    return float(value)


def sides(window: Any, *, causal: bool) -> tuple[int, int]:
    """Keys in sight on the left and on the right."""
    left, right = window if isinstance(window, (list, tuple)) else (window, window)
    return left, 0 if causal else right


def scored(variant: str, options: Mapping[str, Any], work: Workload) -> float:
    """K of the cost models: keys that one query is scored against, those in vain included.

    As `knob`, but for windows: blocks of queries share their keys, and a sequence that is short
    beside the window is taken whole.
    """
    length, keys = work.length, work.keys
    reach = knob(variant, options, length, keys, causal=work.causal)
    if work.pass_ in ("prefill", "decode"):
        return reach
    if variant == "shifted_window" and length <= WHOLE and not options.get("relative_bias"):
        return float(length)
    if variant != "local_window" or options.get(KNOBS[variant]) is None:
        return reach
    left, right = sides(options["window"], causal=work.causal)
    width = min(left, length - 1) + min(right, length - 1)
    short = width + 4 * BLOCK if work.backward else 1.5 * (width + BLOCK)
    if length <= short:
        return float(keys)
    large = work.backward and width > BLOCK
    return float(min(width + (BLOCK if large else BLOCK // 2), keys))


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
