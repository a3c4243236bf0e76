"""Labelled texts of one's own, in the forms that people have them in: tables, folders, datasets.

A part is train, validation or test. Where a source names parts itself, they are kept: "train", one
of "validation", "valid", "val", "dev" or "eval", and "test". What it lacks is cut off by a hash of
the (first) text, so that equal texts stay together: of one undivided table or folder 80 : 10 : 10,
and a tenth of train where there is no validation. Where there is no test, validation is the test
and a tenth of train validates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from efficient_attn.tasks.files import PARTS

PAD = 256
"""Fills up texts that are shorter than others; all other tokens are bytes."""
VOCAB = 257
BYTE_ORDER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
VALIDATION = ("validation", "valid", "val", "dev", "eval")
WITHOUT_LABEL = "unsup"
"""IMDb's folder of reviews that have none."""
SAVED_DATASET = ("dataset_dict.json", "state.json")
"""What `datasets` writes into the folder of a dataset of several parts, and of one."""


@dataclass(frozen=True)
class Columns:
    """Names of a table's columns, where it has names: the label, and one text or two."""

    label: str
    texts: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.label, *self.texts)

    def __str__(self) -> str:
        return "<TAB>".join(self.names)


@dataclass(frozen=True)
class Row:
    """One sample; place: where it stands, for messages."""

    label: str
    texts: tuple[bytes, ...]
    place: str


Parts: TypeAlias = dict[str, list[Row]]


@lru_cache(maxsize=2)
def read_texts(source: str, columns: Columns, option: str) -> Parts:
    """Samples by part; option: what errors call the source.

    source is one of:

    - a file: a table, a sample per line, columns divided by tabs. A first line that has the names
      of all `columns` says where they stand, and may have others. Without it there are the label
      and one text in either order (the label is the column of fewer different values); the label
      and two texts; or, as in Long Range Arena's files, the label, two names and two texts.
      Quotation marks are characters like others. Blank lines are left out.
    - a folder of tables whose names end in train, test (and validation) before ``.tsv``.
    - a folder with a folder per part, each with a folder per label, each with files of one text
      (Long Range Arena's and IMDb's; "unsup" is left out); or with a folder per label at once.
    - a Hugging Face dataset saved on disk, with `columns`; parts of other names are left out.
    """
    path = Path(source)
    if path.is_file():
        return _completed({"": _read_tables([path], columns)[0]}, source, option)
    if any((path / name).is_file() for name in SAVED_DATASET):
        return _completed(_read_dataset(path, columns), source, option)
    tables = [file for file in sorted(path.glob("*.tsv")) if _part(file.name)]
    if tables:
        found = _named(option, tables, _read_tables(tables, columns))
        return _completed(found, source, option)
    folders = [folder for folder in sorted(path.glob("*")) if _shown(folder) and folder.is_dir()]
    if len(columns.texts) == 1 and folders:
        parts = [folder for folder in folders if _part(folder.name)]
        if parts:
            found = _named(option, parts, [_read_folder(folder) for folder in parts])
            return _completed(found, source, option)
        return _completed({"": _read_folder(path)}, source, option)
    raise FileNotFoundError(
        f"{option}={source!r} holds no texts; give a table (a file of {columns}), a folder of "
        "train.tsv and test.tsv, a folder that datasets.save_to_disk wrote"
        + (", or one with a folder of files per label" if len(columns.texts) == 1 else "")
    )


def encoded(texts: Sequence[bytes], length: int) -> np.ndarray:
    """The first `length` bytes of each, [count, length] of 16 bits, filled up with `PAD`."""
    tokens = np.full((len(texts), length), PAD, np.int16)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = np.frombuffer(text[:length], np.uint8)
    return tokens


def histograms(tokens: np.ndarray) -> np.ndarray:
    """How often each byte stands in texts [count, length]: [count, 256]."""
    rows = np.arange(len(tokens))[:, None] * VOCAB
    counts = np.bincount((rows + tokens).ravel(), minlength=len(tokens) * VOCAB)
    return counts.reshape(-1, VOCAB)[:, :PAD]


def _completed(found: Parts, source: str, option: str) -> Parts:
    """Train, validation and test, cut off where the source does not name them."""
    if "" in found:
        parts: Parts = {name: [] for name in PARTS}
        for row in found[""]:
            place = _share(row)
            parts["train" if place < 0.8 else "validation" if place < 0.9 else "test"].append(row)
    else:
        parts = dict(found)
        if "test" not in parts and "validation" in parts:
            parts["test"] = parts.pop("validation")
        if "validation" not in parts and "train" in parts:
            rows = parts["train"]
            parts["train"] = [row for row in rows if _share(row) < 0.9]
            parts["validation"] = [row for row in rows if _share(row) >= 0.9]
    for name in PARTS:
        if not parts.get(name):
            raise ValueError(
                f"{option}={source!r} has no samples for {name}; give more, or the parts "
                "train, validation and test"
            )
    return {name: parts[name] for name in PARTS}


def _share(row: Row) -> float:
    """Where in [0, 1) a hash puts the (first) text."""
    return int.from_bytes(hashlib.sha256(row.texts[0]).digest()[:6], "big") / 2**48


def _part(name: str) -> str | None:
    """The part that the name of a file or folder ends in; None where it names none."""
    last = name.removesuffix(".tsv").lower().replace("-", ".").replace("_", ".").rsplit(".", 1)[-1]
    if last in VALIDATION:
        return "validation"
    return last if last in ("train", "test") else None


def _named(option: str, paths: Sequence[Path], found: Sequence[list[Row]]) -> Parts:
    parts: Parts = {}
    for path, rows in zip(paths, found, strict=True):
        part = _part(path.name)
        assert part is not None
        if part in parts:
            raise ValueError(f"{option}: {path.parent} has more than one {part} part")
        parts[part] = rows
    return parts


