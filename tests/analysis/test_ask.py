"""`ea.pick`: the answer from Python, without torch, and by measuring now."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import cells, scores

import efficient_attn as ea
from efficient_attn.analysis.ask import MEASURED, REFERENCE
from efficient_attn.bench.store import Store
from efficient_attn.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    store = Store(tmp_path / "stored")
    for record in cells() + scores():
        store.write(record)
    return store.folder


def test_python_and_the_command_give_one_answer(stored: Path, capsys) -> None:
    ranking = ea.pick(
        3000, results=stored, pattern="causal_self", batch=2, needs={"recall": 2.0}, tolerance=0.9
    )
    words = "pick --length 3000 --pattern causal_self --batch 2 --needs recall=2 --tolerance 0.9"
    code = main([*words.split(), "--from", str(stored), "--json"])
    assert code == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(ranking.to_dict()))


def test_lengths_may_be_a_file_or_a_list(stored: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("256\t3\n2048\t1\n")
    one = ea.pick(lengths=file, results=stored)
    assert one == ea.pick(lengths=[256, 256, 2048, 256], results=stored)
    assert main(["pick", "--lengths", str(file), "--from", str(stored)]) == 0
    assert "N=256…2048 (mean 704, 2 lengths)" in capsys.readouterr().out
    with pytest.raises(ValueError, match="either"):
        ea.pick(256, lengths=file, results=stored)
    assert main(["pick", "--from", str(stored)]) == 2


@pytest.mark.parametrize("word", ["recall=much", "beauty=1"])
def test_needs_that_cannot_be_read_are_refused(stored: Path, capsys, word: str) -> None:
    assert main(["pick", "--length", "512", "--from", str(stored), "--needs", word]) == 2
    assert word.split("=")[0] in capsys.readouterr().err


def test_no_records_say_where_the_reference_lies(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("efficient_attn.analysis.ask.__file__", str(tmp_path / "a/b/c.py"))
    with pytest.raises(ValueError, match="not in the installed package"):
        ea.pick(512)
    with pytest.raises(ValueError, match="no records in nowhere"):
        ea.pick(512, results="nowhere")
    assert REFERENCE != MEASURED


def test_an_answer_never_loads_torch(stored: Path) -> None:
    code = (
        "import sys, efficient_attn as ea\n"
        f"ea.pick(3000, results={str(stored)!r}, needs={{'recall': 1.0}}, exact_only=False)\n"
        "from efficient_attn.cli import main\n"
        f"main(['pick', '--length', '700', '--from', {str(stored)!r}])\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_overrides_of_every_choice_are_those_of_a_sweep(stored: Path) -> None:
    from efficient_attn.bench.plan import make_plan

    for length in (1024, 3000):
        for choice in ea.pick(length, results=stored).choices:
            (cell,) = make_plan(choice.overrides).cells
            (one,) = cell.contestants
            assert one.variant == choice.variant
            assert cell.request["length"] == length
            fixed = {name: value for name, value in one.options.items() if value is not None}
            assert fixed.items() <= {"implementation": "eager", **choice.options}.items()


def test_measuring_now_ranks_by_what_was_measured(tmp_path: Path) -> None:
    stored = Store(tmp_path / "stored")
    for record in cells((128, 256, 512), contestants=("full", "linformer"), threads=1):
        stored.write(record)
    into = tmp_path / "now"
    ranking = ea.pick(
        48, results=stored.folder, heads=2, head_dim=8, threads=1, measure=True, into=into
    )
    assert {one.contestant for one in ranking.choices} == {"full", "linformer"}
    assert all(one.measured for one in ranking.choices)
    assert any("measured now" in note for note in ranking.notes)
    assert len(Store(into).read()) == 2
