"""`efficient-attn show`: who sees whom, and with which weights, as a figure."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from efficient_attn.attention import variant_class
from efficient_attn.commands.options import parse_options
from efficient_attn.plots.language import speaking
from efficient_attn.plots.render import FORMATS, save
from efficient_attn.plots.visibility import visibility_figure


def main(arguments: argparse.Namespace) -> int:
    """Write the figure of one variant in every format asked for and print the paths."""
    options = parse_options(arguments.option or [])
    stem, formats = _target(arguments)
    with speaking(arguments.language, formats):
        figure = visibility_figure(
            arguments.variant,
            options,
            length=arguments.length,
            heads=arguments.heads,
            pattern=arguments.pattern,
        )
        stem.parent.mkdir(parents=True, exist_ok=True)
        for kind in formats:
            print(save(figure, stem.with_name(f"{stem.name}.{kind}")))
    return 0


def _target(arguments: argparse.Namespace) -> tuple[Path, list[str]]:
    """Where to write, without the ending, and the endings; ``--out figure.pdf`` gives both."""
    formats = list(dict.fromkeys(arguments.format or []))
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown:
        raise ValueError(
            f"figure format(s) {', '.join(unknown)} are unknown; allowed: {', '.join(FORMATS)}"
        )
    name = re.sub(r"[^\w.-]+", "-", variant_class(arguments.variant).name)
    stem = Path(arguments.out or f"{name}-{arguments.pattern}-{arguments.length}")
    ending = stem.suffix.removeprefix(".")
    if ending in FORMATS:
        stem = stem.with_suffix("")
        formats = formats or [ending]
    return stem, formats or ["png", "svg"]
