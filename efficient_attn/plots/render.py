"""All figures of a results folder, written to files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from efficient_attn.analysis.select import by_setting, setting_names
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.plots.accuracy import accuracy_figure
from efficient_attn.plots.curves import complexity_figure
from efficient_attn.plots.front import front_figure
from efficient_attn.plots.quality import knob_figure, state_figure, with_knob, with_state

FORMATS = ("png", "svg", "pdf")


def plot(
    results_folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    formats: Sequence[str] = ("png", "svg"),
) -> list[Path]:
    """Write every figure that the records allow and return the paths.

    ``complexity`` (one more file per further setting), ``accuracy``, ``front``, ``state`` and
    ``knobs`` go to `out`, by default ``<results_folder>/figures``. FileNotFoundError when the
    folder holds no records, ValueError for an unknown format.
    """
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown or not formats:
        raise ValueError(
            f"figure format(s) {', '.join(unknown) or 'none given'}; allowed: {', '.join(FORMATS)}"
        )
    records = Store(results_folder).read()
    if not records:
        raise FileNotFoundError(
            f"no records under {Path(results_folder) / 'records'}: give the folder of a sweep, "
            "or run one first (efficient-attn sweep --help)"
        )
    folder = Path(results_folder) / "figures" if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in _figures(records).items():
        figure = draw()
        for kind in formats:
            written.append(save(figure, folder / f"{name}.{kind}"))
    return written


def _figures(records: list[Record]) -> dict[str, Callable[[], Figure]]:
    figures: dict[str, Callable[[], Figure]] = {}
    for setting, text in setting_names(by_setting(records)).items():
        name = f"complexity_{_slug(text)}" if figures else "complexity"
        figures[name] = lambda setting=setting: complexity_figure(records, setting)  # type: ignore[misc]
    if any(record.measure == "accuracy" for record in records):
        figures["accuracy"] = lambda: accuracy_figure(records)
    if any(record.measure == "accuracy" and record.ok for record in records):
        figures["front"] = lambda: front_figure(records)
    if with_state(records):
        figures["state"] = lambda: state_figure(records)
    if with_knob(records):
        figures["knobs"] = lambda: knob_figure(records)
    return figures


def save(figure: Figure, path: Path) -> Path:
    FigureCanvasAgg(figure)
    # Without a date the same records give the same file.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=metadata)
    return path


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("×", "x")).strip("-")
