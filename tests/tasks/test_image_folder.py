"""Images from files: every layout on small files, and odd files named or read right."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from efficient_attn.nn import ImageClassifier, SequenceClassifier
from efficient_attn.tasks import ImageFolder, ModelConfig, make_task
from efficient_attn.tasks.image_files import decode, levels_of

SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)
DRAW = np.random.default_rng(0)


def noise(side: int = 8, colours: int = 3) -> Image.Image:
    pixels = DRAW.integers(0, 256, (side, side, colours), dtype=np.uint8)
    return Image.fromarray(pixels.squeeze())


def save(path: Path, image: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def fill(root: Path, count: int = 60) -> None:
    """Classes cat and dog; image n is grey n everywhere."""
    for number in range(count):
        kind = "cat" if number % 2 else "dog"
        save(root / kind / f"{number}.png", Image.new("L", (8, 8), number))


def levels(task: ImageFolder, split: str) -> dict[int, int]:
    """Label of each image, by its grey."""
    images, labels = task.samples(split)
    greys = [image.unique().tolist() for image in images]
    assert all(len(grey) == 1 for grey in greys)
    found = {grey[0]: label for grey, label in zip(greys, labels.tolist(), strict=True)}
    assert len(found) == len(labels)
    return found


def test_whole_folder_is_divided_by_contents(tmp_path: Path) -> None:
    fill(tmp_path / "a")
    task = ImageFolder(folder=str(tmp_path / "a"), side=8)
    parts = {split: levels(task, split) for split in ("train", "validation", "test")}
    assert {**parts["train"], **parts["validation"], **parts["test"]} == {
        number: 1 - number % 2 for number in range(60)
    }
    assert sum(map(len, parts.values())) == 60
    assert task.classes == 2
    assert task.provenance()["classes"] == ["cat", "dog"]
    # Other names, the same contents: the same parts.
    for path in list((tmp_path / "a").rglob("*.png")):
        number = int(path.stem)
        new = tmp_path / "b" / path.parent.name / "deeper" / f"x{99 - number}.PNG"
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(path.read_bytes())
    other = ImageFolder(folder=str(tmp_path / "b"), side=8)
    assert {split: levels(other, split) for split in parts} == parts


def test_an_image_twice_is_in_one_part(tmp_path: Path) -> None:
    for number in range(120):
        save(tmp_path / "ab"[number % 2] / f"{number}.png", Image.new("L", (4, 4), number // 2))
    task = ImageFolder(folder=str(tmp_path), side=4)
    greys = [
        set(task.samples(part)[0].unique().tolist()) for part in ("train", "validation", "test")
    ]
    assert sum(map(len, greys)) == 60
    assert set.union(*greys) == set(range(60))


def test_divided_folder_keeps_its_parts(tmp_path: Path) -> None:
    for part, start in (("train", 0), ("val", 100), ("test", 200)):
        for number in range(start, start + 6):
            save(
                tmp_path / part / "ab"[number % 2] / f"{number}.bmp", Image.new("L", (9, 9), number)
            )
    task = ImageFolder(folder=str(tmp_path), side=3, patch_size=1)
    assert levels(task, "train") == {number: number % 2 for number in range(6)}
    assert levels(task, "validation") == {number: number % 2 for number in range(100, 106)}
    assert levels(task, "test") == {number: number % 2 for number in range(200, 206)}


@pytest.mark.parametrize("held", ["valid", "test"])
def test_the_only_held_part_is_the_test(tmp_path: Path, held: str) -> None:
    for number in range(60):
        save(
            tmp_path / "train" / "ab"[number % 2] / f"{number}.png", Image.new("L", (4, 4), number)
        )
    for number in range(100, 104):
        save(tmp_path / held / "ab"[number % 2] / f"{number}.png", Image.new("L", (4, 4), number))
    task = ImageFolder(folder=str(tmp_path), side=4)
    assert set(levels(task, "test")) == set(range(100, 104))
    known, picked = set(levels(task, "train")), set(levels(task, "validation"))
    assert known | picked == set(range(60))
    assert not known & picked
    assert picked


def grey(image: Image.Image) -> np.ndarray:
    red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")).astype(float), -1, 0)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def opened(image: Image.Image, kind: str = "png", **options) -> Image.Image:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return decode(content.getvalue(), "file")


def test_grey_is_itu_601_and_colour_is_as_saved() -> None:
    image = noise()
    assert np.abs(levels_of(opened(image), 8, False) - grey(image)).max() <= 1
    expected = np.moveaxis(np.asarray(image), -1, 0)
    assert np.array_equal(levels_of(opened(image), 8, True), expected)


def test_smaller_pixels_are_means() -> None:
    """Of smooth images: Pillow weights by a triangle as wide as two pixels of the result."""
    y, x = np.mgrid[:32, :32]
    image = Image.fromarray((4 * x + 2 * y).astype(np.uint8))
    means = np.asarray(image).astype(float).reshape(8, 4, 8, 4).mean((1, 3))
    got = levels_of(image, 8, False)
    assert np.abs(got - means)[1:-1, 1:-1].max() <= 1


@pytest.mark.parametrize("size", [(16, 8), (8, 16)])
def test_what_is_not_square_loses_its_edges(size: tuple[int, int]) -> None:
    pixels = np.zeros((size[1], size[0]), np.uint8)
    middle = (slice(None), slice(4, 12)) if size[0] > 8 else (slice(4, 12), slice(None))
    pixels[middle] = np.arange(64).reshape(8, 8)
    got = levels_of(Image.fromarray(pixels), 8, False)
    assert np.array_equal(got, np.arange(64).reshape(8, 8))


def test_odd_kinds_are_read_right() -> None:
    plain = noise(colours=1)
    pixels = np.asarray(plain)
    opaque = np.full_like(pixels, 255)
    wide = Image.fromarray(pixels.astype(np.uint16) * 257)
    variants = {
        "alpha": opened(Image.merge("LA", [plain, Image.fromarray(opaque)])),
        "16 bits": opened(wide),
        "palette": opened(plain.convert("P")),
        "tiff": opened(plain, "tiff"),
        "turned": opened(plain.rotate(90), "png", exif=orientation(6)),
    }
    for name, image in variants.items():
        assert np.array_equal(levels_of(image, 8, False), pixels), name
    bits = opened(Image.fromarray(pixels > 127))
    assert np.array_equal(levels_of(bits, 8, False), np.where(pixels > 127, 255, 0))


def orientation(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def transparent() -> bytes:
    content = io.BytesIO()
    alpha = np.full((8, 8), 255, np.uint8)
    alpha[3, 3] = 128
    Image.merge("LA", [noise(colours=1), Image.fromarray(alpha)]).save(content, "png")
    return content.getvalue()


def frames() -> bytes:
    content = io.BytesIO()
    noise().save(content, "tiff", save_all=True, append_images=[noise()])
    return content.getvalue()


def floats() -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.float32)).save(content, "tiff")
    return content.getvalue()


def cut() -> bytes:
    content = io.BytesIO()
    noise(64).save(content, "png")
    return content.getvalue()[:-2000]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"cat/odd\.png is damaged or no image"),
        (b"<html>", r"cat/odd\.png is damaged or no image"),
        (cut(), r"cat/odd\.png is damaged"),
        (transparent(), r"cat/odd\.png is transparent"),
        (frames(), r"cat/odd\.png has 2 frames"),
        (floats(), r"cat/odd\.png has pixels of 32 bits \(mode F\)"),
    ],
    ids=["empty", "html", "cut", "transparent", "frames", "floats"],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    fill(tmp_path, 4)
    (tmp_path / "cat/odd.png").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        ImageFolder(folder=str(tmp_path)).samples("train")


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "cat/README.txt").write_text("cats")
    (tmp_path / "cat/._1.png").write_bytes(b"")
    (tmp_path / ".cache").mkdir()
    assert sum(ImageFolder(folder=str(tmp_path), side=8).provenance()["images"].values()) == 60


def test_layouts_that_say_nothing(tmp_path: Path) -> None:
    def read() -> None:
        ImageFolder(folder=str(tmp_path / "x")).samples("train")

    with pytest.raises(FileNotFoundError, match="is no folder; give one of images by class"):
        read()
    (tmp_path / "x").mkdir()
    with pytest.raises(ValueError, match=r"holds the folders \[\]"):
        read()
    (tmp_path / "x/bird").mkdir()
    with pytest.raises(ValueError, match=r"bird holds no images \(\.bmp, "):
        read()
    (tmp_path / "x/train").mkdir()
    with pytest.raises(ValueError, match=r"\['bird', 'train'\]; give either"):
        read()
    (tmp_path / "x/bird").rmdir()
    (tmp_path / "x/test").mkdir()
    fill(tmp_path / "x/train", 30)
    save(tmp_path / "x/test/emu/1.png", noise())
    with pytest.raises(ValueError, match="no image of class 'emu' in train, but in test"):
        read()


def test_a_part_without_images_is_said(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    with pytest.raises(ValueError, match="holds 2 images, which leaves none for"):
        ImageFolder(folder=str(tmp_path)).samples("train")


def write_cifar(folder: Path, records: int = 15) -> np.ndarray:
    """Two files of training and one of test, [3, records, 3, 32, 32]; labels count up."""
    pixels = DRAW.integers(0, 256, (3, records, 3, 32, 32), dtype=np.uint8)
    for part, name in zip(pixels, ("data_batch_1", "data_batch_2", "test_batch"), strict=True):
        labels = np.arange(records, dtype=np.uint8)[:, None] % 10
        rows = np.concatenate([labels, part.reshape(records, -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return pixels


def test_cifar_10(tmp_path: Path) -> None:
    pixels = write_cifar(tmp_path)
    task = ImageFolder(folder=str(tmp_path), colour=True)
    images, labels = task.samples("test")
    assert np.array_equal(images.numpy(), pixels[2])
    assert labels.tolist() == [n % 10 for n in range(15)]
    known, picked = task.samples("train")[0].numpy(), task.samples("validation")[0].numpy()
    everything = np.concatenate([known, picked])
    assert len(picked)
    assert sorted(map(bytes, everything)) == sorted(map(bytes, pixels[:2].reshape(-1, 3, 32, 32)))
    sequence = ImageFolder(folder=str(tmp_path), patch_size=1, grid_told=False)
    tokens = sequence.inputs(sequence.samples("test")[0])
    assert tokens.shape == (15, 1024)
    for row, colours in zip(tokens.numpy(), pixels[2], strict=True):
        expected = grey(Image.fromarray(np.moveaxis(colours, 0, -1))).reshape(-1)
        assert np.abs(row - expected).max() <= 1


def test_cifar_that_is_not(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    path = tmp_path / "data_batch_2.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(
        ValueError, match=r"data_batch_2\.bin has \d+ bytes, not a multiple of 3073"
    ):
        ImageFolder(folder=str(tmp_path)).samples("train")
    path.write_bytes(content[:3073] + b"\x0a" + content[3074:])
    with pytest.raises(ValueError, match=r"data_batch_2\.bin: label 10 at byte 3073"):
        ImageFolder(folder=str(tmp_path)).samples("train")


@pytest.mark.parametrize("name", ["data_batch_1", "train.pkl"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ValueError, match=r"pickles, which can run any code .* binary version"):
        ImageFolder(folder=str(tmp_path)).samples("train")


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets")


def table(datasets, count: int, start: int = 0, names: bool = True):
    images = [Image.new("L", (4, 4), number) for number in range(start, start + count)]
    labels = [number % 2 for number in range(start, start + count)]
    kind = datasets.ClassLabel(names=["no", "yes"]) if names else datasets.Value("int64")
    features = datasets.Features({"picture": datasets.Image(), "kind": kind})
    return datasets.Dataset.from_dict({"picture": images, "kind": labels}, features=features)


COLUMNS = {"image_column": "picture", "label_column": "kind"}


@pytest.mark.parametrize("names", [True, False])
def test_data_set_with_splits(tmp_path: Path, datasets, names: bool) -> None:
    parts = {"train": table(datasets, 40, 0, names), "test": table(datasets, 6, 100, names)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path)
    task = ImageFolder(folder=str(tmp_path), side=4, **COLUMNS)
    assert levels(task, "test") == {number: number % 2 for number in range(100, 106)}
    known = {**levels(task, "train"), **levels(task, "validation")}
    assert known == {number: number % 2 for number in range(40)}
    assert task.provenance()["classes"] == (["no", "yes"] if names else ["0", "1"])


def test_data_set_without_splits(tmp_path: Path, datasets) -> None:
    table(datasets, 60).save_to_disk(tmp_path)
    task = ImageFolder(folder=str(tmp_path), side=4, **COLUMNS)
    parts = [levels(task, split) for split in ("train", "validation", "test")]
    assert parts[0] | parts[1] | parts[2] == {number: number % 2 for number in range(60)}


def test_data_set_that_does_not_fit(tmp_path: Path, datasets) -> None:
    def read(**columns: str) -> None:
        ImageFolder(folder=str(tmp_path / "x"), **{**COLUMNS, **columns}).samples("train")

    table(datasets, 6).save_to_disk(tmp_path / "x")
    with pytest.raises(ValueError, match=r"task\.image_column='image' is no column .* picture"):
        read(image_column="image")
    with pytest.raises(ValueError, match=r"task\.image_column='kind' .* not images"):
        read(image_column="kind")
    for column, value, message in (
        ("kind", -1, r"\[1\] has no label \(kind is -1\)"),
        ("picture", None, r"\[1\] has no image \(picture is None\)"),
    ):
        rows = table(datasets, 2).to_dict()
        rows[column][1] = value
        spoilt = datasets.Dataset.from_dict(rows, features=table(datasets, 2).features)
        spoilt.save_to_disk(tmp_path / column)
        with pytest.raises(ValueError, match=message):
            ImageFolder(folder=str(tmp_path / column), **COLUMNS).samples("train")
    datasets.DatasetDict({"extra": table(datasets, 2)}).save_to_disk(tmp_path / "z")
    with pytest.raises(ValueError, match="split 'extra'; allowed: train"):
        ImageFolder(folder=str(tmp_path / "z"), **COLUMNS).samples("train")


def test_missing_datasets_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'efficient-attn\[data\]'"):
        ImageFolder(folder=str(tmp_path)).samples("train")


@pytest.mark.parametrize(
    ("settings", "kind", "shape", "length"),
    [
        ({"patch_size": 2}, ImageClassifier, (5, 1, 8, 8), 16),
        ({"patch_size": 4, "colour": True}, ImageClassifier, (5, 3, 8, 8), 4),
        ({"patch_size": 1, "grid_told": False}, SequenceClassifier, (5, 64), 64),
    ],
    ids=str,
)
def test_models_train(tmp_path: Path, settings: dict, kind: type, shape, length: int) -> None:
    fill(tmp_path)
    task = ImageFolder(folder=str(tmp_path), side=8, **settings)
    model = task.build_model("full", {}, SMALL)
    assert isinstance(model, kind)
    assert task.length == length
    inputs, labels = next(task.batches(0, 5))
    assert inputs.shape == shape
    task.loss(model, (inputs, labels)).backward()
    assert 0 <= task.evaluate(model, "test") <= 1
    assert task.baselines()["chance"] == 0.5
    assert make_task(**task.to_dict()).provenance() == task.provenance()
    assert torch.equal(next(task.batches(0, 5))[0], inputs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"side": 0}, r"image_folder\.side=0"),
        ({"side": 30}, r"image_folder\.patch_size=4 must divide side=30"),
        ({"grid_told": False}, r"grid_told=False .* patch_size=1"),
        ({"grid_told": False, "patch_size": 1, "colour": True}, r"grid_told=False .* no colour"),
    ],
    ids=str,
)
def test_wrong_settings(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageFolder(**settings)
