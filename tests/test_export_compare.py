"""The words that read results folders as a whole: compare, export, merge."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from synthetic import cells, cost, scores

from efficient_attn.analysis.tables import COLUMNS, frame
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.cli import main


def folder(path: Path, records: list[Record]) -> str:
    for record in records:
        Store(path).write(record)
    return str(path)


def slower(records: list[Record], contestant: str, factor: float) -> list[Record]:
    """Later records of the same requests in which one contestant takes `factor` times as long."""
    changed = []
    for record in records:
        result = dict(record.result)
        if record.contestant == contestant and record.ok and record.measure == "cost":
            result["samples_ms"] = [factor * sample for sample in result["samples_ms"]]
        changed.append(replace(record, result=result, cell=f"later-{record.cell}"))
    return changed


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [*cells((256, 512), passes=["forward"], noise=0.01), *scores()]
    return Path(folder(tmp_path_factory.mktemp("written"), records))


@pytest.fixture
def results(tmp_path: Path, written: Path) -> str:
    return str(shutil.copytree(written, tmp_path / "results"))


@pytest.mark.parametrize("word", ["compare", "export", "merge"])
def test_help_shows_an_example_and_loads_nothing_heavy(word: str) -> None:
    script = (
        "import sys\n"
        "from efficient_attn.cli import main\n"
        "try:\n"
        f"    main([{word!r}, '--help'])\n"
        "except SystemExit as stop:\n"
        "    assert stop.code == 0\n"
        "heavy = {'torch', 'hydra', 'pandas', 'matplotlib', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "example" in done.stdout


@pytest.mark.parametrize("words", [["compare", "A", "A"], ["export", "A"]])
def test_reading_results_needs_no_torch(results: str, words: list[str]) -> None:
    words = [results if word == "A" else word for word in words]
    script = (
        "import sys\n"
        "from efficient_attn.cli import main\n"
        f"assert main({words!r}) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_equal_folders_end_with_zero(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", results, results]) == 0
    out = capsys.readouterr().out
    assert "nothing worse beyond 10 %" in out
    assert "worse in B" not in out
    assert "only in A:" not in out


def test_a_slower_contestant_ends_with_one_and_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = cells((256, 512, 1024, 2048), noise=0.005, passes=["forward"])
    a = folder(tmp_path / "a", old)
    b = folder(tmp_path / "b", slower(old, "performer", 1.6))
    assert main(["compare", a, b]) == 1
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if "performer" in line]
    assert len(rows) == 2, "one line for each pattern, whatever the number of lengths"
    assert all("3 more" in row and "1.60" in row for row in rows)
    assert "time: 8 worse" in out
    assert main(["compare", a, b, "--all"]) == 1
    everything = capsys.readouterr().out
    assert sum("performer" in line for line in everything.splitlines()) == 16
    assert main(["compare", a, b, "--what", "memory"]) == 0
    capsys.readouterr()
    assert main(["compare", a, b, "--relative-to", "full"]) == 1
    assert "time / full" in capsys.readouterr().out
    assert main(["compare", b, a]) == 0, "faster is no reason to fail"
    assert "better in B" in capsys.readouterr().out


def test_a_record_that_fails_now_ends_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = folder(tmp_path / "a", [cost()])
    b = folder(tmp_path / "b", [cost(status="oom", reason="[cpu] no memory left", cell="b")])
    assert main(["compare", a, b, "--what", "memory"]) == 1
    assert "[cpu] no memory left" in capsys.readouterr().out


def test_the_comparison_as_json(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", results, results, "--json", "--threshold", "0.5"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["worse"], answer["threshold"]) == (False, 0.5)
    assert set(answer["counts"]) == {"time", "memory", "accuracy"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "A", "nowhere"], "no records in nowhere"),
        (["compare", "A", "A", "--what", "speed"], "speed: choose from time, memory, accuracy"),
        (["compare", "A", "A", "--threshold", "-1"], "threshold=-1.0"),
        (["compare", "A", "A", "--relative-to", "nobody"], "no contestant 'nobody'"),
        (["export", "nowhere"], "no records in nowhere"),
        (["export"], "name the results folder"),
        (["export", "A", "--out", "table.xlsx"], "names no format"),
        (["export", "A", "--out", "table.csv", "--format", "parquet"], "does not fit"),
        (["export", "A", "--out", "-", "--format", "parquet"], "writes CSV"),
        (["merge", "nowhere", "--into", "A"], "nowhere is no results folder"),
    ],
)
def test_wrong_requests_end_with_two(
    results: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main([results if word == "A" else word for word in words]) == 2
    assert message in capsys.readouterr().err


def read_csv(source: object, table: pd.DataFrame) -> pd.DataFrame:
    return pd.read_csv(source, dtype=table.dtypes.to_dict(), keep_default_na=False, na_values=[""])


def test_csv_and_parquet_read_back_as_the_table(
    results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    table = frame(Store(results).read())
    assert main(["export", results]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == Path(results) / "records.csv"
    pd.testing.assert_frame_equal(read_csv(path, table), table, check_exact=True)
    assert main(["export", results, "--format", "parquet"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == Path(results) / "records.parquet"
    pd.testing.assert_frame_equal(pd.read_parquet(path), table, check_exact=True)
    assert len(Store(results).read()) == len(table), "an export beside the records hurts no one"


def test_columns_without_a_value_keep_their_type_in_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    types = []
    for name, status in (("one", "ok"), ("other", "oom")):
        results = folder(tmp_path / name, [cost(status=status), cost("performer")])
        assert main(["export", results, "--out", str(tmp_path / f"{name}.parquet")]) == 0
        schema = parquet.read_schema(tmp_path / f"{name}.parquet")
        types.append({field.name: str(field.type) for field in schema})
    assert types[0] == types[1]
    assert (types[0]["key_length"], types[0]["compile_ms"]) == ("int64", "double")
    assert types[0]["reason"] in ("string", "large_string")


def test_the_ending_of_out_names_the_format_and_a_dash_prints(
    tmp_path: Path, results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "table.CSV"
    assert main(["export", results, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["export", results, "--out", "-"]) == 0
    printed = capsys.readouterr().out
    assert printed == out.read_text()
    table = frame(Store(results).read())
    pd.testing.assert_frame_equal(read_csv(io.StringIO(printed), table), table)
    assert list(out.parent.iterdir()) == [out]


def test_parquet_without_pyarrow_says_what_to_install(
    results: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def to_parquet(*_: object, **__: object) -> None:
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", to_parquet)
    assert main(["export", results, "--format", "parquet"]) == 2
    assert "pip install 'efficient-attn[export]'" in capsys.readouterr().err
    assert [path.name for path in Path(results).iterdir()] == ["records"]


def test_the_columns_are_printed_with_their_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--columns"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(COLUMNS)
    assert all(line.endswith(COLUMNS[line.split()[0]]) for line in lines)


def test_a_file_that_is_left_out_is_named_and_ends_with_one(
    tmp_path: Path, results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(results) / "records" / "broken.json").write_text("{")
    assert main(["export", results]) == 1
    assert "broken.json" in capsys.readouterr().err
    assert main(["merge", results, "--into", str(tmp_path / "all")]) == 1
    assert "broken.json" in capsys.readouterr().err


def test_merging_brings_folders_together_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = folder(tmp_path / "a", [cost("full"), cost("performer")])
    b = folder(tmp_path / "b", [cost("performer"), cost("linformer")])
    target = str(tmp_path / "all")
    assert main(["merge", a, b, "--into", target]) == 0
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == [
        f"2 new, 0 newer than those of {target}",
        f"1 new, 0 newer than those of {target}",
    ]
    assert {record.contestant for record in Store(target).read()} == {
        "full",
        "performer",
        "linformer",
    }
    assert main(["compare", a, target]) == 0
    assert "only in B: linformer" in capsys.readouterr().out
