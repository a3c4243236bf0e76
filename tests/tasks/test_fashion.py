"""Fashion-MNIST from files as Debian's package has them; small ones are written here."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from efficient_attn.nn import ImageClassifier, SwinTransformer
from efficient_attn.tasks import Fashion, FashionPixels, ModelConfig, make_task
from efficient_attn.tasks import fashion as module

SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)


def write_idx(path: Path, numbers: np.ndarray, kind: int = 8) -> None:
    head = bytes([0, 0, kind, numbers.ndim]) + np.array(numbers.shape, ">u4").tobytes()
    with gzip.open(path, "wb") as file:
        file.write(head + numbers.tobytes())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """30 images to train, of which 10 are held out, and 12 to test."""
    monkeypatch.setattr(module, "HELD_OUT", 10)
    draw = np.random.default_rng(0)
    for part, count in (("train", 30), ("test", 12)):
        images, labels = module.FILES[part]
        write_idx(tmp_path / images, draw.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        write_idx(tmp_path / labels, np.arange(count, dtype=np.uint8) % 10)
    return str(tmp_path)


def test_idx_as_written(tmp_path: Path) -> None:
    numbers = np.arange(2 * 3 * 300, dtype=np.uint16).astype(np.uint8).reshape(2, 3, 300)
    write_idx(tmp_path / "x.gz", numbers)
    assert np.array_equal(module.read_idx(tmp_path / "x.gz"), numbers)


def test_what_is_not_idx(tmp_path: Path) -> None:
    write_idx(tmp_path / "floats.gz", np.zeros(3, np.float32), kind=13)
    with pytest.raises(ValueError, match="not an idx file of bytes"):
        module.read_idx(tmp_path / "floats.gz")
    with gzip.open(tmp_path / "short.gz", "wb") as file:
        file.write(bytes([0, 0, 8, 1, 0, 0, 0, 5, 1, 2]))
    with pytest.raises(ValueError, match=r"holds 2 bytes, and says \(5,\)"):
        module.read_idx(tmp_path / "short.gz")


@pytest.mark.parametrize("content", [b"", b"\0", b"\0\0\x08", b"\0\0\x08\x01\0\0"])
def test_idx_that_ends_in_its_head(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "head.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=r"head\.gz (is not an idx file|ends after|holds)"):
        module.read_idx(path)


@pytest.mark.parametrize("kept", [1, 5, 12, -9, -1])
def test_gzip_that_was_cut(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.gz"
    write_idx(path, np.arange(200, dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"cut\.gz is damaged"):
        module.read_idx(path)


def test_splits(folder: str) -> None:
    task = Fashion(folder=folder)
    counts = {part: len(task.samples(part)[1]) for part in ("train", "validation", "test")}
    assert counts == {"train": 20, "validation": 10, "test": 12}
    everything = module.read_idx(Path(folder) / module.FILES["train"][0])
    joined = torch.cat([task.samples("train")[0], task.samples("validation")[0]])
    assert np.array_equal(joined.numpy(), everything)


@pytest.mark.parametrize(
    ("architecture", "variant", "kind"),
    [
        ("vit", "full", ImageClassifier),
        ("vit", "local_window", ImageClassifier),
        ("swin", "shifted_window", SwinTransformer),
        ("swin", "linformer", SwinTransformer),
    ],
)
def test_models_train(folder: str, architecture: str, variant: str, kind: type) -> None:
    task = Fashion(architecture=architecture, patch_size=4, folder=folder)
    options = {"grid": None, "shift": None, "window": 7} if variant == "shifted_window" else {}
    model = task.build_model(variant, options, SMALL)
    assert isinstance(model, kind)
    inputs, labels = next(task.batches(0, 6))
    assert inputs.shape == (6, 1, 28, 28)
    assert -1 <= inputs.min() < inputs.max() <= 1
    loss = task.loss(model, (inputs, labels))
    loss.backward()
    assert loss.isfinite()
    assert 0 <= task.evaluate(model, "test") <= 1


@pytest.mark.parametrize("shrink", [1, 2, 7])
def test_pixels_are_tokens_row_by_row(folder: str, shrink: int) -> None:
    task = FashionPixels(shrink=shrink, folder=folder)
    images, labels = task.samples("test")
    tokens, side = task.inputs(images[:3]), 28 // shrink
    assert tokens.shape == (3, task.length) == (3, side * side)
    assert torch.equal(labels, Fashion(folder=folder).samples("test")[1])
    for image, row in zip(images, tokens.tolist(), strict=False):
        means = [
            image[y : y + shrink, x : x + shrink].double().mean().item()
            for y in range(0, 28, shrink)
            for x in range(0, 28, shrink)
        ]
        assert row == [round(mean) for mean in means]


def test_model_of_pixels_trains(folder: str) -> None:
    task = FashionPixels(shrink=4, folder=folder)
    assert task.grid is None
    model = task.build_model("performer", {"num_features": 8}, SMALL)
    task.loss(model, next(task.batches(0, 4))).backward()
    assert 0 <= task.evaluate(model, "validation") <= 1
    assert task.provenance() == Fashion(folder=folder).provenance()


@pytest.mark.parametrize("shrink", [0, 3, 56])
def test_wrong_shrink(shrink: int) -> None:
    with pytest.raises(ValueError, match=f"fashion_pixels.shrink={shrink}"):
        FashionPixels(shrink=shrink)


def test_evaluation_in_parts_is_that_of_all(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from efficient_attn.tasks import labelled

    task = Fashion(folder=folder)
    model = task.build_model("full", {}, SMALL)
    whole = task.evaluate(model, "test")
    monkeypatch.setattr(labelled, "EVALUATION_TOKENS", 5 * task.length)
    assert task.evaluate(model, "test") == whole


def test_swin_has_the_sizes_that_are_asked_for(folder: str) -> None:
    config = ModelConfig(d_model=16, nhead=4, num_layers=2, dim_feedforward=32)
    model = Fashion(architecture="swin", patch_size=2, folder=folder).build_model(
        "shifted_window", {}, config
    )
    first, last = model.stages[0][1], model.stages[1][1]
    assert [block.linear1.out_features for block in (first, last)] == [16, 32]
    assert [block.self_attn.num_heads for block in (first, last)] == [2, 4]
    assert model.grid == (14, 14)


def test_missing_files_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="apt-get install dataset-fashion-mnist"):
        Fashion(folder=str(tmp_path)).baselines()


def test_baselines_and_provenance(folder: str) -> None:
    task = Fashion(folder=folder)
    assert task.baselines() == {"chance": 0.1, "majority_class": 2 / 12}
    assert make_task(**task.to_dict()).provenance() == task.provenance()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch_size": 3}, "patch_size=3 must divide 28"),
        ({"patch_size": 0}, "patch_size=0"),
        ({"architecture": "resnet"}, "'resnet' is not one of vit, swin"),
    ],
    ids=str,
)
def test_wrong_settings(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fashion(**settings)


@pytest.mark.parametrize("model", [{"d_model": 9, "nhead": 1}, {"short_conv": 3}], ids=str)
def test_what_swin_does_not_take(model: dict) -> None:
    with pytest.raises(ValueError, match="architecture swin"):
        Fashion(architecture="swin").build_model("full", {}, ModelConfig(**model))