def _read_tables(paths: Sequence[Path], columns: Columns) -> list[list[Row]]:
    """Rows of the tables of one source; those without names of columns have one order of them."""
    tables = [_cells(path, columns) for path in paths]
    named = [
        _named_places(path, lines[0], columns) for path, lines in zip(paths, tables, strict=True)
    ]
    unnamed = [lines for lines, places in zip(tables, named, strict=True) if places is None]
    order = _order(paths[0], [cells for lines in unnamed for _, cells in lines], columns)
    found, heads = [], []
    for path, lines, places in zip(paths, tables, named, strict=True):
        width = len(lines[0][1])
        rows = [
            _row(path, number, cells, width, places or order, columns)
            for number, cells in (lines if places is None else lines[1:])
        ]
        heads += rows[:1] if places is None else []
        found.append(rows)
    usual = {row.label for rows in found for row in rows if row not in heads}
    for row in heads:
        if row.label not in usual:
            raise ValueError(
                f"{row.place}: the label {row.label!r} stands in first lines alone; if these name "
                f"the columns, call them {columns} or tell the task their names"
            )
    return found


def _cells(path: Path, columns: Columns) -> list[tuple[int, list[bytes]]]:
    """Lines that are not blank: their numbers from 1, and their columns."""
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if content[:2] in BYTE_ORDER_MARKS:
        raise ValueError(
            f"{path} is {BYTE_ORDER_MARKS[content[:2]]}: write it anew as UTF-8, "
            f"e.g. iconv -f utf-16 -t utf-8 {path}"
        )
    lines = [
        (number, line.removesuffix(b"\r").split(b"\t"))
        for number, line in enumerate(content.split(b"\n"), start=1)
        if line.strip()
    ]
    if not lines:
        raise ValueError(f"{path} is empty; expected lines of {columns}")
    return lines


def _named_places(path: Path, first: tuple[int, list[bytes]], columns: Columns) -> list[int] | None:
    """Where label and texts stand, if the first line names the columns."""
    number, cells = first
    head = [name.decode(errors="replace") for name in cells]
    missing = [name for name in columns.names if name not in head]
    if not missing:
        return [head.index(name) for name in columns.names]
    if len(missing) < len(columns.names):
        raise ValueError(
            f"{path}:{number} has no column {', '.join(missing)}; its columns are "
            f"{', '.join(head)[:200]}; rename them or tell the task their names"
        )
    return None


def _order(path: Path, lines: list[list[bytes]], columns: Columns) -> list[int]:
    """Where label and texts stand in tables without names."""
    if not lines:
        return []
    width = len(lines[0])
    if len(columns.texts) == 2 and width in (3, 5):
        return [0, width - 2, width - 1]
    if len(columns.texts) == 1 and width == 2:
        whole = [cells for cells in lines if len(cells) == 2]
        first, second = (len({cells[place] for cells in whole}) for place in (0, 1))
        if first == second:
            raise ValueError(
                f"{path}: both columns have {first} different values; say which is the label with "
                f"a first line of names, e.g. {columns}"
            )
        return [0, 1] if first < second else [1, 0]
    raise ValueError(
        f"{path}:1: {width} columns without the names {', '.join(columns.names)};"
        f" expected lines of {columns}, or a first line that names the columns"
    )


def _row(
    path: Path, number: int, cells: list[bytes], width: int, places: list[int], columns: Columns
) -> Row:
    if len(cells) != width or not all(cells[place].strip() for place in places):
        found = b"\t".join(cells)[:60].decode(errors="replace")
        raise ValueError(
            f"{path}:{number}: expected {width} columns with {columns} not empty, found "
            f"{len(cells)}: {found!r}; a text holds neither tabs nor line breaks"
        )
    label, *texts = (cells[place] for place in places)
    return Row(label.decode(errors="replace"), tuple(texts), f"{path}:{number}")


def _read_folder(path: Path) -> list[Row]:
    """Files of one text, each in the folder of its label."""
    rows = [
        Row(folder.name, (file.read_bytes(),), str(file))
        for folder in sorted(path.glob("*"))
        if folder.is_dir() and _shown(folder) and folder.name != WITHOUT_LABEL
        for file in sorted(folder.rglob("*"))
        if file.is_file() and _shown(file)
    ]
    for row in rows:
        if not row.texts[0].strip():
            raise ValueError(f"{row.place} is empty; remove it")
    return rows


def _shown(path: Path) -> bool:
    return not path.name.startswith(".")


def _read_dataset(path: Path, columns: Columns) -> Parts:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            f"{path} is read with datasets: pip install 'efficient-attn[data]'"
        ) from error
    data = datasets.load_from_disk(str(path))
    if not isinstance(data, datasets.DatasetDict):
        return {"": _rows(path, data, columns)}
    parts: Parts = {}
    for name, part in data.items():
        known = _part(name)
        if known is not None:
            parts[known] = _rows(path / name, part, columns)
    return parts


def _rows(path: Path, data: Any, columns: Columns) -> list[Row]:
    missing = [name for name in columns.names if name not in data.column_names]
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(missing)}; its columns are "
            f"{', '.join(data.column_names)}"
        )
    rows = []
    for number, (label, *texts) in enumerate(
        zip(*map(data.__getitem__, columns.names), strict=True)
    ):
        if label in (None, -1) or not all(texts):
            raise ValueError(f"{path}: row {number} has label {label!r} and texts {texts!r:.60}")
        rows.append(
            Row(str(label), tuple(text.encode() for text in texts), f"{path}: row {number}")
        )
    return rows
