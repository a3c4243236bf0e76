"""The sweep end to end: planning, refusing typos, resuming, surviving failures and kills."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from efficient_attn.bench.estimate import estimate
from efficient_attn.bench.progress import Mute
from efficient_attn.bench.sweep import SweepError, make_plan, measure_cell
from efficient_attn.commands.sweep import _time_spent, main

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
    for name in ("demo", "demo_accuracy", "smoke", "accuracy_quick"):
        assert make_plan([f"+experiment={name}"]).cells


def test_the_quick_accuracy_protocol_is_the_same_for_every_contestant():
    cells = make_plan(["+experiment=accuracy_quick"]).cells
    seeds = {}
    for cell in cells:
        names = {one.name for one in cell.contestants}
        assert {"full", "no_mixing"} < names
        assert len(cell.training.learning_rates) > 1
        seeds.setdefault(cell.task.name, []).append(cell.seed)
    assert all(found == [0, 1, 2] for found in seeds.values())


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


def test_jobs_that_ask_the_same_share_a_cell():
    """So that each option of one contestant is held against the others in the same rounds."""
    features = "attention.performer.num_features=64,128,256"
    plan = make_plan([*QUICK, "attention=[full,performer]", features, "workload.length=32,64"])
    assert len(plan.cells) == 2
    for cell in plan.cells:
        entered = [(one.name, one.options.get("num_features")) for one in cell.contestants]
        assert entered == [("full", None)] + [("performer", n) for n in (64, 128, 256)]
    assert len(keys(plan)) == len(plan.keys) == 8
    alone = make_plan([*QUICK, "attention=[performer]", "workload.length=32"])
    assert keys(alone) <= keys(plan) | {alone.keys[0]}
    apart = make_plan([*QUICK, "attention=[full],[local_window]"])
    assert [[one.name for one in cell.contestants] for cell in apart.cells] == [
        ["full", "local_window"]
    ]


def test_what_is_measured_differently_is_no_shared_cell():
    assert len(make_plan([*QUICK, "measure.budget_s=1,2"]).cells) == 2
    assert len(make_plan([*QUICK, "measure.memory_cap_gb=1,2"]).cells) == 2


def sizes(plan):
    return [(c.workload.length, c.workload.batch, c.workload.heads) for c in plan.cells]


def test_paired_sweeps_advance_together_and_cross_the_others():
    swept = ["workload.length=32,64", "workload.batch=8,4", "workload.heads=1,2"]
    assert len(make_plan([*QUICK, *swept]).cells) == 8
    paired = make_plan([*QUICK, *swept, "paired=[workload.length,workload.batch]"])
    assert sizes(paired) == [(32, 8, 1), (32, 8, 2), (64, 4, 1), (64, 4, 2)]
    swept.append("workload.head_dim=8,16")
    groups = "paired=[[workload.length,workload.batch],[workload.heads,workload.head_dim]]"
    assert sizes(make_plan([*QUICK, *swept, groups])) == sizes(paired)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["workload.length=1,2", "workload.batch=1,2,3"], "workload.length has 2"),
        (["workload.length=1,2", "workload.batch=1"], "workload.batch, which is not swept"),
        (["workload.length=1,2", "paired=workload.length"], "list of swept names"),
        (["workload.length=interval(1,2)"], "listed values"),
        (["results=a,b"], "cannot be swept"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(arguments, said):
    paired = ["paired=[workload.length,workload.batch]"] if "batch" in str(arguments) else []
    with pytest.raises(SweepError, match=said):
        make_plan([*QUICK, *paired, *arguments])


def test_conditions_that_nobody_supports_are_records_and_no_failure(capsys):
    """Crossing patterns, passes, scopes and key lengths meets contradictions."""
    arguments = [
        *QUICK,
        "workload.length=16",
        "workload.key_length=null,24",
        "workload.pattern=causal_self,noncausal_cross",
        "workload.pass=forward,decode",
        "workload.scope=core,block",
        "results=r",
    ]
    plan = make_plan(arguments)
    assert len(plan.cells) == 2**4
    contradictory = [cell for cell in plan.cells if cell.workload.contradiction]
    assert 0 < len(contradictory) < len(plan.cells)
    assert (
        main(
            [
                *arguments[:-5],
                "workload.pattern=noncausal_cross",
                "workload.pass=decode",
                "results=r",
            ]
        )
        == 0
    )
    assert "decode is causal self-attention" in capsys.readouterr().out


def test_forced_measures_again_once_and_only_failed_measures_only_failures(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    arguments = [*QUICK, "attention=[full]", toy("Hog"), "results=r"]
    assert main(arguments) == 1
    before = records_by_name()
    assert main([*arguments, "workload.length=1024,64", "--only", "failed"]) == 1
    assert "1 measurements asked, 0 already in r, 1 to do" in capsys.readouterr().out
    after = records_by_name()
    assert after["full"] == before["full"]
    assert after["hog"]["cell"] != before["hog"]["cell"]
    assert main(["--force", *arguments]) == 1
    assert "2 measurements asked, 0 already in r, 2 to do" in capsys.readouterr().out
    forced = records_by_name()
    assert len({record["cell"] for record in [*after.values(), *forced.values()]}) == 3
    plan = make_plan(arguments, redo="all")
    measure_cell(plan.cells[0], plan.store, Mute())
    again = records_by_name()
    assert again["full"]["cell"] != forced["full"]["cell"]
    measure_cell(plan.cells[0], plan.store, Mute())
    assert records_by_name() == again, "a job that is started twice measures once"


def test_nothing_failed_is_nothing_to_do(capsys):
    assert main([*QUICK, "workload.length=16", "--only=failed", "results=r"]) == 0
    assert not Path("r/records").exists()
    with pytest.raises(SystemExit):
        main([*QUICK, "--force", "--only=failed"])


def records_by_name():
    records = [json.loads(path.read_text()) for path in Path("r/records").iterdir()]
    return {record["contestant"]: record for record in records}


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
    expected = {"window": [3, 5], "global_tokens": 0, "implementation": "eager"}
    assert local["options"] == expected
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


def test_a_dry_run_estimates_from_settings_and_from_what_was_measured(capsys):
    arguments = [*QUICK, "workload.length=64", "measure.budget_s=2", "results=r"]
    plan = make_plan(arguments)
    cell, earlier = plan.cells[0], []
    blind = estimate(cell, cell.contestants, earlier)
    assert blind.source == "settings"
    for length, milliseconds in ((16, 2000.0), (32, 4000.0)):
        at = make_plan([*arguments, f"workload.length={length}"]).cells[0]
        earlier.append(cost_record(at, milliseconds))
    known = estimate(cell, cell.contestants, earlier)
    assert known.source == "settings and records of 1 of 2 contestants"
    sampling = 6 * (8.0 + 0.01 / 1e3)  # rounds of 8 s each, as the trend says, past the budget
    assert known.seconds == pytest.approx(2 * 0.4 + 2 * 8.0 + sampling, rel=0.01)
    assert estimate(cell, cell.contestants, earlier[:1]).seconds > 6 * 4 * 4.0, "n² from one length"
    assert main([*arguments, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["estimate"]["seconds"] == pytest.approx(blind.seconds)
    assert told["measurements"] == {"asked": 2, "missing": 2}


def cost_record(cell, milliseconds):
    full = cell.contestants[0]
    return cell.record(full, "ok", result={"median_ms": milliseconds})


def test_accuracy_is_estimated_from_earlier_trainings_of_the_task_or_not_at_all(capsys):
    arguments = ["measure=accuracy", "task=mqar", "attention=[full]", "measure.seed=0,1"]
    plan = make_plan([*arguments, "results=r"])
    cell = plan.cells[1]
    assert estimate(cell, cell.contestants, []).seconds is None
    steps = cell.training.steps
    earlier = plan.cells[0].record(
        cell.contestants[0], "ok", result={"train_seconds": 3.0, "steps": steps}
    )
    known = estimate(cell, cell.contestants, [earlier])
    assert known.seconds == pytest.approx(3.0 * len(cell.training.learning_rates))
    assert main([*arguments, "results=r", "--dry-run"]) == 0
    assert "2 cells of unknown duration" in capsys.readouterr().out


def test_the_closing_line_tells_the_harness_own_share():
    seconds = {"total": 10.0, "warm_up": 2.0, "timed": 7.0, "start": 1.0}
    full = make_plan([*QUICK, "workload.length=16"]).cells[0]
    one, two = (
        full.record(entered, "timeout", cell_seconds=seconds) for entered in full.contestants
    )
    assert _time_spent([one, two], 12.0) == "Took 12 s; harness 10% of 10 s in timed cells."
    assert _time_spent([full.record(full.contestants[0], "timeout")], 12.0) == "Took 12 s."


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
