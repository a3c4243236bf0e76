"""Accuracy cells: the same numbers for the same seeds, alone or side by side; what they report."""

import math
from pathlib import Path

import pytest

from efficient_attn.bench.accuracy_cell import AccuracyCell
from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.tracking import Tracking
from efficient_attn.bench.training import Training
from efficient_attn.bench.worker import Limits
from efficient_attn.tasks import ModelConfig, Mqar

TASK = Mqar(length=24, pairs=3, vocab=16, evaluation=64)
MODEL = ModelConfig(d_model=32, nhead=2, num_layers=1, dropout=0.1)
TRAINING = Training(steps=12, batch_size=16, learning_rates=(3e-3, 1e-2))
CONTESTANTS = (
    Contestant("full", "full", {}),
    Contestant("performer", "performer", {"num_features": 16}),
    Contestant("linformer", "linformer", {}),
)


def cell(workers: int = 1, training: Training = TRAINING, **fields) -> AccuracyCell:
    limits = Limits(memory_cap_gb=8, timeout_s=120)
    return AccuracyCell(CONTESTANTS, limits, TASK, MODEL, training, 1, "cpu", 1, workers, **fields)


def run(asked: AccuracyCell, told=None) -> dict:
    records = list(asked.run(CONTESTANTS, lambda *heard: told is not None and told.append(heard)))
    return {record.contestant: record for record in records}


@pytest.fixture(scope="module")
def alone() -> dict:
    return run(cell())


def numbers(record) -> dict:
    """What does not hang on the clock or on the process's memory."""
    chance = ("train_seconds", "peak_rss_bytes")
    return {name: value for name, value in record.result.items() if name not in chance}


def test_the_same_cell_gives_the_same_numbers_side_by_side(alone) -> None:
    together = run(cell(workers=3))
    for name in ("full", "performer"):
        assert numbers(alone[name]) == numbers(together[name])
        assert alone[name].environment["threads"] == 1
    assert alone["full"].result["value"] != alone["performer"].result["value"]


def test_memory_of_an_update_stands_in_the_record(alone) -> None:
    result = alone["full"].result
    assert result["peak_method"] == "profiler"
    assert result["peak_tensor_bytes"] > 4 * result["parameters"]
    assert alone["linformer"].status == "unsupported"


def test_progress_tells_of_every_training() -> None:
    told: list = []
    run(cell(workers=2, validate_every=5), told)
    shares = [share for share, *_ in told]
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    states = {state.name: state for _, _, *rest in told if rest for state in rest[0]}
    assert set(states) == {"full", "performer", "linformer"}
    assert all(state.ended for state in states.values())
    assert (states["full"].rate, states["full"].step) == (1, 12)
    assert math.isfinite(states["full"].losses[-1])
    assert 0 <= states["full"].validation <= 1


def test_how_it_is_watched_is_part_of_the_key_and_where_it_is_logged_is_not(tmp_path) -> None:
    full = CONTESTANTS[0]
    assert cell().key(full) != cell(validate_every=5).key(full)
    pytest.importorskip("tensorboard")
    tracked = cell(tracking=Tracking("tensorboard", tmp_path))
    assert cell().key(full) == tracked.key(full)
    assert cell().request == tracked.request


@pytest.mark.parametrize("value", [0, -1, True, 2.5])
def test_an_impossible_interval_of_validation_is_refused(value) -> None:
    with pytest.raises(ValueError, match=r"measure\.validate_every"):
        cell(validate_every=value)


def test_tensorboard_gets_every_curve(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = run(cell(validate_every=6, tracking=Tracking("tensorboard", tmp_path)))["full"]
    runs = {path.parent.name: path.parent for path in tmp_path.rglob("full/seed_1/*/events*")}
    assert set(runs) == {"rate_0.003", "rate_0.01"}
    curves = {}
    for rate, folder in runs.items():
        events = EventAccumulator(str(folder)).Reload()
        scalars = events.Tags()["scalars"]
        curves[rate] = {
            tag: [[point.step, point.value] for point in events.Scalars(tag)] for tag in scalars
        }
    picked = curves.pop(f"rate_{record.result['learning_rate']:g}")
    (other,) = curves.values()
    for name, expected in (
        ("loss", record.result["curve"]),
        ("validation", record.result["validations"]),
        ("test", [[12, record.result["value"]]]),
    ):
        assert [step for step, _ in picked[name]] == [step for step, _ in expected]
        assert [v for _, v in picked[name]] == pytest.approx([v for _, v in expected], rel=1e-6)
    assert "test" not in other
    assert len(other["loss"]) == 12


def test_mlflow_gets_every_curve(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    record = run(cell(tracking=Tracking("mlflow", tmp_path)))["full"]
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name != "Default"]
    runs = client.search_runs([experiment.experiment_id])
    names = {run.info.run_name for run in runs if "full" in run.info.run_name}
    assert names == {"full, seed 1, rate 0.003", "full, seed 1, rate 0.01"}
    rate = f"full, seed 1, rate {record.result['learning_rate']:g}"
    (picked,) = [run for run in runs if run.info.run_name == rate]
    assert picked.info.status == "FINISHED"
    assert picked.data.metrics["test"] == pytest.approx(record.result["value"])
    losses = client.get_metric_history(picked.info.run_id, "loss")
    assert [[point.step, point.value] for point in losses] == record.result["curve"]


def test_a_package_that_is_missing_is_named_with_its_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("efficient_attn.bench.tracking.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"measure\.log=mlflow .*efficient-attn\[mlflow\]"):
        Tracking("mlflow", tmp_path)
    with pytest.raises(ValueError, match=r"measure\.log='paper' .*null, tensorboard, mlflow"):
        Tracking("paper", tmp_path)
