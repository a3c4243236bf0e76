"""Matching of two documents."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from efficient_attn.tasks import Matching, ModelConfig, make_task
from efficient_attn.tasks.files import PARTS, packages
from efficient_attn.tasks.matching import _round, best_threshold, likeness
from efficient_attn.tasks.texts import PAD

SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)


def files(counts: list[int]) -> list[np.ndarray]:
    """Files of so many windows; a window says which file and which window it is."""
    return [
        np.array([[file, window] for window in range(count)], np.uint8)
        for file, count in enumerate(counts)
    ]


@pytest.mark.parametrize(
    "counts", [[2, 2], [40, 2], [40, 40], [7, 3, 2], [40, 4, 4, 2], [9] * 7, [90, 35, 31, 3, 2]]
)
def test_a_round_of_pairs(counts: list[int]) -> None:
    pairs = _round(files(counts), np.random.default_rng(0))
    matching, others = pairs[::2], pairs[1::2]
    assert (matching[:, 0, 0] == matching[:, 1, 0]).all()
    assert (matching[:, 0, 1] != matching[:, 1, 1]).all()
    assert (others[:, 0, 0] != others[:, 1, 0]).all()
    assert np.array_equal(matching[:, 0], others[:, 0])
    for side in (0, 1):
        ours, theirs = (Counter(map(tuple, rows[:, side])) for rows in (matching, others))
        assert ours == theirs
        assert max(ours.values()) == 1
    per_file = Counter(matching[:, 0, 0].tolist())
    largest = max(count // 2 for count in counts)
    assert max(per_file.values()) <= min(16, largest)
    assert len(per_file) == len(counts)


@pytest.mark.parametrize("part", PARTS)
def test_pairs_of_the_standard_library(part: str) -> None:
    task = Matching(length=160, train=120, evaluation=120)
    pairs, labels = task.samples(part)
    assert pairs.shape == (120, 2, 160)
    assert labels.sum() == 60
    elsewhere = [
        content
        for package in packages().values()
        for other in PARTS
        if other != part
        for _, content in package[other]
    ]
    leaks = 0
    for pair, label in zip(pairs, labels, strict=True):
        first, second = (bytes(side.tolist()) for side in pair)
        homes = [
            (
                {name for name, content in package[part] if first in content},
                {name for name, content in package[part] if second in content},
            )
            for package in packages().values()
        ]
        in_one_package = [(left, right) for left, right in homes if left and right]
        assert in_one_package
        if label:
            assert any(left & right for left, right in in_one_package)
        else:
            assert any(left != right or len(left) > 1 for left, right in in_one_package)
        leaks += any(first in content for content in elsewhere)
    assert leaks <= 6, "windows that other parts hold: few are left, of passages that come again"


def own(folder: Path, lines: list[str], **fields: int) -> Matching:
    table = folder / "own.tsv"
    table.write_text("".join(f"{line}\n" for line in lines))
    return Matching(source=str(table), **fields)


def test_own_pairs_are_cut_and_padded(tmp_path: Path) -> None:
    lines = [f"{n % 2}.0\tid\tid\tleft {n}\tright {n} and more" for n in range(90)]
    task = own(tmp_path, lines, length=9)
    seen = {}
    for part in PARTS:
        for pair, label in zip(*task.samples(part), strict=True):
            texts = tuple(bytes(side[side != PAD].tolist()) for side in pair)
            assert texts not in seen
            seen[texts] = int(label)
    assert seen == {
        (f"left {n}".encode(), f"right {n} and more".encode()[:9]): n % 2 for n in range(90)
    }
    fewer = own(tmp_path, lines, length=8, train=20, evaluation=2)
    assert [len(fewer.samples(part)[1]) for part in PARTS] == [20, 2, 2]


def test_threshold_by_trying_all() -> None:
    draw = np.random.default_rng(1)
    for _ in range(50):
        scores = draw.integers(0, 6, 12) / 5
        labels = draw.integers(0, 2, 12)
        tried = [((scores >= t) == labels).mean() for t in [*scores, np.inf]]
        assert ((scores >= best_threshold(scores, labels)) == labels).mean() == max(tried)


def test_likeness_is_the_cosine_of_histograms() -> None:
    pairs = np.array([[[97, 97, 98], [97, 98, PAD]], [[97, 97, PAD], [98, 99, 99]]], np.int16)
    assert likeness(pairs) == pytest.approx([3 / (5 * 2) ** 0.5, 0.0])


def test_baselines(tmp_path: Path) -> None:
    lines = [
        f"{n % 2}\t{'ab'[n // 2 % 2] * 9}{n}\t{'ab'[(n // 2 + n + 1) % 2] * 9}" for n in range(300)
    ]
    found = own(tmp_path, lines, length=9).baselines()
    assert found["chance"] == 0.5
    assert found["byte_histograms"] == 1.0
    assert 0.2 < found["majority_class"] < 0.8


def test_padding_moves_no_score_and_the_two_are_encoded_apart(tmp_path: Path) -> None:
    task = own(tmp_path, [f"{n % 2}\t{'a' * (1 + n % 7)}{n}\tbc{n}" for n in range(60)], length=12)
    torch.manual_seed(0)
    model = task.build_model("full", {}, SMALL).eval()
    pairs = task.inputs(task.samples("train")[0])
    for (first, second), logits in zip(pairs, task.logits(model, pairs), strict=True):
        alone = model(first[first != PAD][None], second[second != PAD][None])[0]
        assert torch.allclose(alone, logits, atol=1e-5)


def test_the_same_pairs_every_time_in_the_order_of_the_seed() -> None:
    epochs = [
        next(Matching(length=32, train=200, evaluation=10).batches(seed, 200))[0]
        for seed in (0, 0, 1)
    ]
    assert torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], epochs[2])
    assert Matching().provenance() == Matching().provenance()


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    lines = [f"{n % 2}\tleft {n}\tright {n}" for n in range(60)]
    lines[7] = "2\tleft 7\tright 7"
    lines[8] = "2\tleft 8\tright 8"
    with pytest.raises(ValueError, match=r"own\.tsv:[89]: label '2' is none of 0, 0\.0, false, 1"):
        own(tmp_path, lines).samples("train")
    (tmp_path / "same").mkdir()
    with pytest.raises(ValueError, match="one label alone in train"):
        own(tmp_path / "same", [f"1\ta {n}\tb" for n in range(60)]).samples("train")
    with pytest.raises(ValueError, match=r"matching\.length=9999999: .* lower it"):
        Matching(length=9_999_999).samples("train")
    with pytest.raises(ValueError, match=r"matching\.train=1 .*at least 2"):
        make_task("matching", train=1)
