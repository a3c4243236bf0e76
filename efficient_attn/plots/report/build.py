"""A results folder as one HTML file."""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from efficient_attn import __version__
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store, without_collector
from efficient_attn.plots.report.payload import payload

SCRIPTS = ("base", "chart", "table", "curves", "accuracy", "records", "rule", "picker", "page")
"""In this order they make up the page's one script."""


def report(
    results_folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> tuple[Path, list[str]]:
    """Write the page and return its path with warnings about files that could not be read.

    out: file to write, by default ``<results_folder>/report.html``. FileNotFoundError when the
    folder holds no records.
    """
    store = Store(results_folder)
    records = store.read()
    if not records:
        raise FileNotFoundError(
            f"no records under {store.records_folder}: give the folder of a sweep, "
            "or run one first (efficient-attn sweep --help)"
        )
    target = store.folder / "report.html" if out is None else Path(out)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: name a file, e.g. {target / 'report.html'}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with without_collector():
        text = page(records, store.folder.resolve().name, str(store.folder), store.warnings)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target, store.warnings


def page(
    records: Iterable[Record], title: str, folder: str = "RESULTS", left_out: Iterable[str] = ()
) -> str:
    """The HTML of a report.

    folder: where its commands look for the records. left_out: why which files are not in it.
    """
    told = {
        **payload(records),
        "title": title,
        "folder": folder,
        "version": __version__,
        "left_out": list(left_out),
    }
    text = json.dumps(told, separators=(",", ":"), allow_nan=False)
    # Without a date the same records give the same file.
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
    source = files(__package__)
    parts = {
        "style": source.joinpath("page.css").read_text("utf-8"),
        "data": packed,
        "script": "".join(source.joinpath(f"{name}.js").read_text("utf-8") for name in SCRIPTS),
        "title": html.escape(title),
    }
    text = source.joinpath("template.html").read_text("utf-8")
    for name, part in parts.items():
        text = text.replace(f"{{{{ {name} }}}}", part)
    return text
