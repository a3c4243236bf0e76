"""The store: whole records or none, whatever happens while they are written."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import accuracy, fidelity, swap

from efficient_attn.bench import store as store_module
from efficient_attn.bench.record import SCHEMA_VERSION, Record
from efficient_attn.bench.store import Store
from efficient_attn.bench.workload import Workload

ROOT = Path(__file__).parents[2]
RESULT = {
    "samples_ms": [1.0, 2.0, 3.0],
    "median_ms": 2.0,
    "low_ms": 1.0,
    "high_ms": 3.0,
    "waits": [0.0, 0.01, 0.5],
    "noisy": False,
    "compile_ms": None,
    "first_call_ms": 9.0,
    "calls_per_sample": 1,
    "peak_tensor_bytes": 1024,
    "peak_method": "profiler",
    "peak_reserved_bytes": None,
    "peak_rss_bytes": None,
    "state_bytes": None,
    "flops": 4096,
    "flops_method": "formula",
    "traffic_bytes": 512,
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


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where records that cannot be written are kept."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def refuse(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let every write below the folder fail, as a full or read-only disk does."""
    real = store_module._write_through

    def write(path: Path, text: str) -> None:
        if path.is_relative_to(folder):
            raise OSError(code, os.strerror(code))
        real(path, text)

    monkeypatch.setattr(store_module, "_write_through", write)


def write_many(folder: str, writer: int, count: int) -> None:
    """One process of the test with two writers: keys of both, and keys of its own."""
    for i in range(count):
        Store(folder).write(make(f"{i:020d}", cell=f"writer-{writer}"))
        Store(folder).write(make(f"{i:019d}-{writer}"))


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
        ("", "empty document"),
        ("{", "end of data"),
        ("[1, 2]", "JSON object"),
        ('{"name": "somebody else\'s"}', "unknown record field"),
        ("\udcff", "UTF-8"),
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
        {"result": {**RESULT, "samples_ms": [1.0, float("nan"), 2.0]}},
        {"result": {**RESULT, "samples_ms": [1.0, True, 2.0]}},
        {"result": {**RESULT, "waits": [0.0]}},
        {"result": {**RESULT, "median_ms": "2"}},
        {"result": {**RESULT, "median_ms": float("nan")}},
        {"result": {**RESULT, "samples_ms": [1.0, float("inf")], "waits": None}},
        {"result": {**RESULT, "noisy": 0}},
        {"result": {**RESULT, "peak_tensor_bytes": 1.5}},
        {"result": {key: value for key, value in RESULT.items() if key != "flops"}},
        {"request": {"length": -1}},
        {"request": {"lenght": 1}},
        {"measure": "accuracy", "request": {}},
        {"measure": "swap", "request": {}},
        {"measure": "fidelity", "request": {"scale": 1.0}},
        {"measure": "guess"},
        {"options": []},
        {"schema": 99},
        {"schema": 1, "request": None},
        {"schema": None},
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


