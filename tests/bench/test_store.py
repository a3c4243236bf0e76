"""The store: whole records or none, whatever happens while they are written."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from efficient_attn.bench import store as store_module
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.bench.workload import Workload

ROOT = Path(__file__).parents[2]
RESULT = {
    "samples_ms": [1.0, 2.0, 3.0],
    "median_ms": 2.0,
    "low_ms": 1.0,
    "high_ms": 3.0,
    "noisy": False,
    "first_call_ms": 9.0,
    "calls_per_sample": 1,
    "peak_tensor_bytes": 1024,
    "peak_method": "profiler",
    "peak_rss_bytes": None,
    "parameters": 0,
}


def make(key: str = "0" * 20, **changes: object) -> Record:
    record = Record(
        key=key,
        measure="cost",
        status="ok",
        contestant="full",
        variant="full",
        options={"implementation": "fused"},
        request=Workload().to_dict(),
        cell="cell",
        created="2026-01-01T00:00:00",
        environment={"cpu": "Example"},
        result=RESULT,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def write_many(folder: str, writer: int, count: int) -> None:
    """One process of the test with two writers; both write the same keys."""
    for i in range(count):
        Store(folder).write(make(f"{i:020d}", cell=f"writer-{writer}"))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record = make()
    path = store.write(record)
    assert path == tmp_path / "records" / f"{record.key}.json"
    assert store.get(record.key) == record
    assert store.has(record.key)
    assert store.read() == [record]
    assert store.warnings == []


def test_a_folder_that_does_not_exist_holds_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "nowhere")
    assert store.read() == []
    assert not store.has("a" * 20)
    assert not (tmp_path / "nowhere").exists()


def test_a_second_write_replaces_the_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(make(cell="one"))
    store.write(make(cell="two"))
    assert [record.cell for record in store.read()] == ["two"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[1, 2]", "JSON object"),
        ('{"name": "somebody else\'s"}', "unknown record field"),
        ("\udcff", "decode"),
    ],
)
def test_a_foreign_file_is_a_warning(tmp_path: Path, text: str, cause: str) -> None:
    store = Store(tmp_path)
    store.write(make())
    foreign = store.records_folder / "foreign.json"
    foreign.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert len(store.read()) == 1
    assert len(store.warnings) == 1
    assert "foreign.json" in store.warnings[0]
    assert cause in store.warnings[0]
    assert not store.has("foreign")


@pytest.mark.parametrize(
    "broken",
    [
        {"result": {"samples_ms": [1.0]}},
        {"result": {**RESULT, "samples_ms": [0.0]}},
        {"result": {**RESULT, "samples_ms": []}},
        {"request": {"length": -1}},
        {"request": {"lenght": 1}},
        {"measure": "accuracy", "request": {}},
        {"options": []},
        {"schema": 99},
        {"key": "another"},
    ],
    ids=str,
)
def test_a_record_that_readers_could_not_use_is_a_warning(tmp_path: Path, broken: dict) -> None:
    store = Store(tmp_path)
    path = store.write(make())
    path.write_text(json.dumps({**json.loads(path.read_text()), **broken}))
    assert store.read() == []
    assert len(store.warnings) == 1
    assert store.get(make().key) is None


def test_temporary_files_are_skipped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(make())
    (store.records_folder / ".half.123.tmp").write_text('{"key": "ha')
    (store.records_folder / ".half.json").write_text('{"key": "ha')
    assert len(store.read()) == 1
    assert store.warnings == []


@pytest.mark.parametrize("key", ["", "../up", "a/b", "a\\b", ".hidden"])
def test_a_key_that_leaves_the_folder_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="cannot be a file name"):
        Store(tmp_path).write(make(key))
    with pytest.raises(ValueError, match="cannot be a file name"):
        Store(tmp_path).get(key)


@pytest.mark.parametrize("stage", ["_write_through", "replace"])
def test_a_full_disk_keeps_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    store = Store(tmp_path)
    store.write(make(cell="old"))

    def full(path: object, *_: object) -> None:
        if stage == "_write_through":
            Path(str(path)).write_text('{"half')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module.os if stage == "replace" else store_module, stage, full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        store.write(make(cell="new"))
    assert caught.value.errno == errno.ENOSPC
    assert str(store.records_folder) in str(caught.value)
    assert "untouched" in str(caught.value)
    monkeypatch.undo()
    assert [record.cell for record in store.read()] == ["old"]
    assert [path.name for path in store.records_folder.iterdir()] == [f"{make().key}.json"]


def test_a_folder_that_is_a_file_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("")
    with pytest.raises(OSError, match="records"):
        Store(tmp_path).write(make())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named_in_the_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match="cannot write record"):
            Store(tmp_path).write(make())
    finally:
        tmp_path.chmod(0o700)


def test_two_writers_and_a_reader_see_only_whole_records(tmp_path: Path) -> None:
    """Records appear under their names only when they are complete."""
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=write_many, args=(str(tmp_path), writer, 60)) for writer in (1, 2)
    ]
    for process in writers:
        process.start()
    store, warnings = Store(tmp_path), []
    while any(process.is_alive() for process in writers):
        store.read()
        warnings += store.warnings
    for process in writers:
        process.join()
        assert process.exitcode == 0
    assert warnings == []
    assert [record.key for record in store.read()] == [f"{i:020d}" for i in range(60)]
    assert all(path.suffix == ".json" for path in store.records_folder.iterdir())


def test_a_writer_that_is_killed_leaves_no_half_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(make(cell="old"))
    code = (
        "import os, sys\n"
        "from efficient_attn.bench import store\n"
        "from efficient_attn.bench.record import Record\n"
        "text = open(sys.argv[2]).read()\n"
        "def die(*_): os._exit(9)\n"
        "store.os.replace = die\n"
        "store.Store(sys.argv[1]).write(Record.from_json(text))\n"
    )
    path = store.path(make().key)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(path)], cwd=ROOT, check=False
    )
    assert done.returncode == 9
    assert [record.cell for record in store.read()] == ["old"]
    assert store.warnings == []


def test_reading_results_needs_no_torch() -> None:
    code = "import sys, efficient_attn.bench.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
