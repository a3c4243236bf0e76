"""Classification of texts as bytes."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from efficient_attn.tasks import ByteText, ModelConfig, make_task
from efficient_attn.tasks.files import PARTS, packages
from efficient_attn.tasks.texts import PAD

SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)


def own(folder: Path, texts: list[tuple[str, str]], **fields: int) -> ByteText:
    table = folder / "own.tsv"
    table.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in texts))
    return ByteText(source=str(table), **fields)


def contents(tokens: torch.Tensor) -> set[bytes]:
    return {bytes(row[row != PAD].tolist()) for row in tokens}


def test_no_file_is_in_two_parts_and_no_head_is_left() -> None:
    for package in packages().values():
        names = [name for part in PARTS for name, _ in package[part]]
        assert len(set(names)) == len(names)
        for part in PARTS:
            for _, content in package[part]:
                assert content.startswith((b"import", b"from", b"class", b"def", b"async def"))
        sizes = {part: sum(len(content) for _, content in package[part]) for part in PARTS}
        assert max(sizes["validation"], sizes["test"]) <= 0.15 * sum(sizes.values())


@pytest.mark.parametrize("part", PARTS)
def test_windows_come_from_files_of_their_package_and_part(part: str) -> None:
    task = ByteText(length=200, max_per_class=40, evaluation=40, max_classes=3)
    tokens, labels = task.samples(part)
    assert Counter(labels.tolist()) == {0: 40, 1: 40, 2: 40}
    for row, label in zip(tokens, labels, strict=True):
        files = packages()[task.labels[label]][part]
        assert any(bytes(row.tolist()) in content for _, content in files)


def test_labels_are_the_largest_packages() -> None:
    labels = ByteText().labels
    sizes = {
        name: sum(len(content) for part in PARTS for _, content in package[part])
        for name, package in packages().items()
        if name != "."
    }
    usable = [
        name
        for name in sorted(sizes, key=lambda name: -sizes[name])
        if min(
            sum(len(content) for _, content in packages()[name][part])
            for part in ("validation", "test")
        )
        >= 16_000
    ]
    assert labels == tuple(sorted(usable[:6]))
    with pytest.raises(ValueError, match=r"byte_text\.max_classes=99: .* lower it"):
        ByteText(max_classes=99).samples("train")


def test_own_texts_are_cut_and_padded(tmp_path: Path) -> None:
    texts = [("xy"[n % 2], f"{n} " + "long " * (n % 4)) for n in range(80)]
    task = own(tmp_path, texts, length=8)
    seen = {part: contents(task.samples(part)[0]) for part in PARTS}
    assert set.union(*seen.values()) == {text.encode()[:8] for _, text in texts}
    assert task.labels == ("x", "y")
    label_of = {text.encode()[:8]: label for label, text in texts}
    for part in PARTS:
        for row, label in zip(*task.samples(part), strict=True):
            assert label_of[bytes(row[row != PAD].tolist())] == task.labels[label]


def test_limits_per_label_and_labels_left_out(tmp_path: Path) -> None:
    texts = [("rare" if n % 20 == 0 else "ab"[n % 2], f"text {n}") for n in range(400)]
    task = own(tmp_path, texts, length=8, max_classes=2, max_per_class=50, evaluation=7)
    assert task.labels == ("a", "b")
    assert {part: Counter(task.samples(part)[1].tolist()) for part in PARTS} == {
        "train": {0: 50, 1: 50},
        "validation": {0: 7, 1: 7},
        "test": {0: 7, 1: 7},
    }
    assert task.provenance()["left_out"] == 20
    assert own(tmp_path, texts, length=8).classes == 3


def test_naive_bayes_by_hand(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    texts = [
        (label, "".join(draw.choice(list("abcd"), 6, p=p)))
        for label, p in (("x", [0.4, 0.3, 0.2, 0.1]), ("y", [0.1, 0.2, 0.3, 0.4])) * 150
    ]
    task = own(tmp_path, [(label, f"{text}{n}") for n, (label, text) in enumerate(texts)], length=6)
    tokens, labels = task.samples("train")
    right = 0
    for row, label in zip(*task.samples("test"), strict=True):
        scores = []
        for kind in (0, 1):
            of_kind = tokens[labels == kind]
            total = of_kind.numel() + 256
            score = float((labels == kind).double().mean().log())
            for byte in row:
                score += float(np.log((int((of_kind == byte).sum()) + 1) / total))
            scores.append(score)
        right += int(np.argmax(scores)) == label
    found = task.baselines()
    assert found["byte_unigrams"] == right / len(task.samples("test")[1])
    assert found["byte_unigrams"] > 0.7
    assert found["chance"] == 0.5


def test_padding_moves_no_score(tmp_path: Path) -> None:
    task = own(tmp_path, [("xy"[n % 2], f"{n} " * (1 + n % 9)) for n in range(60)], length=20)
    torch.manual_seed(0)
    model = task.build_model("full", {}, SMALL).eval()
    tokens = task.inputs(task.samples("train")[0])
    for row, logits in zip(tokens, task.logits(model, tokens), strict=True):
        assert torch.allclose(model(row[row != PAD].unsqueeze(0))[0], logits, atol=1e-5)


def test_the_same_texts_every_time_in_the_order_of_the_seed() -> None:
    tasks = [ByteText(length=64, max_per_class=30, evaluation=5) for _ in range(3)]
    epochs = [next(task.batches(seed, 180))[0] for task, seed in zip(tasks, (0, 0, 1), strict=True)]
    assert torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], epochs[2])
    assert torch.equal(epochs[0].unique(dim=0), epochs[2].unique(dim=0))


def test_provenance_follows_the_texts(tmp_path: Path) -> None:
    texts = [("xy"[n % 2], f"text {n}") for n in range(60)]
    (tmp_path / "other").mkdir()
    first = own(tmp_path, texts).provenance()
    second = own(tmp_path / "other", [*texts[:-1], ("y", "text 60")]).provenance()
    assert first["labels"] == ["x", "y"]
    assert sum(first["texts"].values()) == 60
    assert first["sha256"] != second["sha256"]


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    for part, label in (("train", "a"), ("train", "b"), ("test", "c")):
        (tmp_path / part / label).mkdir(parents=True)
        for n in range(30):
            (tmp_path / part / label / f"{n}.txt").write_text(f"{label} {n}")
    with pytest.raises(ValueError, match=r"0\.txt: train has no text with the label 'c' of test"):
        ByteText(source=str(tmp_path)).samples("train")
    with pytest.raises(ValueError, match=r"byte_text\.max_classes=1.*at least 2"):
        make_task("byte_text", max_classes=1)
    with pytest.raises(ValueError, match=r"byte_text\.length=0"):
        make_task("byte_text", length=0)
    with pytest.raises(ValueError, match=r"byte_text\.length=999999: .* lower it"):
        ByteText(length=999_999).samples("train")
    (tmp_path / "one").mkdir()
    with pytest.raises(ValueError, match="has one label, 'x'"):
        own(tmp_path / "one", [("x", f"text {n}") for n in range(60)]).samples("train")
