"""Time per generated token against the length of the context, in a whole language model.

    python benchmarks/decoding.py --variants full,local_window,performer --out results/decoding

For every variant and context a model with random weights reads that many tokens, and then the next
one, again and again after the same context. The variants take turns, one token each, so that a
drift of the machine meets all of them; samples that waited for a core are left out. Prints medians
with their 95 % intervals and the bytes of the state, and writes the figure to `--out` as
decoding.svg and decoding.png.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.table import Table

import efficient_attn as ea
from efficient_attn.analysis.terminal import MIB, console, number
from efficient_attn.bench.contention import waited_seconds
from efficient_attn.bench.intervals import Interval, median_interval, undisturbed
from efficient_attn.nn import LanguageModel
from efficient_attn.nn.mode import evaluating
from efficient_attn.nn.state import DecodingState
from efficient_attn.plots.render import save
from efficient_attn.plots.style import HIGHER, LOWER, length_axis, new_figure, style_of, tidy

VOCABULARY = 256
PREFILL = 512  # tokens read at once
_SPEEDS = (2, 5, 10, 20, 30, 50, 70, 100, 200, 300, 500, 1000)  # marks, in tokens per second


@dataclass(frozen=True)
class Point:
    """One variant after a context. ms: of one more token; state_bytes: of the whole model."""

    variant: str
    context: int
    ms: Interval
    state_bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, draw."""
    asked = _arguments(arguments)
    torch.set_num_threads(asked.threads)
    models = {name: _model(name, asked) for name in asked.variants}
    points = [
        point
        for context in asked.contexts
        for point in measure(models, context, asked.batch, asked.rounds)
    ]
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        for ending in ("svg", "png"):
            save(figure(points, _title(models, asked)), asked.out / f"decoding.{ending}")
    if asked.json:
        rows = [{**asdict(point), "ms": point.ms.to_dict()} for point in points]
        print(json.dumps({"model": _facts(models, asked), "points": rows}, indent=1))
    else:
        console().print(_table(points, _title(models, asked)))
    return 0


def measure(models: dict[str, LanguageModel], context: int, batch: int, rounds: int) -> list[Point]:
    """One more token after `context` tokens with each model, in `rounds` rounds."""
    states = {name: _read(model, context, batch) for name, model in models.items()}
    clocks = {name: _Clock() for name in models}
    token = torch.zeros(batch, dtype=torch.long)
    for turn in range(rounds + 1):
        for name, model in models.items():
            with evaluating(model), clocks[name]:
                model.advance(token, states[name])
            if turn == 0:
                clocks[name] = _Clock()  # the first round warms up
    return [Point(name, context, clocks[name].median(), states[name].nbytes) for name in models]


