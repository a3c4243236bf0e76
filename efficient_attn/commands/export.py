"""`efficient-attn export`: the records of a results folder as one table."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from efficient_attn.analysis.tables import COLUMNS, frame
from efficient_attn.bench.store import Store

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("csv", "parquet")
ALL_DONE, SOME_LEFT_OUT = 0, 1


def main(arguments: argparse.Namespace) -> int:
    """Write the table and print its path; 1 when a file of the folder could not be read."""
    if arguments.columns:
        width = max(map(len, COLUMNS))
        for name, meaning in COLUMNS.items():
            print(f"{name:<{width}}  {meaning}")
        return ALL_DONE
    if arguments.results is None:
        raise ValueError("name the results folder to export, e.g. efficient-attn export results/a")
    kind = _format(arguments.format, arguments.out)
    store = Store(arguments.results)
    records = store.read()
    for warning in store.warnings:
        print(warning, file=sys.stderr)
    if not records:
        raise ValueError(f"no records in {arguments.results}; a sweep writes some")
    table = frame(records)
    if arguments.out == "-":
        table.to_csv(sys.stdout, index=False)
    else:
        print(_write(table, Path(arguments.out or store.folder / f"records.{kind}"), kind))
    return SOME_LEFT_OUT if store.warnings else ALL_DONE


def _format(asked: str | None, out: str | None) -> str:
    """The format asked for, or the one that the path's ending names."""
    if out == "-":
        if asked == "parquet":
            raise ValueError("--out - writes CSV; give Parquet a file, e.g. --out records.parquet")
        return "csv"
    ending = Path(out or "").suffix.removeprefix(".").lower()
    named = ending if ending in FORMATS else None
    if asked and named and asked != named:
        raise ValueError(f"--format {asked} does not fit --out {out}: leave one of them out")
    if out and not (asked or named):
        raise ValueError(f"--out {out} names no format: end it with .csv or .parquet")
    return asked or named or "csv"


def _write(table: pd.DataFrame, path: Path, kind: str) -> Path:
    """Write the whole file or none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if kind == "csv":
            table.to_csv(temporary, index=False)
        else:
            table.to_parquet(temporary, engine="pyarrow", index=False)
        os.replace(temporary, path)
    except ImportError as error:
        raise ValueError("Parquet needs pyarrow: pip install 'efficient-attn[export]'") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path