def test_every_measure_is_read_back_and_what_results_lacked_before_is_no_fault(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    old = accuracy()
    result = {name: value for name, value in old.result.items() if name != "state_bytes"}
    records = [make(), replace(old, result=result), fidelity(), swap()]
    for record in records:
        store.write(record)
    assert {record.key: record for record in store.read()} == {
        record.key: record for record in records
    }
    assert store.warnings == []


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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_record_that_cannot_be_written_is_kept_and_comes_back(
    tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    results = tmp_path / "my results"
    store = Store(results)
    refuse(results, monkeypatch, code)
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        store.write(make(cell="paid for"))
    assert caught.value.errno == code
    kept = store_module.unsaved_folder() / f"{make().key}.json"
    assert kept.is_relative_to(temporary_folder)
    assert kept.parent.stat().st_mode & 0o077 == 0
    monkeypatch.undo()
    command = str(caught.value).split("`")[1]
    assert str(kept) in command
    subprocess.run(command, shell=True, check=True)
    assert [record.cell for record in store.read()] == ["paid for"]


def test_the_error_says_when_a_record_could_be_kept_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(tmp_path, monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="this one is lost"):
        Store(tmp_path / "results").write(make())


def test_a_limit_on_file_sizes_stops_a_write_half_way(tmp_path: Path) -> None:
    """A real failure in the middle of a file, not an imitated one."""
    store = Store(tmp_path / "results")
    path = store.write(make(cell="old"))
    code = (
        "import resource, sys\n"
        "from efficient_attn.bench.record import Record\n"
        "from efficient_attn.bench.store import Store\n"
        "record = Record.from_json(open(sys.argv[2]).read())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n"
        "    Store(sys.argv[1]).write(record)\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.folder), str(path)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large" in done.stdout
    assert "this one is lost" in done.stdout
    assert [record.cell for record in store.read()] == ["old"]
    assert [item.name for item in store.records_folder.iterdir()] == [path.name]


def test_a_writable_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b")
    store.require_writable()
    assert list(store.records_folder.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_folder_that_takes_no_file_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse(tmp_path, monkeypatch, code)
    with pytest.raises(OSError, match=rf"{os.strerror(code)}.*results=FOLDER") as caught:
        Store(tmp_path).require_writable()
    assert str(tmp_path / "records") in str(caught.value)


def test_a_folder_under_a_file_is_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        Store(tmp_path / "file").require_writable()


def test_too_little_space_is_told_in_numbers(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"are free for .* 1073741824 MiB are needed") as caught:
        Store(tmp_path).require_writable(2**50)
    assert caught.value.errno == errno.ENOSPC


def test_only_old_temporary_files_are_cleared_away(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(make())
    old, fresh = (store.records_folder / f".{name}.1.abcd0123.tmp" for name in ("old", "fresh"))
    old.write_text("{")
    fresh.write_text("{")
    long_ago = path.stat().st_mtime - 2 * store_module.STALE_AFTER_S
    os.utime(old, (long_ago, long_ago))
    os.utime(path, (long_ago, long_ago))
    store.require_writable()
    assert {item.name for item in store.records_folder.iterdir()} == {path.name, fresh.name}


def test_merging_takes_what_is_new_or_newer(tmp_path: Path) -> None:
    mine, theirs = Store(tmp_path / "mine"), Store(tmp_path / "theirs")
    early, late = "2026-01-01T00:00:00", "2026-01-02T00:00:00"
    mine.write(make("both-late-here", cell="mine", created=late))
    mine.write(make("both-late-there", cell="mine", created=early))
    mine.write(make("only-mine", cell="mine"))
    theirs.write(make("both-late-here", cell="theirs", created=early))
    theirs.write(make("both-late-there", cell="theirs", created=late))
    theirs.write(make("only-theirs", cell="theirs"))
    (theirs.records_folder / "broken.json").write_text("{")
    assert mine.merge(theirs) == (1, 1)
    assert len(theirs.warnings) == 1
    assert {record.key: record.cell for record in mine.read()} == {
        "both-late-here": "mine",
        "both-late-there": "theirs",
        "only-mine": "mine",
        "only-theirs": "theirs",
    }
    assert mine.merge(theirs) == (0, 0), "merging again changes nothing"


def test_the_reference_records_of_schema_1_are_read_as_this_schema() -> None:
    store = Store(ROOT / "results" / "demo-cpu")
    records = store.read()
    assert store.warnings == []
    files = list(store.records_folder.glob("*.json"))
    assert len(records) == len(files) > 100
    assert any('"schema": 1' in path.read_text() for path in files)
    assert {record.schema for record in records} == {SCHEMA_VERSION}


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
    assert {record.key for record in store.read()} == {
        *(f"{i:020d}" for i in range(60)),
        *(f"{i:019d}-{writer}" for i in range(60) for writer in (1, 2)),
    }
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


def test_records_from_before_a_field_are_read():
    """The accuracy records that the repository holds are older than some fields of today's."""
    shipped = Store(ROOT / "results" / "demo-cpu")
    assert any(record.measure == "accuracy" for record in shipped.read())
    assert shipped.warnings == []
