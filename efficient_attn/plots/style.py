"""One look per contestant in every figure, and how axes say which direction is better.

Colours are Okabe and Ito's palette and Tol's muted one, both made for colour-blind readers; marker
and dashes repeat the distinction for print in grey.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from efficient_attn.analysis.select import Setting, entry_name
from efficient_attn.plots.language import say, say_setting

LOWER = "↓ lower is better"
HIGHER = "↑ higher is better"

_KNOWN = {
    "full": ("#000000", "o"),
    "full_naive": ("#777777", "s"),
    "local_window": ("#0072B2", "^"),
    "linformer": ("#E69F00", "D"),
    "performer": ("#009E73", "v"),
    "shifted_window": ("#CC79A7", "P"),
    "no_mixing": ("#8c8c8c", "x"),
}
_COLOURS = ("#D55E00", "#56B4E9", "#332288", "#882255", "#999933", "#44AA99")
_MARKERS = ("<", ">", "p", "h", "*", "d", "8", "H")
SHARES = ("accuracy", "exact_match")
PREDICTED_DASHES = (0, (4, 2))
_DASHES = ((0, (5, 2)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2, 1, 2)))


@dataclass(frozen=True)
class Style:
    """Keyword arguments of a matplotlib line."""

    color: str
    marker: str
    linestyle: Any = "-"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def predicted(self) -> dict[str, Any]:
        """The same for values that were not measured: dashed, with hollow markers."""
        hollow = {"markerfacecolor": "white", "linestyle": PREDICTED_DASHES}
        return {**asdict(self), **hollow, "linewidth": 1.1}


def style_of(contestant: str, variant: str | None = None) -> Style:
    """The look of a contestant: a function of its name (and variant) alone, never of the company.

    An unknown name of a known variant keeps the variant's colour with its own marker and dashes;
    an unknown variant gets a colour from the rest of the palette, a marker and a line.
    """
    if contestant in _KNOWN:
        return Style(*_KNOWN[contestant])
    number = int.from_bytes(hashlib.sha256(contestant.encode()).digest()[:4], "big")
    marker = _MARKERS[number % len(_MARKERS)]
    dashes = _DASHES[number // len(_MARKERS) % len(_DASHES)]
    for base in (entry_name(contestant), variant):
        if base in _KNOWN:
            return Style(_KNOWN[base][0], marker, dashes)
    line = ("-", *_DASHES)[number // len(_MARKERS) % (len(_DASHES) + 1)]
    return Style(_COLOURS[number // 64 % len(_COLOURS)], marker, line)


def new_figure(width: float, height: float) -> Figure:
    """A figure in inches with automatic layout and no window or global state behind it."""
    return Figure(figsize=(width, height), layout="constrained", dpi=120)


def heading(figure: Figure, title: str, setting: Setting) -> None:
    """The title, and below it what is the same in the whole figure."""
    fixed = say_setting(setting)
    lines = [title, fixed, *([setting.machine] if setting.machine else [])]
    figure.suptitle("\n".join(lines), fontsize=11)


def setting_of(settings: Iterable[Setting], asked: Setting | None) -> Setting:
    """The setting asked for, the first when None; ValueError when there is none such."""
    settings = list(settings)
    if not settings:
        raise ValueError("there are no cost records to draw: run a sweep first")
    if asked is None:
        return settings[0]
    if asked not in settings:
        there = "; ".join(map(str, settings))
        raise ValueError(f"no cost records of {asked}; there are: {there}")
    return asked


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


def wrapped(title: str) -> str:
    """In lines that a panel is wide enough for."""
    return "\n".join(textwrap.wrap(title, 44))


def within_shares(limits: tuple[float, float], metric: str) -> tuple[float, float]:
    """Limits of an axis: intervals of a share over few seeds reach beyond [0, 1], to no use."""
    low, high = limits
    return (max(low, -0.04), min(high, 1.06)) if metric in SHARES else limits


def length_axis(axes: Axes, lengths: list[int]) -> None:
    """Logarithmic axis with a tick at measured lengths, thinned so that labels stay apart."""
    axes.set_xscale("log", base=2)
    step = -(-len(lengths) // 7)
    shown = lengths[::-1][::step][::-1]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.set_xlabel(say("length N"), fontsize=9)


def plain_numbers(value: float, _position: int | None = None) -> str:
    """Tick text without powers of ten where people read them easily."""
    return f"{value:g}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.0e}"


def dark(colour: str) -> str:
    """The same colour for a dark ground: greys turned over, others lightened until they show."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    if red == green == blue:
        red = green = blue = 255 - red // 2
    while 0.2126 * red + 0.7152 * green + 0.0722 * blue < 120:
        red, green, blue = (value + (255 - value) // 8 + 1 for value in (red, green, blue))
    return f"#{red:02x}{green:02x}{blue:02x}"
