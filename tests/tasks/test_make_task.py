"""Tasks by name, and what all of them promise."""

from pathlib import Path

import pytest
import yaml

from efficient_attn.nn.positions import NoPositions
from efficient_attn.tasks import TASKS, ModelConfig, make_task

CONF = Path(__file__).parents[2] / "conf"
SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)


@pytest.mark.parametrize("name", TASKS)
def test_shipped_configuration_builds_the_task(name: str) -> None:
    values = yaml.safe_load((CONF / "task" / f"{name}.yaml").read_text())
    values.pop("defaults", None)  # Hydra's, not the task's
    task = make_task(**values)
    assert task == make_task(name)
    assert task == make_task(**task.to_dict())
    assert hash(task) == hash(make_task(name))


@pytest.mark.parametrize("name", TASKS)
def test_contract(name: str) -> None:
    task = make_task(name)
    if name == "fashion" and not Path(task.folder).exists():
        pytest.skip("dataset-fashion-mnist is not installed")
    assert task.pattern in ("noncausal_self", "causal_self")
    assert task.length >= 1
    if task.grid is not None:
        assert task.grid[0] * task.grid[1] == task.length
    assert "chance" in task.baselines()
    batch = next(task.batches(0, 3))
    model = task.build_model("full", {}, SMALL)
    task.loss(model, batch).backward()
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize("name", TASKS)
def test_the_model_configuration_is_obeyed(name: str) -> None:
    config = ModelConfig(d_model=16, nhead=2, num_layers=3, positions="none", short_conv=2)
    model = make_task(name).build_model("full", {}, config)
    layers = model.trunk.encoder.layers
    assert len(layers) == 3
    assert layers[0].short_conv.width == 2
    assert isinstance(model.trunk.positions, NoPositions)


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"byte_lm, .*digits_grid, fashion, .*mqar"):
        make_task("mnist")
    with pytest.raises(ValueError, match=r"lenght.*length, pairs"):
        make_task("mqar", lenght=3)


def test_impossible_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.d_model=10"):
        ModelConfig(d_model=10, nhead=4)
