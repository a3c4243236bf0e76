"""Attention you can see: which query sees which key, and with which weight, for one variant."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm, ListedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, MultipleLocator
from torch import Tensor

from efficient_attn.plots.language import say
from efficient_attn.plots.sight import Sight, observe
from efficient_attn.plots.style import new_figure, style_of

MOST_PANELS = 8
UNSEEN, PADDING, RULE = "#f2f2f2", "#bdbdbd", "#777777"
_PATTERN_WORDS = {
    "noncausal_self": "self-attention, not causal",
    "causal_self": "causal self-attention",
    "noncausal_cross": "cross-attention, not causal",
    "causal_cross": "causal cross-attention, aligned at the last key",
}


def visibility_figure(
    variant: str,
    options: Mapping[str, Any],
    *,
    length: int,
    heads: int = 4,
    head_dim: int = 16,
    pattern: str = "noncausal_self",
    padding: float = 0.25,
    seed: int = 0,
) -> Figure:
    """Who sees whom under `variant`, with and without padding, and its weights head by head.

    length: N queries, at most 512, and as many keys (half as many again where a pattern of
    ``*_cross`` allows another number); padding: share of keys masked in the padded example, 0 for
    none; q and k are drawn normal from `seed`. The first 8 heads are shown.

    Raises `UnsupportedAttention` for a pattern the variant refuses, `OptionError` for options that
    are wrong, ValueError for a pattern or padding that does not exist.
    """
    sight = observe(
        variant,
        options,
        length=length,
        heads=heads,
        head_dim=head_dim,
        pattern=pattern,
        padding=padding,
        seed=seed,
    )
    sheet = _Sheet(sight)
    _draw_visibility(sheet, sight)
    _draw_weights(sheet, sight)
    return sheet.figure


class _Sheet:
    """Where the panels stand, in inches: panels are square in tokens, so sizes are known ahead."""

    upper_side, lower_side = 3.1, 2.5
    upper_title, lower_title = 0.48, 0.28
    left_of_panel, below_panel = 0.65, 0.5
    bar = 0.95

    def __init__(self, sight: Sight) -> None:
        H, N, M = sight.weights.shape
        self.flatness = N / M
        self.shown = min(H, MOST_PANELS)
        self.columns = min(self.shown, 4)
        self.rows = -(-self.shown // self.columns)
        self.upper = 1 + (sight.padded is not None) + (sight.grid is not None)
        upper_width = self.upper * (self.left_of_panel + self.upper_side)
        lower_width = self.columns * (self.left_of_panel + self.lower_side) + self.bar
        self.width = max(upper_width, lower_width, 6.8) + 0.3
        title = _title(sight, int(self.width * 12))
        about = _about_weights(sight, self.shown)
        self.top = 0.25 + 0.2 * len(title)
        self.middle = self.top + 0.25 + self.upper_pitch + 0.45
        self.bottom = self.middle + 0.1 + 0.2 * len(about)
        self.height = self.bottom + self.rows * self.lower_pitch + 0.05
        self.upper_left = (self.width - upper_width) / 2
        self.lower_left = (self.width - lower_width) / 2
        self.figure = new_figure(self.width, self.height)
        self.figure.set_layout_engine("none")
        self.write("\n".join(title), 0.12, 11)
        self.write(say("Who sees whom: a row is a query, a column is a key"), self.top, 10)
        self.write("\n".join(about), self.middle, 10)

    @property
    def upper_pitch(self) -> float:
        return self.upper_title + self.upper_side * self.flatness + self.below_panel

    @property
    def lower_pitch(self) -> float:
        return self.lower_title + self.lower_side * self.flatness + self.below_panel

    def write(self, text: str, below_top: float, size: float) -> None:
        """Centred text whose upper edge stands that far below the sheet's."""
        self.figure.text(0.5, 1 - below_top / self.height, text, ha="center", va="top", size=size)

    def upper_panel(self, place: int) -> Axes:
        left = self.upper_left + place * (self.left_of_panel + self.upper_side)
        return self._panel(left, self.top + 0.25 + self.upper_title, self.upper_side)

    def head_panel(self, head: int) -> Axes:
        row, column = divmod(head, self.columns)
        left = self.lower_left + column * (self.left_of_panel + self.lower_side)
        top = self.bottom + row * self.lower_pitch + self.lower_title
        return self._panel(left, top, self.lower_side)

    def bar_axes(self) -> Axes:
        left = self.lower_left + self.columns * (self.left_of_panel + self.lower_side) + 0.25
        height = (self.rows - 1) * self.lower_pitch + self.lower_side * self.flatness
        return self._place(left, self.bottom + self.lower_title, 0.14, height)

    def _panel(self, left: float, top: float, side: float) -> Axes:
        return self._place(left + self.left_of_panel, top, side, side * self.flatness)

    def _place(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = 1 - (top + height) / self.height
        box = (left / self.width, bottom, width / self.width, height / self.height)
        return self.figure.add_axes(box)

    def legend(self, handles: list[Artist]) -> None:
        self.figure.legend(
            handles=handles,
            loc="center",
            bbox_to_anchor=(0.5, 1 - (self.middle - 0.3) / self.height),
            ncols=len(handles),
            fontsize=9,
            frameon=False,
        )


def _title(sight: Sight, width: int) -> list[str]:
    _, N, M = sight.weights.shape
    options = ", ".join(
        f"{name}={value!r}"
        for name, value in asdict(sight.core.options).items()
        if value is not None
    )
    sizes = say("queries N={N}, keys M={M}", N=N, M=M)
    return [
        f"{sight.core.name}: {say(_PATTERN_WORDS[sight.pattern])}, {sizes}",
        *textwrap.wrap(options or say("no options"), width),
    ]


def _about_weights(sight: Sight, shown: int) -> list[str]:
    """What the heat maps hold, in words."""
    heads = sight.weights.shape[0]
    which = say("by head")
    if shown < heads:
        which = say("first {shown} of {heads} heads", shown=shown, heads=heads)
    sums = sight.weights.sum(-1)[(sight.weights != 0).any(-1)]
    if sums.numel() == 0:
        rows = say("all are zero")
    elif torch.allclose(sums, torch.ones_like(sums)):
        rows = say("each row sums to 1")
    else:
        low, high = float(sums.min()), float(sums.max())
        rows = say("rows sum to {low:.2g} … {high:.2g}", low=low, high=high)
    lines = [f"{say('Weight of a key (column) in the output of a query (row)')}, {which}; {rows}"]
    return [*lines, say(sight.materialised)] if sight.materialised else lines


def _draw_visibility(sheet: _Sheet, sight: Sight) -> None:
    colour = style_of(sight.core.name).color
    kinds: list[Artist] = [_swatch(colour, say("seen")), _swatch(UNSEEN, say("not seen"))]
    axes = sheet.upper_panel(0)
    title = say("no padding")
    if sight.why_not:
        title = say("no padded example: {name} takes no key padding mask", name=sight.core.name)
    _seen_panel(axes, sight, sight.weights, 0, colour, title)
    if sight.padded is not None:
        title = say("the last {missing} keys are padding", missing=sight.missing)
        axes = sheet.upper_panel(1)
        _seen_panel(axes, sight, sight.padded, sight.missing, colour, title)
        kinds.append(_swatch(PADDING, say("padding, hidden from all")))
        if sight.pattern.endswith("_self"):
            edge = sight.weights.shape[1] - sight.missing - 0.5
            axes.axhline(edge, color="#d62728", linestyle="--", linewidth=1.2)
            label = say("below it: queries of padding")
            kinds.append(Line2D([], [], color="#d62728", linestyle="--", label=label))
    if sight.grid is not None:
        _grid_panel(sheet.upper_panel(sheet.upper - 1), sight.weights, sight.grid)
    sheet.legend(kinds)


def _swatch(colour: str, label: str) -> Patch:
    return Patch(facecolor=colour, edgecolor=RULE, linewidth=0.6, label=label)


def _seen_panel(
    axes: Axes, sight: Sight, weights: Tensor, missing: int, colour: str, title: str
) -> None:
    seen = (weights != 0).any(0).numpy()
    kind = seen.astype(int)
    hidden = kind[:, seen.shape[1] - missing :]
    hidden[hidden == 0] = 2  # a padded key that leaks stays drawn as seen
    axes.imshow(kind, cmap=ListedColormap([UNSEEN, colour, PADDING]), vmin=0, vmax=2)
    low, high = seen.sum(1).min(), seen.sum(1).max()
    count = f"{low}" if low == high else say("{low} to {high}", low=low, high=high)
    sees = say("{count} keys per query" if high != 1 else "{count} key per query", count=count)
    axes.set_title(f"{title}\n{sees}", fontsize=9)
    axes.set_ylabel(say("query"), fontsize=9)
    axes.set_xlabel(say("key"), fontsize=9)
    _axes_of_tokens(axes, sight)


def _grid_panel(axes: Axes, weights: Tensor, grid: tuple[int, int]) -> None:
    """The tokens where they stand, coloured by the set of keys they see."""
    seen = (weights != 0).any(0)
    _, group = torch.unique(seen, dim=0, return_inverse=True)
    order = {name: place for place, name in enumerate(dict.fromkeys(group.tolist()))}
    places = np.array([order[name] for name in group.tolist()]).reshape(grid)
    axes.imshow(places % 10, cmap="tab10", vmin=0, vmax=9, alpha=0.7)
    if places.size <= 144:
        for (row, column), place in np.ndenumerate(places):
            axes.text(column, row, str(place), ha="center", va="center", fontsize=8)
    title = say("the {rows}×{columns} grid of tokens", rows=grid[0], columns=grid[1])
    axes.set_title(f"{title}\n{say('equal numbers see the same keys')}", fontsize=9)
    axes.set_xlabel(say("column"), fontsize=9)
    axes.set_ylabel(say("row"), fontsize=9)
    _integer_ticks(axes)


def _draw_weights(sheet: _Sheet, sight: Sight) -> None:
    weights = sight.weights.numpy()
    signed = bool((weights < 0).any())
    largest = float(np.abs(weights).max()) or 1.0
    norm: Normalize = CenteredNorm(0.0, largest) if signed else PowerNorm(0.5, 0.0, largest)
    colours = colormaps["RdBu_r" if signed else "viridis"].with_extremes(bad=UNSEEN)
    unseen = ~(weights != 0).any(0)
    for head in range(sheet.shown):
        axes = sheet.head_panel(head)
        image = axes.imshow(np.ma.masked_array(weights[head], unseen), cmap=colours, norm=norm)
        axes.set_title(say("head {head}", head=head), fontsize=9)
        if head % sheet.columns == 0:
            axes.set_ylabel(say("query"), fontsize=9)
        if head + sheet.columns >= sheet.shown:
            axes.set_xlabel(say("key"), fontsize=9)
        _axes_of_tokens(axes, sight)
    bar = sheet.figure.colorbar(image, cax=sheet.bar_axes())
    bar.set_label(say("weight, white is 0" if signed else "weight, root scale"), fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _axes_of_tokens(axes: Axes, sight: Sight) -> None:
    """Ticks at whole tokens; thin lines between tokens, or between the rows of a grid."""
    _, N, M = sight.weights.shape
    _integer_ticks(axes)
    if sight.grid is not None:
        columns = sight.grid[1]
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MultipleLocator(columns * math.ceil(N / columns / 8)))
        for edge in range(columns, N, columns):
            axes.axvline(edge - 0.5, color=RULE, linewidth=0.6)
            axes.axhline(edge - 0.5, color=RULE, linewidth=0.6)
    elif max(N, M) <= 48:
        axes.set_xticks(np.arange(M - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(N - 1) + 0.5, minor=True)
        axes.grid(True, which="minor", color="white", linewidth=0.4)
        axes.tick_params(which="minor", length=0)


def _integer_ticks(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.tick_params(labelsize=8)
