"""Pathfinder's images as published: a folder of images, and of lists of their labels."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from efficient_attn.tasks.image_files import decode, levels_of

LABELS = ("0", "1")


@dataclass(frozen=True)
class Published:
    """images: uint8 [count, side, side], grey. labels: [count]. left_out: empty files.
    sha256: of all paths, labels and contents."""

    images: np.ndarray
    labels: np.ndarray
    left_out: int
    sha256: str


@lru_cache(maxsize=2)
def read_published(folder: str, side: int) -> Published:
    """All images that the lists in `folder`/metadata name.

    Source: Long Range Arena, lra_release/pathfinder32/curv_contour_length_14 and its like. Images
    that are empty files (one was published so) are left out, as they are there.

    Raises FileNotFoundError for no lists or a missing image; ValueError that names the file for a
    damaged image, one that is not side×side pixels, or a line that is not understood.
    """
    lists = sorted(path for path in Path(folder, "metadata").glob("*") if path.is_file())
    if not lists:
        raise FileNotFoundError(
            f"pathfinder.folder={folder} has no metadata/*.npy; give a folder like "
            "lra_release/pathfinder32/curv_contour_length_14, with imgs/ and metadata/"
        )
    mark = hashlib.sha256()
    images, labels, left_out = [], [], 0
    for path, label in (row for file in lists for row in _rows(file)):
        full = Path(folder) / path
        content = full.read_bytes()
        if not content:
            left_out += 1
            continue
        image = decode(content, str(full))
        if image.size != (side, side):
            raise ValueError(
                f"{full} has {image.width}×{image.height} pixels, but pathfinder.side={side}"
            )
        mark.update(f"{path} {label} {len(content)}\n".encode() + content)
        images.append(levels_of(image, side, colour=False))
        labels.append(label)
    levels = np.array(images, np.uint8).reshape(-1, side, side)
    return Published(levels, np.array(labels, np.int64), left_out, mark.hexdigest())


def _rows(file: Path) -> Iterator[tuple[str, int]]:
    """Path of each image, relative to the folder, and its label.

    Columns: folder, file, number, label, and how it was drawn; an array of text as numpy saves
    it, or, as in the Long Range Arena, lines of text under the name of one.
    """
    content = file.read_bytes()
    try:
        if content.startswith(b"\x93NUMPY"):
            rows = np.load(io.BytesIO(content), allow_pickle=False).tolist()
        else:
            rows = [line.split() for line in content.decode().splitlines()]
    except ValueError as error:
        raise ValueError(f"{file} is neither lines nor an array of text: {error}") from error
    for number, row in enumerate(rows, start=1):
        if not row:
            continue
        if len(row) < 4 or str(row[3]) not in LABELS:
            raise ValueError(
                f"{file}:{number}: expected folder, file, number and label 0 or 1, found {row}"
            )
        yield f"{row[0]}/{row[1]}", int(row[3])
