"""Next-byte prediction."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from efficient_attn.attention import Capabilities, variant_class
from efficient_attn.tasks import ByteLM, ModelConfig
from efficient_attn.tasks.byte_lm import IGNORE, _parts

SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index in range(20):
        (tmp_path / f"{index:02}.txt").write_text(f"file {index} " * 60)
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "more.txt").write_text("deeper " * 60)
    return tmp_path


class Uniform(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(256))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(*tokens.shape, 256)


def test_targets_are_the_following_bytes(folder: Path) -> None:
    inputs, following = next(ByteLM(length=16, source=str(folder)).batches(0, 5))
    assert inputs.shape == following.shape == (5, 16)
    assert torch.equal(inputs[:, 1:], following[:, :-1])


def test_parts_are_whole_files_and_disjoint(folder: Path) -> None:
    parts = {name: bytes(text) for name, text in _parts(str(folder), 10**6).items()}
    assert sum(map(len, parts.values())) == sum(
        path.stat().st_size for path in folder.rglob("*.txt")
    )
    for index in range(20):
        assert sum(f"file {index} ".encode() in text for text in parts.values()) == 1
    assert len(parts["train"]) > 3 * len(parts["test"])


def test_one_file_is_cut_in_consecutive_parts(tmp_path: Path) -> None:
    text = bytes(range(256)) * 10
    (tmp_path / "book.bin").write_bytes(text)
    parts = _parts(str(tmp_path / "book.bin"), 10**6)
    assert b"".join(bytes(parts[name]) for name in ("train", "validation", "test")) == text
    assert len(parts["train"]) == 2048


def test_uniform_model_needs_eight_bits(folder: Path) -> None:
    task = ByteLM(length=16, source=str(folder), evaluation=8)
    assert task.evaluate(Uniform(), "test") == pytest.approx(8.0, rel=1e-5)
    loss = task.loss(Uniform(), next(task.batches(0, 2)))
    assert loss.item() == pytest.approx(8 * math.log(2), rel=1e-5)


@pytest.mark.parametrize("context", [0, 1, 6])
def test_every_byte_after_the_context_is_scored_once(tmp_path: Path, context: int) -> None:
    path = tmp_path / "book.bin"
    path.write_bytes(np.random.default_rng(0).bytes(2560))
    task = ByteLM(length=7, source=str(path), evaluation=10_000, context=context)
    text = _parts(str(path), 10**6)["test"].tolist()
    inputs, following = task._evaluation("test")
    scored = []
    for window, aims in zip(inputs.tolist(), following.tolist(), strict=True):
        assert aims[:context] == [IGNORE] * context
        for place in range(context, len(aims)):
            scored.append((window[: place + 1], aims[place]))
    stride = 7 - context
    count = (len(text) - 8) // stride + 1
    starts = [stride * (i // stride) for i in range(count * stride)]
    assert scored == [
        (text[start : start + context + 1 + i % stride], text[i + context + 1])
        for i, start in enumerate(starts)
    ]


def test_context_counts_in_figures_and_baselines(folder: Path) -> None:
    task = ByteLM(length=16, source=str(folder), context=12)
    assert task.evaluate(Uniform(), "test") == pytest.approx(8.0, rel=1e-5)
    _, following = task._evaluation("test")
    rows = following != IGNORE
    text = _parts(str(folder), 10**6)["train"]
    counts = np.bincount(text, minlength=256) + 1.0
    bits = -np.log2(counts / counts.sum())[following[rows].numpy()]
    assert task.baselines()["unigram"] == pytest.approx(bits.mean())


def test_context_must_leave_something(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"byte_lm\.context=16"):
        ByteLM(length=16, source=str(folder), context=16)


def test_unigram_baseline_is_the_model_of_byte_frequencies(folder: Path) -> None:
    task = ByteLM(length=16, source=str(folder))
    counts = np.bincount(_parts(str(folder), task.max_bytes)["train"], minlength=256) + 1.0
    model = Uniform()
    model.weight.data = torch.from_numpy(np.log(counts)).float()
    baselines = task.baselines()
    assert task.evaluate(model, "test") == pytest.approx(baselines["unigram"], rel=1e-4)
    assert baselines["bigram"] < baselines["unigram"] < baselines["chance"] == 8.0


def test_provenance_follows_names_and_contents(folder: Path) -> None:
    task = ByteLM(length=16, source=str(folder), max_bytes=10**6)
    first = task.provenance()
    assert first["files"] == 21
    (folder / "00.txt").write_text("file 0 " * 59 + "file O ")
    other = ByteLM(length=16, source=str(folder), max_bytes=10**6 + 1).provenance()
    assert other["bytes"] == first["bytes"]
    assert other["sha256"] != first["sha256"]


def test_cap_on_bytes(folder: Path) -> None:
    assert ByteLM(length=16, source=str(folder), max_bytes=1000).provenance()["bytes"] == 1000


def test_standard_library_is_read_and_learnable() -> None:
    task = ByteLM(length=32, max_bytes=200_000, evaluation=8)
    assert task.provenance()["bytes"] == 200_000
    inputs, following = next(task.batches(0, 4))
    model = task.build_model("full", {}, SMALL)
    assert task.loss(model, (inputs, following)).item() < 7
    assert set(task.baselines()) == {"chance", "unigram", "bigram"}


def test_too_little_text_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("hardly anything")
    with pytest.raises(ValueError, match="lower length"):
        next(ByteLM(source=str(tmp_path)).batches(0, 2))


def test_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ByteLM(source=str(tmp_path / "nowhere")).provenance()


def test_a_model_writes_the_same_text_every_time(folder: Path) -> None:
    task = ByteLM(length=16, source=str(folder))
    model = task.build_model("full", {}, SMALL)
    before = torch.random.get_rng_state()
    text = task.sample(model)
    assert text is not None
    assert 0 < len(text) <= 16
    assert text == task.sample(model)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_model_that_cannot_decode_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ByteLM(length=16, source=str(folder))
    monkeypatch.setattr(variant_class("full"), "capabilities", Capabilities(causal_self=True))
    assert task.sample(task.build_model("full", {}, SMALL)) is None
