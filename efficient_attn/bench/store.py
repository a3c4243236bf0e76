"""The store: a results folder with one JSON file per record, written whole or not at all.

    <folder>/records/<key>.json

The key names what was asked and the code that answered, so two writers of one key write the same
answer and the later one simply wins. A file is first written beside its final name and then moved
over it: a reader, a crash or a full disk never leaves half a record under a record's name. A record
that cannot be written is kept in the system's folder for temporary files: it was paid for.
"""

from __future__ import annotations

import errno
import gc
import math
import os
import secrets
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from efficient_attn.bench.environment import scratch_folder
from efficient_attn.bench.record import RESULTS, Record

SPACE_NEEDED = 64 * 2**20
"""Free bytes without which no sweep should start; a record takes 2 to 20 KiB."""

STALE_AFTER_S = 3600.0
"""Age at which a temporary file can only be that of a writer that was killed."""

_RESULT_TYPES: dict[str, dict[str, Any]] = {
    measure: get_type_hints(kind) for measure, kind in RESULTS.items()
}
_NEW_RESULTS: dict[str, set[str]] = {
    measure: {
        field.name
        for field in fields(kind)
        if not field.default is field.default_factory is MISSING
    }
    for measure, kind in RESULTS.items()
}
"""Fields that results written before them lack: those with a default."""


class Store:
    """Records of one results folder.

    folder: created by the first write; reading a folder that does not exist finds no records.
    warnings: one sentence for each file that the last `read` had to leave out.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.warnings: list[str] = []

    @property
    def records_folder(self) -> Path:
        return self.folder / "records"

    def path(self, key: str) -> Path:
        """Where the record of this key lives; ValueError for a key that is no plain file name."""
        if not key or key.startswith(".") or any(sign in key for sign in "/\\\0"):
            raise ValueError(f"record key {key!r} cannot be a file name; keys are short hashes")
        return self.records_folder / f"{key}.json"

    def read(self) -> list[Record]:
        """Every readable record in the order of file names; the others are in `warnings`."""
        self.warnings = []
        records = []
        with without_collector():
            for name in self._names():
                path = f"{self.records_folder}{os.sep}{name}"
                try:
                    records.append(_load(path))
                except FileNotFoundError:
                    continue
                except (OSError, ValueError, RecursionError) as error:
                    self.warnings.append(f"left out {path}: {_cause(error)}")
        return records

    def get(self, key: str) -> Record | None:
        """The record of this key; None when there is none or its file cannot be read as one."""
        try:
            return _load(self.path(key))
        except (OSError, RecursionError):
            return None
        except ValueError:
            self.path(key)  # an impossible key is the caller's mistake, not a missing record
            return None

    def has(self, key: str) -> bool:
        """Whether `get` would return a record: a broken file counts as not yet measured."""
        return self.get(key) is not None

    def require_writable(self, bytes_needed: int = SPACE_NEEDED) -> None:
        """Make sure that records can be stored, before anything is measured.

        Creates the folder, writes a file and removes it, looks at the free space, and clears away
        what killed writers left behind. Raises OSError that says what is wrong and what to do.
        """
        probe = _beside(self.records_folder / "probe")
        try:
            self.records_folder.mkdir(parents=True, exist_ok=True)
            try:
                _write_through(probe, "probe")
                self._remove_stale(probe.stat().st_mtime)
            finally:
                probe.unlink(missing_ok=True)
            free = shutil.disk_usage(self.records_folder).free
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot write into {self.records_folder}: {_cause(error)}. Records stored "
                "before are untouched; free the disk or choose another folder (results=FOLDER)",
            ) from error
        if free < bytes_needed:
            raise OSError(
                errno.ENOSPC,
                f"only {free / 2**20:.0f} MiB are free for {self.records_folder}, "
                f"{bytes_needed / 2**20:.0f} MiB are needed. Records stored before are untouched; "
                "free the disk or choose another folder (results=FOLDER)",
            )

    def write(self, record: Record) -> Path:
        """Store a record, replacing one of the same key, and return its path.

        Raises OSError that names the folder and the cause when the disk is full or read-only. What
        was stored before is untouched, and the message says where this record is kept.
        """
        target = self.path(record.key)
        text = record.to_json()
        try:
            _write_whole(target, text)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot write record {record.key} of {record.contestant!r} into "
                f"{self.records_folder}: {_cause(error)}. Records stored before are untouched; "
                f"{_keep_elsewhere(target, text)}. Free the disk or choose a folder you may write "
                "to, then run the same command again: it goes on where it stopped",
            ) from error
        return target

    def merge(self, other: Store) -> tuple[int, int]:
        """Take over the records of another folder: how many were new, how many replaced older ones.

        Of two records with one key the one created last stays. `other.warnings` names the files
        that could not be read.
        """
        new = replaced = 0
        for record in other.read():
            mine = self.get(record.key)
            if mine is not None and mine.created >= record.created:
                continue
            self.write(record)
            new, replaced = new + (mine is None), replaced + (mine is not None)
        return new, replaced

    def _remove_stale(self, now: float) -> None:
        """now: by the clock of the file system, which may be another machine's."""
        for path in self.records_folder.glob(".*.tmp"):
            with suppress(OSError):  # another sweep was quicker, or it is another user's
                if now - path.stat().st_mtime > STALE_AFTER_S:
                    path.unlink()

    def _names(self) -> list[str]:
        """Of the files of records, in order. Paths as objects would cost more than parsing."""
        if not self.records_folder.is_dir():
            return []
        names = os.listdir(self.records_folder)
        return sorted(name for name in names if name.endswith(".json") and name[0] != ".")


