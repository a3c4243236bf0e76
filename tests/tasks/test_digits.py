"""Digits as sequence and as grid."""

import sys

import pytest
import torch

from efficient_attn.tasks import Digits, DigitsGrid, ModelConfig
from efficient_attn.tasks import digits as module

pytest.importorskip("sklearn")
SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)


def test_parts_are_disjoint_and_together_everything() -> None:
    parts = [module._split(name)[0] for name in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [1197, 300, 300]
    everything = torch.cat(parts).sum((0, 1, 2))
    assert everything == module._load()[0].sum()


@pytest.mark.parametrize(
    ("task", "shape"), [(Digits(), (8, 64)), (DigitsGrid(), (8, 1, 8, 8))], ids=lambda x: str(x)
)
def test_batches_and_model_fit_together(task, shape) -> None:
    inputs, labels = next(task.batches(0, 8))
    assert inputs.shape == shape
    assert labels.shape == (8,)
    model = task.build_model("full", {}, SMALL)
    assert task.loss(model, (inputs, labels)).isfinite()
    assert 0 <= task.evaluate(model, "validation") <= 1
    assert model.training


def test_an_epoch_shows_every_image_once() -> None:
    batches = Digits().batches(3, 399)
    seen = torch.cat([next(batches)[0] for _ in range(3)])
    expected = module._split("train")[0].flatten(1)
    assert torch.equal(seen.unique(dim=0), expected.unique(dim=0))


def test_same_seed_same_batches() -> None:
    first, again, other = (next(Digits().batches(seed, 16))[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_every_pixel_of_a_scaled_image_is_the_one_it_covers(scale: int) -> None:
    side = 8 * scale
    images = module._split("test")[0][:5]
    tokens = Digits(scale).inputs(images)
    levels = DigitsGrid(scale).inputs(images)
    assert Digits(scale).length == side * side == tokens.shape[1]
    assert DigitsGrid(scale).grid == (side, side)
    for image, row, picture in zip(images, tokens, levels, strict=True):
        for y in range(side):
            for x in range(side):
                ink = image[y // scale, x // scale].item()
                assert row[y * side + x].item() == ink
                assert picture[0, y, x].item() == pytest.approx(ink / 16)


def test_scale_1_is_what_records_without_a_scale_hold() -> None:
    images, _ = module._split("test")
    assert torch.equal(Digits().inputs(images), images.flatten(1))
    assert torch.equal(DigitsGrid().inputs(images), images.unsqueeze(1).float() / 16)


@pytest.mark.parametrize("task", [Digits, DigitsGrid])
def test_models_of_larger_images_train(task) -> None:
    larger = task(scale=2)
    model = larger.build_model("local_window", {"window": 4}, SMALL)
    larger.loss(model, next(larger.batches(0, 4))).backward()
    assert 0 <= larger.evaluate(model, "test") <= 1


@pytest.mark.parametrize("scale", [0, 1.5, True])
def test_wrong_scale(scale) -> None:
    with pytest.raises(ValueError, match=r"digits_grid\.scale="):
        DigitsGrid(scale=scale)


def test_windows_work_on_the_grid() -> None:
    task = DigitsGrid()
    assert task.grid == (8, 8)
    model = task.build_model("shifted_window", {"window": 4}, SMALL)
    assert tuple(model.trunk.encoder.layers[0].self_attn.core.options.grid) == (8, 8)
    assert task.loss(model, next(task.batches(0, 4))).isfinite()


def test_baselines() -> None:
    baselines = Digits().baselines()
    assert baselines["chance"] == 0.1
    assert 0.05 < baselines["majority_class"] < 0.15


def test_missing_sklearn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'efficient-attn\[data\]'"):
        module._load()


def test_unknown_split() -> None:
    with pytest.raises(ValueError, match="validation, test"):
        Digits().evaluate(Digits().build_model("full", {}, SMALL), "train")  # type: ignore[arg-type]
