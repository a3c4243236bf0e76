"""The sweep end to end: planning, refusing typos, resuming, surviving failures and kills."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from efficient_attn.bench.sweep import SweepError, make_plan
from efficient_attn.commands.sweep import main

HERE = Path(__file__).parent
QUICK = [
    "attention=[full,local_window]",
    "workload.heads=2",
    "workload.head_dim=8",
    "measure.min_rounds=6",
    "measure.max_rounds=6",
    "measure.warm_up_s=0.0",
    "measure.sample_ms=0.01",
    "measure.rest_ms=0.0",
    "measure.target=0.9",
]


def toy(name):
    """Override that enters a misbehaving contestant under its own name."""
    return f"+attention.{name.lower()}.variant=bench_toys:{name}"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def keys(plan):
    return set(plan.keys)


def test_a_plan_has_a_cell_per_swept_value_without_repetition():
    plan = make_plan([*QUICK, "workload.length=32,64", "workload.pass=forward,forward_backward"])
    assert len(plan.cells) == 4
    assert len(keys(plan)) == 8
    assert len(make_plan([*QUICK, "workload.length=32,32"]).cells) == 1


def test_an_argument_replaces_what_the_experiment_sweeps():
    plan = make_plan(["+experiment=demo", "workload.length=64"])
    assert {cell.workload.length for cell in plan.cells} == {64}
    assert len(plan.cells) == 4


def test_an_experiment_runs_with_fewer_contestants_than_it_sets_options_for():
    plan = make_plan(["+experiment=demo_accuracy", "attention=[performer]"])
    assert {one.name for cell in plan.cells for one in cell.contestants} == {"performer"}
    assert plan.cells[0].contestants[0].options["num_features"] == 64


def test_every_shipped_experiment_plans():
    for name in ("demo", "demo_accuracy", "smoke"):
        assert make_plan([f"+experiment={name}"]).cells


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("attention.local_window.windw=3", ["windw", "window", "global_tokens"]),
        ("+attention.local_window.windw=3", ["windw", "window", "global_tokens"]),
        ("++attention.local_window.windw=3", ["windw", "window", "global_tokens"]),
        ("attention.local_window.window=-1", ["window", "-1", "at least 0"]),
        ("attention.performer.num_features=8", ["performer", "full", "local_window"]),
        ("workload.lenght=3", ["lenght", "length"]),
        ("workload.pass=sideways", ["sideways", "forward_backward"]),
        ("workload.length=0", ["length", "at least 1"]),
        ("attention=[ful]", ["ful", "local_window"]),
        ("measure.min_rounds=2", ["min_rounds", "6"]),
        ("measure.memory_cap_gb=-1", ["memory_cap_gb", "above 0"]),
        ("task=mqr", ["mqr", "mqar"]),
        ("+experiment=dmo", ["dmo", "demo"]),
    ],
)
def test_a_mistake_is_refused_before_anything_is_measured(argument, said, capsys):
    with pytest.raises(SweepError) as refused:
        make_plan([*QUICK, argument])
    for words in said:
        assert words in str(refused.value)
    assert main([*QUICK, argument]) == 2
    assert not list(Path().rglob("*.json"))


def test_a_second_run_measures_nothing_and_says_so(capsys):
    arguments = [*QUICK, "workload.length=32,64", "results=r"]
    assert main(arguments) == 0
    assert "4 measurements asked, 0 already in r, 4 to do" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in Path("r/records").iterdir()}
    assert len(before) == 4
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "Nothing to measure" in out
    assert "4 of 4 measurements done" in out
    assert {path: path.stat().st_mtime_ns for path in Path("r/records").iterdir()} == before


def test_a_changed_option_measures_that_contestant_again(capsys):
    assert main([*QUICK, "workload.length=32", "results=r"]) == 0
    assert main([*QUICK, "workload.length=32", "attention.local_window.window=3", "results=r"]) == 0
    out = capsys.readouterr().out
    assert "2 measurements asked, 1 already in r, 1 to do" in out
    assert "[1/1]" in out, "the other contestant of the cell is not measured again"


def test_the_effective_options_are_recorded():
    assert main([*QUICK, "attention.local_window.window=[3,5]", "results=r"]) == 0
    records = [json.loads(path.read_text()) for path in Path("r/records").iterdir()]
    local = next(record for record in records if record["contestant"] == "local_window")
    assert local["options"] == {"window": [3, 5], "global_tokens": 0}
    assert local["environment"]["threads"] >= 1
    assert local["environment"]["torch"]


def test_a_failure_is_a_record_and_the_exit_code_tells(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    arguments = [*QUICK, toy("Hog"), toy("Segfault"), "results=r"]
    assert main(arguments) == 1
    out = capsys.readouterr().out
    for words in ("oom", "SIGSEGV", "2 of 4 measurements done, 2 failed"):
        assert words in out
    assert main(arguments) == 1, "a failure that is known stays a failure"
    assert "Nothing to measure" in capsys.readouterr().out


def test_what_a_variant_does_not_support_is_no_failure(capsys):
    arguments = [*QUICK, "attention=[full,linformer]", "workload.pattern=causal_self", "results=r"]
    assert main(arguments) == 0
    assert "mixes all positions" in capsys.readouterr().out


def test_a_dry_run_lists_and_measures_nothing(capsys):
    assert main([*QUICK, "workload.length=32,64", "--dry-run", "results=r"]) == 0
    assert "4 of 4 measurements to do" in capsys.readouterr().out
    assert not Path("r").exists()


def test_accuracy_trains_each_contestant_and_keeps_the_failed(capsys):
    arguments = [
        "measure=accuracy",
        "task=mqar",
        "attention=[full,linformer]",
        "task.length=32",
        "task.pairs=2",
        "training.steps=3",
        "training.learning_rates=[0.01]",
        "results=r",
    ]
    assert main(arguments) == 0
    records = [json.loads(path.read_text()) for path in Path("r/records").iterdir()]
    by_name = {record["contestant"]: record for record in records}
    assert by_name["full"]["result"]["metric"] == "accuracy"
    assert by_name["full"]["result"]["peak_rss_bytes"] > 0
    assert by_name["linformer"]["status"] == "unsupported"
    assert main(arguments) == 0
    assert "Nothing to measure" in capsys.readouterr().out


def test_results_that_cannot_be_written_are_refused_with_the_reason(capsys):
    Path("file").write_text("in the way")
    assert main([*QUICK, "results=file"]) == 2
    assert "file" in capsys.readouterr().err


def test_a_killed_sweep_goes_on_with_what_is_missing():
    arguments = [*QUICK, "workload.length=8,16,24,32,40,48,56,64", "results=r"]
    command = [sys.executable, "-m", "efficient_attn.cli", "sweep", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    records = Path("r/records")
    deadline = time.monotonic() + 120
    while not (records.exists() and len(list(records.glob("*.json"))) >= 4):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = len(list(records.glob("*.json")))
    assert 4 <= done < 16
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"16 measurements asked, {done} already in r, {16 - done} to do" in again.stdout
    third = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "Nothing to measure" in third.stdout