@contextmanager
def without_collector() -> Iterator[None]:
    """Nothing read is garbage; looking for some among so many objects takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load(path: str | Path) -> Record:
    try:
        with open(path, "rb") as file:
            record = Record.from_json(file.read())
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no record: {_cause(error)}") from error
    fault = _fault(record)
    if fault is None and f"{record.key}.json" != os.path.basename(path):
        fault = f"it holds record {record.key!r}, which its name does not say"
    if fault is not None:
        raise ValueError(fault)
    return record


def _fault(record: Record) -> str | None:
    """Why readers further down could not work with this record, or None."""
    for name in ("key", "contestant", "variant", "cell", "created"):
        if not isinstance(getattr(record, name), str):
            return f"{name} is not text"
    for name in ("options", "request", "environment", "result"):
        if not isinstance(getattr(record, name), dict):
            return f"{name} is not an object"
    if record.measure == "cost":
        try:
            _ = record.workload
        except (TypeError, ValueError) as error:
            return f"its request is no workload: {error}"
    elif record.measure in ("fidelity", "model"):
        if type(record.request.get("length")) is not int:
            return "its request names no length"
    elif not isinstance(record.request.get("task"), dict) or "name" not in record.request["task"]:
        return "its request names no task"
    return _result_fault(record.measure, record.result) if record.ok else None


def _result_fault(measure: str, result: dict[str, Any]) -> str | None:
    types = _RESULT_TYPES[measure]
    missing = sorted(set(types) - set(result) - _NEW_RESULTS[measure])
    if missing:
        return f"its result lacks {', '.join(missing)}"
    for name, wanted in types.items():
        if name in result and not _fits(result[name], wanted):
            return f"its {name} is {result[name]!r:.40}"
    if measure != "cost":
        return None
    samples, waits = result["samples_ms"], result["waits"]
    numbers = set(map(type, samples)) <= {int, float} and math.isfinite(sum(samples))
    if not samples or not numbers or min(samples) <= 0:
        return "its times are not positive numbers"
    if result["median_ms"] <= 0:
        return "its median is not positive"
    if waits is not None and len(waits) != len(samples):
        return "its waits are not one for each sample"
    return None


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value read from JSON is of a type that `record.py` states."""
    kinds = _kinds(wanted)
    kind = type(value)
    return kind in kinds and (kind is not float or math.isfinite(value))


@cache
def _kinds(wanted: Any) -> frozenset[type]:
    """The types that a value of JSON may have: a whole number is a float, too."""
    if get_origin(wanted) in (list, dict):
        return frozenset({get_origin(wanted)})
    if get_args(wanted):
        return frozenset().union(*(_kinds(one) for one in get_args(wanted)))
    return frozenset({int, float} if wanted is float else {wanted})


def _write_whole(target: Path, text: str) -> None:
    """Create the folder, write beside the target and move over it: all or nothing."""
    temporary = _beside(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write_through(temporary, text)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _beside(target: Path) -> Path:
    """A name for the temporary file of one writer."""
    return target.with_name(f".{target.stem}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def _keep_elsewhere(target: Path, text: str) -> str:
    """Save a record that its folder refused; says where it is and how it gets back."""
    try:
        kept = unsaved_folder() / target.name
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_whole(kept, text)
    except OSError as error:
        return f"this one is lost, the temporary folder could not take it either: {_cause(error)}"
    folder = shlex.quote(str(target.parent))
    command = f"mkdir -p {folder} && cp {shlex.quote(str(kept))} {folder}"
    return f"this one is kept, and `{command}` puts it where it belongs"


def unsaved_folder() -> Path:
    """Where records are kept that their own folder refused; OSError where nothing can be kept."""
    return scratch_folder() / "unsaved"


def _write_through(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse; the record itself is already on disk
    finally:
        os.close(handle)


def _cause(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
