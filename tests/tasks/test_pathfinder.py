"""Pathfinder: what is drawn is what the labels say, and nothing simpler tells them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from efficient_attn.nn import ImageClassifier, SequenceClassifier
from efficient_attn.tasks import ModelConfig, Pathfinder, make_task
from efficient_attn.tasks import pathfinder as module
from efficient_attn.tasks.pathfinder_pool import Pool, linear_accuracy
from efficient_attn.tasks.task import generator

SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)
FEW = {"train": 200, "evaluation": 60}


def clusters(image: np.ndarray, reach: int) -> list[set[tuple[int, int]]]:
    """Lit pixels, flooded: together is what is at most `reach` rows and columns apart."""
    left = {(int(y), int(x)) for y, x in np.argwhere(image > 0)}
    found = []
    while left:
        edge = [left.pop()]
        cluster = set(edge)
        while edge:
            y, x = edge.pop()
            near = {p for p in left if abs(p[0] - y) <= reach and abs(p[1] - x) <= reach}
            left -= near
            cluster |= near
            edge += near
        found.append(cluster)
    return found


@settings(max_examples=25, deadline=None)
@given(
    side=st.integers(14, 20),
    dashes=st.integers(2, 4),
    dash=st.integers(1, 3),
    gap=st.integers(0, 2),
    distractors=st.integers(0, 2),
    turning=st.sampled_from([0.0, 0.3, 1.0]),
    marker=st.integers(0, 1),
    seed=st.integers(0, 1000),
)
def test_whoever_follows_the_dashes_is_right(seed: int, **sizes) -> None:
    task = Pathfinder(**sizes)
    pool = task.draw(generator(seed), 60)
    reach = task.gap + 1
    for image, label, marks in zip(pool.images, pool.labels, pool.marks, strict=True):
        found = clusters(image, reach)
        assert len(found) == 2 + task.distractors
        one, other = ({n for n, c in enumerate(found) if tuple(m) in c} for m in marks.tolist())
        assert len(one) == len(other) == 1
        assert (one == other) == (label == 1)
        assert all(image[y, x] == module.MARK for y, x in marks)
        if task.marker == 0:
            lengths = sorted(len(cluster) for cluster in found)
            assert lengths == sorted(
                [task.dashes * task.dash] * 2
                + [task.distractor_dashes * task.dash] * task.distractors
            )
            assert (image == module.MARK).sum() == 2


def test_marks_stand_at_ends() -> None:
    """On straight paths all of the path lies to one side of an end."""
    task = Pathfinder(dash=3, dashes=3, side=20, turning=0.0)
    pool = task.draw(generator(1), 50)
    for image, marks in zip(pool.images, pool.marks, strict=True):
        for mark in marks.tolist():
            path = next(cluster for cluster in clusters(image, 2) if tuple(mark) in cluster)
            reach = max(max(abs(y - mark[0]), abs(x - mark[1])) for y, x in path)
            assert reach == 3 * 3 + 2 * 1 - 1


def test_no_path_meets_itself() -> None:
    """Those that turn at every step would, of so many pixels."""
    task = Pathfinder(side=24, dashes=5, dash=3, turning=1.0, distractors=0)
    images = task.draw(generator(0), 200).images
    assert len(images) > 50
    assert set((images > 0).sum((1, 2)).tolist()) == {2 * 5 * 3}


@pytest.mark.parametrize("marker", [0, 1, 2])
def test_marks_are_discs(marker: int) -> None:
    task = Pathfinder(marker=marker, side=32)
    pool = task.draw(generator(0), 20)
    y, x = np.mgrid[:32, :32]
    for image, marks in zip(pool.images, pool.marks, strict=True):
        near = [(y - row) ** 2 + (x - column) ** 2 <= (marker + 0.5) ** 2 for row, column in marks]
        assert np.array_equal(image == module.MARK, near[0] | near[1])


def canonical(marks: np.ndarray, side: int) -> tuple:
    """The least of all ways to turn and mirror two places; by matrices of the symmetries."""
    middle = (side - 1) / 2
    forms = []
    for matrix in (np.eye(2), [[0, 1], [-1, 0]], [[-1, 0], [0, -1]], [[0, -1], [1, 0]]):
        for mirror in (np.eye(2), np.diag([1, -1])):
            turned = (marks - middle) @ np.array(matrix) @ mirror
            forms.append(tuple(sorted(map(tuple, turned.tolist()))))
    return min(forms)


def test_labels_and_marks_are_balanced_in_every_split() -> None:
    task = Pathfinder(**FEW)
    for split, count in (("train", 200), ("validation", 60), ("test", 60)):
        pool = task._pool(split)
        assert len(pool.images) == len(pool.labels) == count
        places = [
            sorted(canonical(marks, task.side) for marks in pool.marks[pool.labels == label])
            for label in (0, 1)
        ]
        assert len(places[0]) == count // 2
        assert places[0] == places[1]


def test_no_image_is_used_twice() -> None:
    task = Pathfinder(**FEW)
    images = np.concatenate([task._pool(split).images for split in ("train", "validation", "test")])
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == len(images)


def test_drawn_anew_the_images_are_the_same() -> None:
    task = Pathfinder(**FEW)
    first = task.samples("test")[0].clone()
    module._drawn.cache_clear()
    assert torch.equal(first, task.samples("test")[0])
    assert torch.equal(first, Pathfinder(**FEW, grid_told=False).samples("test")[0])


def test_trivial_predictors_are_at_chance() -> None:
    baselines = Pathfinder(train=2000, evaluation=2000).baselines()
    assert baselines["chance"] == baselines["majority_class"] == 0.5
    # 2000 coin tosses: a standard deviation is 0.011
    assert baselines["linear_in_lit_pixels_and_distance"] == pytest.approx(0.5, abs=0.045)
    assert baselines["linear_in_pixels"] == pytest.approx(0.5, abs=0.045)


def test_linear_baseline_finds_what_is_linear() -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 3, (600, 4, 4), dtype=np.uint8)
    labels = (images[:, 0, 0].astype(int) + images[:, 2, 1] > 2).astype(np.int64)
    pool = Pool(images, labels)
    assert linear_accuracy(pool[:400], pool[400:], Pool.pixels) > 0.9


@pytest.mark.parametrize(
    ("grid_told", "kind", "shape"),
    [(True, ImageClassifier, (4, 1, 16, 16)), (False, SequenceClassifier, (4, 256))],
)
def test_models_train(grid_told: bool, kind: type, shape: tuple) -> None:
    task = Pathfinder(**FEW, grid_told=grid_told)
    model = task.build_model("full", {}, SMALL)
    assert isinstance(model, kind)
    inputs, labels = next(task.batches(0, 4))
    assert inputs.shape == shape
    assert inputs.max() == (1 if grid_told else module.MARK)
    task.loss(model, (inputs, labels)).backward()
    assert 0 <= task.evaluate(model, "validation") <= 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"side": 0}, r"pathfinder\.side=0"),
        ({"gap": -1}, r"pathfinder\.gap=-1"),
        ({"turning": 1.5}, r"pathfinder\.turning=1\.5"),
        ({"patch_size": 3}, r"pathfinder\.patch_size=3 must divide side=16"),
        ({"patch_size": 2, "grid_told": False}, r"grid_told=False .* patch_size=1 \(not 2\)"),
        ({"train": 7}, r"pathfinder\.train=7 must be even"),
        ({"distractors": 2.0}, r"pathfinder\.distractors=2\.0"),
    ],
    ids=str,
)
def test_wrong_settings(sizes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pathfinder(**sizes)


@pytest.mark.parametrize("sizes", [{"side": 8, "dashes": 4}, {"side": 4}, {"distractors": 30}])
def test_too_little_room_is_said(sizes: dict) -> None:
    with pytest.raises(ValueError, match=r"hardly any room .* raise side, or lower"):
        Pathfinder(**sizes, **FEW).samples("train")


COLUMNS = "1.8 14 4 2 0.5 1 1"


def write_published(folder: Path, count: int = 20, side: int = 32, arrays: bool = False) -> None:
    """As the Long Range Arena has it: 8-bit PNG; image n is grey n + 1 and has label n % 2."""
    (folder / "metadata").mkdir(parents=True)
    for batch in range(2):
        (folder / "imgs" / str(batch)).mkdir(parents=True)
        rows = []
        for number in range(batch, count, 2):
            name = f"sample_{number}.png"
            Image.new("L", (side, side), number + 1).save(folder / "imgs" / str(batch) / name)
            rows.append(f"imgs/{batch} {name} {number} {number % 2} {COLUMNS}")
        path = folder / "metadata" / f"{batch}.npy"
        if arrays:
            with path.open("wb") as file:
                np.save(file, np.array([row.split() for row in rows]))
        else:
            path.write_text("".join(f"{row}\n" for row in rows))


@pytest.mark.parametrize("arrays", [False, True], ids=["text", "array"])
def test_published_images(tmp_path: Path, arrays: bool) -> None:
    write_published(tmp_path, arrays=arrays)
    task = Pathfinder(side=32, folder=str(tmp_path))
    seen = {}
    for split, count in (("train", 16), ("validation", 2), ("test", 2)):
        images, labels = task.samples(split)
        assert images.shape == (count, 32, 32)
        for image, label in zip(images, labels.tolist(), strict=True):
            (level,) = image.unique().tolist()
            seen[level] = label
    assert seen == {number + 1: number % 2 for number in range(20)}
    provenance = task.provenance()
    assert (provenance["images"], provenance["left_out"]) == (20, 0)
    assert make_task(**task.to_dict()).provenance() == provenance
    sequence = Pathfinder(side=32, folder=str(tmp_path), grid_told=False)
    assert sequence.levels == 256
    assert sequence.inputs(images)[0, 5].item() == images[0, 0, 5].item()
    assert set(sequence.baselines()) == {"chance", "majority_class", "linear_in_pixels"}


def test_published_images_that_are_empty_files_are_left_out(tmp_path: Path) -> None:
    write_published(tmp_path)
    (tmp_path / "imgs/0/sample_4.png").write_bytes(b"")
    task = Pathfinder(side=32, folder=str(tmp_path))
    assert task.provenance()["images"] == 19
    assert task.provenance()["left_out"] == 1


def damaged(folder: Path) -> None:
    path = folder / "imgs/1/sample_3.png"
    path.write_bytes(path.read_bytes()[:-30])


def pickled(folder: Path) -> None:
    content = io.BytesIO()
    np.save(content, np.array([["imgs/0", object()]], object), allow_pickle=True)
    (folder / "metadata/0.npy").write_bytes(content.getvalue())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (damaged, r"sample_3\.png is damaged"),
        (lambda f: (f / "imgs/1/sample_3.png").unlink(), r"sample_3\.png"),
        (lambda f: (f / "metadata/1.npy").write_text("imgs/1 a.png 0 2 1\n"), r"1\.npy:1: .*'2'"),
        (lambda f: (f / "metadata/1.npy").write_text("\nimgs/1\n"), r"1\.npy:2: expected"),
        (lambda f: (f / "metadata/1.npy").write_bytes(b"\xff\xfe"), r"1\.npy is neither"),
        (pickled, r"0\.npy is neither"),
        (lambda f: [p.unlink() for p in (f / "metadata").iterdir()], r"has no metadata"),
        (
            lambda f: Image.new("L", (64, 64)).save(f / "imgs/1/sample_3.png"),
            r"sample_3\.png has 64×64 pixels, but pathfinder\.side=32",
        ),
    ],
)
def test_spoilt_files_are_named(tmp_path: Path, spoil, message: str) -> None:
    write_published(tmp_path)
    spoil(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Pathfinder(side=32, folder=str(tmp_path)).samples("train")


def test_too_few_published_images(tmp_path: Path) -> None:
    write_published(tmp_path, count=9)
    with pytest.raises(ValueError, match="holds 9 images; at least 10"):
        Pathfinder(side=32, folder=str(tmp_path)).samples("test")
