"""Tasks by name, and what all of them promise."""

from pathlib import Path
from typing import get_args

import pytest
import yaml
from hydra import compose, initialize_config_dir
from PIL import Image

from efficient_attn.nn.positions import NoPositions
from efficient_attn.tasks import (
    TASKS,
    ByteLM,
    ByteText,
    Copying,
    DigitsGrid,
    Fashion,
    FashionPixels,
    Induction,
    ListOps,
    ModelConfig,
    Mqar,
    SelectiveCopying,
    Task,
    make_task,
)
from efficient_attn.tasks.task import CAPABILITIES, TaskPattern

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


PRESETS = {
    "aligned_copy": Copying(order="copy", distractors=32, contest="cross"),
    "aligned_copy_short": Copying(tokens=8, order="copy", distractors=8, contest="cross"),
    "byte_lm_short": ByteLM(length=64, context=16),
    "byte_text_short": ByteText(length=128),
    "copying_medium": Copying(tokens=12, evaluation=200, contest="cross"),
    "copying_short": Copying(tokens=6, evaluation=200, contest="cross"),
    "digits_grid_large": DigitsGrid(scale=2),
    "induction_short": Induction(length=32),
    "listops_short": ListOps(
        length=48, shortest=12, max_depth=4, max_args=4, train=8000, evaluation=1000
    ),
    "mqar_short": Mqar(length=32, pairs=4, vocab=32),
    "selective_copying_short": SelectiveCopying(length=32, tokens=4),
}


def test_presets_are_tasks_under_another_name() -> None:
    files = {path.stem for path in (CONF / "task").glob("*.yaml")}
    assert files == {*TASKS, *PRESETS}
    for name, task in PRESETS.items():
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("sweep", [f"task={name}"])
        assert make_task(**config.task) == task
        training = yaml.safe_load((CONF / "training" / f"{task.name}.yaml").read_text())
        assert config.training == training


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest, tmp_path: Path) -> Task:
    """Each task with its defaults, and with something to read where it needs that."""
    if request.param == "pathfinder":
        return make_task("pathfinder", train=100, evaluation=20)
    if request.param == "image_folder":
        for number in range(60):
            file = tmp_path / f"{number % 2}" / f"{number}.png"
            file.parent.mkdir(exist_ok=True)
            Image.new("L", (8, 8), number).save(file)
        return make_task("image_folder", folder=str(tmp_path), side=8)
    if request.param != "translation":
        return make_task(request.param)
    pytest.importorskip("sacrebleu")
    text = tmp_path / "pairs.tsv"
    text.write_text("".join(f"number {n}\tcifra {n}\n" for n in range(40)))
    return make_task("translation", source=str(text), evaluation=4)


def test_contract(task: Task) -> None:
    if isinstance(task, Fashion | FashionPixels) and not Path(task.folder).exists():
        pytest.skip("dataset-fashion-mnist is not installed")
    assert task.pattern in get_args(TaskPattern)
    assert task.capability in CAPABILITIES
    assert task.length >= 1
    if task.grid is not None:
        assert task.grid[0] * task.grid[1] == task.length
    assert "chance" in task.baselines()
    batch = next(task.batches(0, 3))
    model = task.build_model("full", {}, SMALL)
    task.loss(model, batch).backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_the_model_configuration_is_obeyed(task: Task) -> None:
    config = ModelConfig(
        d_model=16, nhead=2, num_layers=3, positions="none", short_conv=2, dropout=0.25
    )
    model = task.build_model("full", {}, config)
    trunk = getattr(model, "encoder", model).trunk  # of a dual encoder within its encoder
    layers = trunk.encoder.layers
    assert len(layers) == 3
    assert layers[0].short_conv.width == 2
    assert layers[0].dropout1.p == layers[0].self_attn.dropout == 0.25
    assert isinstance(trunk.positions, NoPositions)


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"byte_lm, .*copying, .*fashion, .*translation"):
        make_task("mnist")
    with pytest.raises(ValueError, match=r"lenght.*length, pairs"):
        make_task("mqar", lenght=3)


def test_impossible_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.d_model=10"):
        ModelConfig(d_model=10, nhead=4)
    with pytest.raises(ValueError, match=r"model\.dropout=1\.5"):
        ModelConfig(dropout=1.5)