class _Clock:
    """Times what is done within it, and how much of that was spent waiting for a core."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.waits: list[float | None] = []

    def __enter__(self) -> None:
        self._waited, self._start = waited_seconds(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        taken, waited = time.perf_counter() - self._start, waited_seconds()
        known = waited is not None and self._waited is not None
        self.waits.append((waited - self._waited) / taken if known else None)  # type: ignore[operator]
        self.ms.append(taken * 1e3)

    def median(self) -> Interval:
        """Of the samples that did not wait, in ms; of all where too few did not."""
        shares = [wait for wait in self.waits if wait is not None]
        known = [shares] if len(shares) == len(self.ms) else []
        return median_interval([self.ms[turn] for turn in undisturbed(known, len(self.ms))])


def _read(model: LanguageModel, context: int, batch: int) -> DecodingState:
    tokens = torch.randint(VOCABULARY, (batch, context), generator=torch.Generator().manual_seed(0))
    state = model.init_state(batch)
    with evaluating(model):
        for piece in tokens.split(PREFILL, 1):
            _, state = model.step(piece, state)
    return state


def figure(points: Sequence[Point], title: str) -> Figure:
    """Milliseconds per token over the context, a line with its band for each variant."""
    made = new_figure(6.4, 4.0)
    axes = made.subplots()
    for name in dict.fromkeys(point.variant for point in points):
        own = [point for point in points if point.variant == name]
        contexts, style = [point.context for point in own], style_of(name)
        axes.plot(contexts, [point.ms.value for point in own], label=name, **style.to_dict())
        axes.fill_between(
            contexts,
            [point.ms.low for point in own],
            [point.ms.high for point in own],
            color=style.color,
            alpha=0.15,
            linewidth=0,
        )
    length_axis(axes, sorted({point.context for point in points}))
    axes.set_xlabel("context, tokens", fontsize=9)
    axes.set_ylabel(f"ms per token   {LOWER}", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize=9, loc="left")
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)
    longest = max(point.ms.high for point in points)
    speeds = [speed for speed in _SPEEDS if 0.05 * longest < 1e3 / speed < 1.05 * longest]
    right = axes.secondary_yaxis("right")
    right.set_yticks([1e3 / speed for speed in speeds], [f"{speed:g}" for speed in speeds])
    right.set_ylabel(f"tokens per second of a sequence   {HIGHER}", fontsize=9)
    right.tick_params(labelsize=8)
    return made


def _table(points: Sequence[Point], title: str) -> Table:
    contexts = list(dict.fromkeys(point.context for point in points))
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("variant")
    for context in contexts:
        table.add_column(f"{context}", justify="right")
    for name in dict.fromkeys(point.variant for point in points):
        own = [point for point in points if point.variant == name]
        table.add_row(f"{name}, ms", *(number(point.ms.value) for point in own))
        spans = (f"{number(point.ms.low)} to {number(point.ms.high)}" for point in own)
        table.add_row("  95 %", *spans)
        table.add_row(
            "  tokens per second of a sequence", *(number(1e3 / point.ms.value) for point in own)
        )
        table.add_row("  state, MiB", *(number(point.state_bytes / MIB) for point in own))
    return table


def _model(variant: str, asked: argparse.Namespace) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(
        VOCABULARY,
        max_len=max(asked.contexts) + 1,
        variant=variant,
        d_model=asked.d_model,
        nhead=asked.nhead,
        num_layers=asked.layers,
        positions="sinusoidal",
    )


def _facts(models: dict[str, LanguageModel], asked: argparse.Namespace) -> dict[str, Any]:
    sizes = {name: sum(w.numel() for w in model.parameters()) for name, model in models.items()}
    options = {
        name: asdict(model.trunk.encoder.layers[0].self_attn.core.options)
        for name, model in models.items()
    }
    return {
        "d_model": asked.d_model,
        "nhead": asked.nhead,
        "layers": asked.layers,
        "batch": asked.batch,
        "threads": asked.threads,
        "rounds": asked.rounds,
        "parameters": sizes,
        "options": options,
    }


def _title(models: dict[str, LanguageModel], asked: argparse.Namespace) -> str:
    millions = max(_facts(models, asked)["parameters"].values()) / 1e6
    return (
        f"One more token: {asked.layers} layers of {asked.d_model}, {asked.nhead} heads, "
        f"{millions:.1f} M parameters, batch {asked.batch}, {asked.threads} CPU thread(s)"
    )


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", type=_variants, default="full,local_window,performer")
    parser.add_argument("--contexts", type=_counts, default="256,512,1024,2048,4096,8192")
    for name, default in (("d-model", 256), ("nhead", 4), ("layers", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=101, help="tokens timed, of each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder of the figure")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser.parse_args(arguments)


def _variants(text: str) -> list[str]:
    names, able = text.split(","), ea.list_variants(causal=True)
    wrong = [name for name in names if name not in able]
    if wrong:
        raise argparse.ArgumentTypeError(
            f"{', '.join(wrong)} cannot decode or is unknown; allowed: {', '.join(able)}"
        )
    return names


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"contexts {text} must be at least 1")
    return sorted(counts)


if __name__ == "__main__":
    raise SystemExit(main())
