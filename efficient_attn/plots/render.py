"""All figures of a results folder, written to files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from efficient_attn.analysis.accuracy import task_scores
from efficient_attn.analysis.crossover import FUSED, NAIVE, crossovers
from efficient_attn.analysis.select import Setting, by_setting, length_of, setting_names
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.plots.accuracy import accuracy_figure
from efficient_attn.plots.crossover_map import crossover_figure, map_figure
from efficient_attn.plots.curves import complexity_figure
from efficient_attn.plots.front import contested, front_figure, tasks_with_memory
from efficient_attn.plots.language import speaking
from efficient_attn.plots.peak import peak_figure, with_peak
from efficient_attn.plots.quality import knob_figure, state_figure, with_knob, with_state

FORMATS = ("png", "svg", "pdf")
LONGEST = 2**20
"""Tokens beyond which nothing is predicted."""


def plot(
    results_folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    formats: Sequence[str] = ("png", "svg"),
    language: str = "en",
    until: int | None = None,
) -> list[Path]:
    """Write every figure that the records allow and return the paths.

    ``complexity``, ``map``, ``crossover``, ``crossover_naive`` and ``peak`` (one more file of each
    per further setting), ``accuracy``, ``front``, ``front_memory``, ``state`` and ``knobs`` go to
    `out`, by default ``<results_folder>/figures``.

    language: of titles and axes, ``en`` or ``zh``. until: show what is predicted beyond the longest
    length, up to this many tokens.

    FileNotFoundError when the folder holds no records, ValueError for an unknown format or
    language, for a length beyond `LONGEST`, and where no installed font has Chinese characters.
    """
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown or not formats:
        raise ValueError(
            f"figure format(s) {', '.join(unknown) or 'none given'}; allowed: {', '.join(FORMATS)}"
        )
    if until is not None and not 1 <= until <= LONGEST:
        raise ValueError(f"until={until}: allowed are lengths up to {LONGEST} tokens")
    records = Store(results_folder).read()
    if not records:
        raise FileNotFoundError(
            f"no records under {Path(results_folder) / 'records'}: give the folder of a sweep, "
            "or run one first (efficient-attn sweep --help)"
        )
    folder = Path(results_folder) / "figures" if out is None else Path(out)
    written = []
    with speaking(language, formats):
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in _figures(records, until).items():
            figure = draw()
            for kind in formats:
                written.append(save(figure, folder / f"{name}.{kind}"))
    return written


def _figures(records: list[Record], until: int | None) -> dict[str, Callable[[], Figure]]:
    figures: dict[str, Callable[[], Figure]] = {}
    settings = by_setting(records)
    for setting, text in setting_names(settings).items():
        suffix = f"_{_slug(text)}" if figures else ""
        for name, draw in _of_setting(settings[setting], setting, until).items():
            figures[name + suffix] = draw
    if any(record.measure == "accuracy" for record in records):
        figures["accuracy"] = partial(accuracy_figure, records)
    tasks = contested(task_scores(records))
    if tasks:
        figures["front"] = partial(front_figure, records)
        if tasks_with_memory(tasks, records):
            figures["front_memory"] = partial(front_figure, records, "memory")
    if with_state(records):
        figures["state"] = partial(state_figure, records)
    if with_knob(records):
        figures["knobs"] = partial(knob_figure, records)
    return figures


def _of_setting(
    records: list[Record], setting: Setting, until: int | None
) -> dict[str, Callable[[], Figure]]:
    """Figures of cost that the records of one setting allow; over length where there are two."""
    figures: dict[str, Callable[[], Figure]] = {
        "complexity": partial(complexity_figure, records, setting, until)
    }
    if len({length_of(record) for record in records if record.ok}) < 2:
        return figures
    figures["map"] = partial(map_figure, records, setting, until)
    for name, baseline in (("crossover", FUSED), ("crossover_naive", NAIVE)):
        if crossovers(records, (baseline,)):
            figures[name] = partial(crossover_figure, records, setting, baseline)
    if with_peak(records):
        figures["peak"] = partial(peak_figure, records, setting)
    return figures


def save(figure: Figure, path: Path) -> Path:
    FigureCanvasAgg(figure)
    # Without a date the same records give the same file.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=metadata)
    return path


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("×", "x")).strip("-")
