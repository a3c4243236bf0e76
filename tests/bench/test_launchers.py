"""The launchers: the same records from each, and one dead job does not take the others with it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from launcher_toys import ARMED
from omegaconf import OmegaConf

from efficient_attn.bench import environment as environment_of
from efficient_attn.bench import plan
from efficient_attn.bench.launchers import JobLost, Launcher
from efficient_attn.bench.plan import SweepError, make_plan
from efficient_attn.bench.progress import Mute
from efficient_attn.bench.store import Store
from efficient_attn.bench.sweep import _Here, _Job, launch, measure_cell
from efficient_attn.commands.sweep import main

HERE = Path(__file__).parent
QUICK = [
    "attention=[full,local_window]",
    "workload.heads=2",
    "workload.head_dim=8",
    "workload.length=16,32",
    "workload.threads=1",
    "measure.min_rounds=6",
    "measure.max_rounds=6",
    "measure.warm_up_s=0.0",
    "measure.sample_ms=0.01",
    "measure.rest_ms=0.0",
    "measure.target=0.9",
    "results=r",
]
PLUGINS = {
    "basic": "hydra",
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
    "ray": "hydra_plugins.hydra_ray_launcher",
}


def installed(name):
    package = PLUGINS[name].partition(".")[0]
    return bool(find_spec(package) and find_spec(PLUGINS[name]))


def command(*arguments):
    return [sys.executable, "-m", "efficient_attn.cli", "sweep", *QUICK, *arguments]


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", PLUGINS)
def test_every_launcher_leaves_the_same_records(name):
    if not installed(name):
        pytest.skip(f"{name}'s plugin is not installed")
    done = subprocess.run(
        command(f"hydra/launcher={name}"), env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    asked = make_plan(QUICK)
    records = [asked.store.get(key) for key in asked.keys]
    assert len(list(Path("r/records").glob("*.json"))) == len(records) == 4
    assert all(record.ok and record.environment["threads"] == 1 for record in records)
    assert "[4/4]" in done.stdout
    assert "Warning" not in done.stderr
    runs = {(record.request["length"], record.cell) for record in records}
    assert len(runs) == 2, "the contestants of a cell are measured together"


@pytest.mark.parametrize("name", [name for name in PLUGINS if name != "basic"])
def test_a_launcher_that_is_not_installed_is_refused_with_what_installs_it(name, monkeypatch):
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    with pytest.raises(SweepError, match=r"pip install 'efficient-attn\[(joblib|slurm|ray)\]'"):
        make_plan([*QUICK, f"hydra/launcher={name}"])
    assert main([*QUICK, f"hydra/launcher={name}"]) == 2
    assert not Path("r").exists()


def test_every_preset_takes_the_options_of_its_plugin_and_no_other():
    for name in PLUGINS:
        if installed(name):
            assert make_plan([*QUICK, f"hydra/launcher={name}"]).cells
    with pytest.raises(SweepError, match="n_job"):
        make_plan([*QUICK, "hydra/launcher=joblib", "hydra.launcher.n_job=3"])
    with pytest.raises(SweepError, match="cannot be swept"):
        make_plan([*QUICK, "hydra/launcher=basic,joblib"])


@pytest.mark.skipif(not installed("submitit_local"), reason="submitit is not installed")
def test_a_killed_job_costs_its_own_records_and_the_same_command_goes_on():
    arguments = [
        "hydra/launcher=submitit_local",
        "workload.length=16,32,48",
        "attention=[full]",
        "+attention.killer.variant=launcher_toys:JobKiller",
    ]
    ARMED.touch()
    first = subprocess.run(
        command(*arguments), env=environment(), capture_output=True, text=True, timeout=240
    )
    assert not ARMED.exists(), "it was killed"
    assert first.returncode == 1, first.stdout + first.stderr
    assert "Traceback" not in first.stdout + first.stderr
    assert "Lost: job" in first.stdout
    assert (
        "4 of 6 measurements done, 2 without a record (run the same command again)" in first.stdout
    )
    lengths = sorted(record.request["length"] for record in Store("r").read())
    assert lengths == [16, 16, 48, 48]
    second = subprocess.run(
        command(*arguments), env=environment(), capture_output=True, text=True, timeout=240
    )
    assert second.returncode == 0, second.stdout + second.stderr
    assert "6 measurements asked, 4 already in r, 2 to do" in second.stdout
    assert len(Store("r").read()) == 6


class Announcing:
    """Stands in for a submitit job."""

    job_id = "7"
    state = "INTERRUPTED"
    paths = OmegaConf.create({"stderr": "log"})

    def __init__(self, answer):
        self.answer, self.cancelled = answer, False

    def results(self):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return [self.answer]

    def cancel(self):
        self.cancelled = True


@pytest.mark.skipif(not installed("submitit_local"), reason="submitit is not installed")
def test_a_dead_job_is_an_answer_and_an_interruption_cancels_all(monkeypatch):
    import submitit

    dead = Announcing(submitit.core.utils.UncompletedJobError("gone"))
    alive, stopped = Announcing("fine"), Announcing(KeyboardInterrupt())
    jobs = [dead, alive, stopped]
    monkeypatch.setattr(submitit.AutoExecutor, "map_array", lambda executor: jobs)
    with Launcher("hydra_plugins.hydra_submitit_launcher.X", None).attended():
        first, second, third = submitit.AutoExecutor.map_array(None)
        [answer] = first.results()
        assert isinstance(answer.return_value, JobLost)
        assert "job 7 died" in str(answer.return_value)
        assert second.results() == ["fine"]
        with pytest.raises(KeyboardInterrupt):
            third.results()
    assert all(job.cancelled for job in jobs)
    assert submitit.AutoExecutor.map_array(None) == jobs, "the plugin's own again"


def failing(plan, error):
    """The plan, with a first cell whose run raises."""

    def run(self, contestants, progress):
        raise error
        yield

    cell = plan.cells[0]
    cell.__dict__["run"] = run.__get__(cell)
    return plan


def test_a_fault_in_one_cell_leaves_the_others_and_is_told():
    broken = failing(make_plan(QUICK), RuntimeError("a deliberate fault"))
    [problem] = launch(broken, Mute())
    assert "N=16" in problem
    assert "a deliberate fault" in problem
    assert {record.request["length"] for record in Store("r").read()} == {32}


def test_a_full_disk_stops_the_sweep_with_its_message():
    broken = failing(make_plan(QUICK), OSError(28, "cannot write: disk full"))
    with pytest.raises(OSError, match="disk full"):
        launch(broken, Mute())
    assert not Store("r").read(), "what comes after is not measured in vain"


@pytest.mark.skipif(not installed("joblib"), reason="the joblib plugin is not installed")
def test_a_folder_that_cannot_be_written_is_told_before_jobs_start(capsys):
    Path("r").mkdir()
    Path("r/records").write_text("in the way")
    assert main([*QUICK, "hydra/launcher=joblib"]) == 2
    assert "r/records" in capsys.readouterr().err


def test_two_sweeps_at_once_measure_each_cell_once():
    sweeps = [
        subprocess.Popen(command(), env=environment(), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for sweep in sweeps:
        said, _ = sweep.communicate(timeout=240)
        assert sweep.returncode == 0, said
        assert "4 of 4 measurements done" in said
    records = Store("r").read()
    assert len(records) == 4
    assert len({record.cell for record in records}) == 2, "contestants of a cell are of one run"


def test_a_cell_that_others_have_measured_meanwhile_is_left_alone(monkeypatch):
    """Between looking and getting its cores."""
    cell, store = make_plan(QUICK).cells[0], make_plan(QUICK).store
    looks = iter([False, False, True, True])
    monkeypatch.setattr(type(store), "has", lambda self, key: next(looks))
    measure_cell(cell, store, Mute())
    assert not Path("r").exists()


def test_a_record_from_a_machine_with_another_cpu_answers_the_plan(monkeypatch):
    """As when the login node plans and other nodes measure: nothing is measured again."""
    planned = make_plan(QUICK)
    planned.store.require_writable()
    job = job_of(planned)
    with monkeypatch.context() as there:
        machine = {**environment_of.machine(), "cpu": "another"}
        there.setattr(environment_of, "machine", lambda: machine)
        assert job(OmegaConf.create({"cell": 0})) is None
        assert job(OmegaConf.create({"cell": 0})) is None
    assert len(Store("r").read()) == 2
    assert planned.missing() == make_plan(QUICK).missing() == 2
    assert make_plan(QUICK).store.get(planned.keys[0]).environment["cpu"] == "another"


def test_other_code_or_versions_elsewhere_measure_nothing(monkeypatch):
    job = job_of(make_plan(QUICK))
    monkeypatch.setattr(environment_of, "code_hash", lambda measure, variant: "another")
    assert "not that of the process that planned" in str(job(OmegaConf.create({"cell": 0})))
    assert not Path("r").exists()


def test_a_job_gives_its_process_the_thread_settings_and_paths_of_the_planner(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.syspath_prepend("a/place")
    job = job_of(make_plan(QUICK))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    sys.path.remove("a/place")
    job._settle()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in os.environ
    assert "a/place" in sys.path


def job_of(planned):
    keys = [[cell.key(one) for one in cell.contestants] for cell in planned.cells]
    return _Job(planned.cells, keys, planned.store, Mute(), _Here.of(planned.cells))
