"""Files that tasks read: the Python standard library's sources, or one's own."""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from efficient_attn.tasks.task import generator

STDLIB = "stdlib"
NOT_STDLIB = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
"""Folders left out: not of the standard library, or not installed with every Python."""
PARTS = ("train", "validation", "test")
HELD = 0.15
"""Share of a package's bytes in each of validation and test, at most."""
TOP_LEVEL = "."
"""The package of modules that are in none."""
_CODE = re.compile(rb"^(?:import|from|class|def|async def)\b", re.MULTILINE)

File: TypeAlias = tuple[str, bytes]


@lru_cache(maxsize=4)
def read_files(source: str, max_bytes: int | None, option: str) -> tuple[File, ...]:
    """Names relative to the source and contents, in a fixed random order, up to `max_bytes`.

    source: "stdlib" or the path of a file or of a folder, whose files are all read. option: what
    the error for a source without files calls it.
    """
    root = Path(sysconfig.get_path("stdlib") if source == STDLIB else source)
    if root.is_file():
        paths = [root]
        root = root.parent
    else:
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        if source == STDLIB:
            paths = [path for path in paths if _is_stdlib_source(path.relative_to(root))]
    if not paths:
        raise FileNotFoundError(
            f"{option}={source!r} holds no files; "
            f"give {STDLIB!r}, or the path of a text file or of a folder of them"
        )
    order = generator("byte_lm files", 0).permutation(len(paths))
    files: list[File] = []
    left = max_bytes
    for path in (paths[index] for index in order):
        content = path.read_bytes()[:left]
        if content:
            files.append((path.relative_to(root).as_posix(), content))
            if left is not None:
                left -= len(content)
        if left == 0:
            break
    return tuple(files)


def fingerprint(files: Iterable[File]) -> str:
    """SHA-256 of names and contents, in this order."""
    mark = hashlib.sha256()
    for name, content in files:
        mark.update(f"{name}\0{len(content)}\0".encode())
        mark.update(content)
    return mark.hexdigest()


@lru_cache(maxsize=1)
def packages() -> Mapping[str, Mapping[str, tuple[File, ...]]]:
    """The standard library's files by top-level package, and by part: no file is in two.

    Contents begin at the first import, class or function: licences and introductions tell too
    much. Files of which more than half of the lines stand in files before them are left out, so
    that no part holds copies of another (tables of encodings). Of each package, validation and
    test get at most `HELD` of the bytes each; a package whose files are too few or too unequal
    has empty parts. The largest packages stand first.
    """
    grouped: dict[str, list[File]] = {}
    seen: set[bytes] = set()
    for name, whole in read_files(STDLIB, None, "source"):
        start = _CODE.search(whole)
        content = whole[start.start() :] if start else b""
        lines = set(content.split(b"\n"))
        if content and 2 * len(lines & seen) <= len(lines):
            package, slash, _ = name.partition("/")
            grouped.setdefault(package if slash else TOP_LEVEL, []).append((name, content))
            seen |= lines
    order = sorted(grouped, key=lambda package: -size(grouped[package]))
    return MappingProxyType({package: _divided(grouped[package]) for package in order})


def windows(content: bytes, length: int, step: int) -> np.ndarray:
    """All windows [count, length] that begin `step` bytes apart, whole ones only; 8 bits."""
    text = np.frombuffer(content, np.uint8)
    if len(text) < length:
        return np.empty((0, length), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(text, length)[::step]


def _divided(files: list[File]) -> Mapping[str, tuple[File, ...]]:
    """Each file in the first of validation, test and train where it fits."""
    room = {"validation": HELD * size(files), "test": HELD * size(files), "train": np.inf}
    parts: dict[str, list[File]] = {name: [] for name in PARTS}
    for file in files:
        part = next(name for name, left in room.items() if len(file[1]) <= left)
        parts[part].append(file)
        room[part] -= len(file[1])
    return MappingProxyType({name: tuple(part) for name, part in parts.items()})


def size(files: Iterable[File]) -> int:
    """Bytes of all contents."""
    return sum(len(content) for _, content in files)


def _is_stdlib_source(path: Path) -> bool:
    return path.suffix == ".py" and not NOT_STDLIB.intersection(path.parts)
