"""The store: a results folder with one JSON file per record, written whole or not at all.

    <folder>/records/<key>.json

The key names what was asked and the code that answered, so two writers of one key write the same
answer and the later one simply wins. A file is first written beside its final name and then moved
over it: a reader, a crash or a full disk never leaves half a record under a record's name.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from efficient_attn.bench.record import AccuracyResult, CostResult, Record
from efficient_attn.bench.workload import Workload

_RESULT_FIELDS = {
    "cost": {item.name for item in fields(CostResult)},
    "accuracy": {item.name for item in fields(AccuracyResult)},
}


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
        for path in self._files():
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

    def write(self, record: Record) -> Path:
        """Store a record, replacing one of the same key, and return its path.

        Raises OSError that names the folder and the cause when the disk is full or read-only;
        what was stored before is untouched.
        """
        target = self.path(record.key)
        text = record.to_json()
        temporary = target.with_name(f".{record.key}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            self.records_folder.mkdir(parents=True, exist_ok=True)
            try:
                _write_through(temporary, text)
                os.replace(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
            _sync_folder(self.records_folder)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot write record {record.key} of {record.contestant!r} into "
                f"{self.records_folder}: {_cause(error)}. Records stored before are untouched; "
                "free the disk or choose a folder you may write to, then run the same command "
                "again: it goes on where it stopped",
            ) from error
        return target

    def _files(self) -> Iterator[Path]:
        if not self.records_folder.is_dir():
            return
        for path in sorted(self.records_folder.glob("*.json")):
            if not path.name.startswith("."):
                yield path


def _load(path: Path) -> Record:
    record = Record.from_json(path.read_text(encoding="utf-8"))
    fault = _fault(record)
    if fault is None and record.key != path.stem:
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
            Workload.from_dict(record.request)
        except (TypeError, ValueError) as error:
            return f"its request is no workload: {error}"
    elif not isinstance(record.request.get("task"), dict) or "name" not in record.request["task"]:
        return "its request names no task"
    return _result_fault(record.measure, record.result) if record.ok else None


def _result_fault(measure: str, result: dict[str, Any]) -> str | None:
    missing = sorted(_RESULT_FIELDS[measure] - set(result))
    if missing:
        return f"its result lacks {', '.join(missing)}"
    if measure == "cost":
        samples = result["samples_ms"]
        times = [*samples, result["median_ms"]] if isinstance(samples, list) and samples else [None]
        if not all(isinstance(value, (int, float)) and value > 0 for value in times):
            return "its times are not positive numbers"
    elif not isinstance(result["value"], (int, float)):
        return "its value is not a number"
    return None


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
