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
