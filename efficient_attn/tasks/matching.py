"""Matching of two documents, read as bytes, each encoded alone: do they belong together?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.dual_encoder import DualEncoder
from efficient_attn.tasks.files import PARTS, STDLIB, File, fingerprint, packages, windows
from efficient_attn.tasks.labelled import LabelledTask
from efficient_attn.tasks.task import Batch, Capability, ModelConfig, generator, require_count
from efficient_attn.tasks.texts import (
    PAD,
    VOCAB,
    Columns,
    Row,
    encoded,
    histograms,
    read_texts,
)

LABELS = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}
PER_FILE = 16
"""Pairs of one file of the standard library in a round of pairing, at most."""


@dataclass(frozen=True)
class Matching(LabelledTask):
    """Whether two texts of at most `length` bytes each match; neither encoder sees the other's.

    Source of the task and of the model: Tay et al., "Long Range Arena" (2021), section 2.2.3, on
    pairs of papers.

    source: "stdlib": windows of the standard library's sources match when they come from one
        file. Half of the pairs do; the others come from two files of one package. They are made of
        the same windows, each pair that matches beside one with the same first window that does
        not, so that no window alone tells anything. No file is in two parts, and the heads of
        files are left out. Or pairs of one's own in any form that `read_texts` knows: a table of
        label (0 or 1) and two texts, Long Range Arena's tables of label, two names and two texts,
        a dataset saved on disk.
    train, evaluation: pairs to train, and in each of validation and test, at most; the same for
        every seed.
    label_column, first_column, second_column: names in tables that have names, and in datasets.
    """

    name: ClassVar[str] = "matching"
    capability: ClassVar[Capability] = "alignment"
    classes: ClassVar[int] = 2
    pad: ClassVar[int | None] = PAD

    length: int = 128
    source: str = STDLIB
    train: int = 20_000
    evaluation: int = 1000
    label_column: str = "label"
    first_column: str = "text1"
    second_column: str = "text2"

    def __post_init__(self) -> None:
        for name in ("length", "train", "evaluation"):
            require_count(f"matching.{name}", getattr(self, name), low=1 if name == "length" else 2)

    def build_model(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> nn.Module:
        settings = self.settings(variant, options, model)
        return DualEncoder(2, max_len=self.length, vocab_size=VOCAB, **settings)

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        first, second = inputs.unbind(1)
        return model(first, second, first == PAD, second == PAD)

    def samples(self, split: str) -> Batch:
        """Bytes [count, 2, length] of 16 bits, padded with `PAD`, and labels [count]."""
        tokens, labels = _load(self).parts[split]
        return torch.from_numpy(tokens), torch.from_numpy(labels)

    def inputs(self, samples: Tensor) -> Tensor:
        return samples.long()

    def baselines(self) -> dict[str, float]:
        """Guesses that read nothing; likeness of byte frequencies, above what separates train."""
        train, test = (_load(self).parts[part] for part in ("train", "test"))
        threshold = best_threshold(likeness(train[0]), train[1])
        right = (likeness(test[0]) >= threshold) == test[1]
        return {**super().baselines(), "byte_histograms": float(right.mean())}

    def provenance(self) -> dict[str, Any]:
        """How many pairs are used, and a hash of what they are made from."""
        data = _load(self)
        return {
            "source": self.source,
            "pairs": {name: len(labels) for name, (_, labels) in data.parts.items()},
            "sha256": data.sha256,
        }


def likeness(pairs: np.ndarray) -> np.ndarray:
    """Cosine of the byte frequencies of texts [count, 2, length], [count]."""
    first, second = (histograms(pairs[:, side]) for side in (0, 1))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.einsum("nb,nb->n", first, second) / norms


def best_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    """The score from which on to say 1, for most of the labels [count] (0 or 1) right."""
    order = np.argsort(scores)[::-1]
    ranked, gains = scores[order], np.cumsum(2 * labels[order] - 1)
    last_of_equals = np.append(ranked[1:] != ranked[:-1], True)
    gains = np.where(last_of_equals, gains, -np.inf)
    return float(ranked[gains.argmax()]) if gains.max() > 0 else np.inf


@dataclass(frozen=True)
class _Data:
    """Texts [count, 2, length] and labels [count] of each part."""

    parts: dict[str, tuple[np.ndarray, np.ndarray]]
    sha256: str


@lru_cache(maxsize=2)
def _load(task: Matching) -> _Data:
    return _stdlib(task) if task.source == STDLIB else _own(task)


def _stdlib(task: Matching) -> _Data:
    parts = {}
    for part in PARTS:
        count = task.train if part == "train" else task.evaluation
        groups = [
            group
            for files in packages().values()
            if len(group := _windows(files[part], task.length)) > 1
        ]
        if not groups:
            raise ValueError(
                f"matching.length={task.length}: no package of the standard library has two files "
                f"of twice so many bytes in {part}; lower it"
            )
        parts[part] = _pairs(groups, count, generator("matching", part))
    used = (file for package in packages().values() for part in PARTS for file in package[part])
    return _Data(parts, fingerprint(used))


def _windows(files: tuple[File, ...], length: int) -> list[np.ndarray]:
    """The windows [count, length] of each file that has two or more, one after another."""
    found = (windows(content, length, length) for _, content in files)
    return [rows for rows in found if len(rows) > 1]


def _pairs(
    groups: list[list[np.ndarray]], count: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """`count` pairs [count, 2, length] and their labels, alternately 1 and 0.

    groups: packages; each of files; each of windows [count, length].
    """
    made: list[np.ndarray] = []
    total = 0
    while total < count:
        for group in groups:
            made.append(_round(group, draw))
            total += len(made[-1])
    pairs = np.concatenate(made)
    order = 2 * draw.permutation(len(pairs) // 2)
    order = np.stack([order, order + 1], 1).ravel()[:count]
    return pairs[order], (order + 1) % 2


def _round(files: list[np.ndarray], draw: np.random.Generator) -> np.ndarray:
    """Pairs of the windows of one package, [count, 2, length], in turn matching and not.

    Matching pairs stand file after file. The second windows, moved on by as many pairs as the
    largest file has, are all of other files, if no file has more pairs than all others together.
    """
    counts = [min(PER_FILE, len(rows) // 2) for rows in files]
    largest = int(np.argmax(counts))
    counts[largest] = min(counts[largest], sum(counts) - counts[largest])
    first, second = [], []
    for place in draw.permutation(len(files)):
        rows, count = files[place], counts[place]
        chosen = draw.permutation(len(rows))[: 2 * count]
        first.append(rows[chosen[:count]])
        second.append(rows[chosen[count:]])
    left, right = np.concatenate(first), np.concatenate(second)
    sides = [left, right, left, np.roll(right, -max(counts), axis=0)]
    return np.stack(sides, 1).reshape(2 * len(left), 2, -1).astype(np.int16)


def _own(task: Matching) -> _Data:
    columns = Columns(task.label_column, (task.first_column, task.second_column))
    found = read_texts(task.source, columns, "matching.source")
    parts = {}
    used: list[File] = []
    for part, rows in found.items():
        count = task.train if part == "train" else task.evaluation
        order = generator("matching", part).permutation(len(rows))[:count]
        chosen = [rows[place] for place in order]
        sides = [encoded([row.texts[side] for row in chosen], task.length) for side in (0, 1)]
        parts[part] = (np.stack(sides, 1), np.array([_label(row) for row in chosen]))
        used += [(f"{part}/{row.label}", text) for row in chosen for text in row.texts]
    if len(set(parts["train"][1])) < 2:
        raise ValueError(f"matching.source={task.source!r} has pairs of one label alone in train")
    return _Data(parts, fingerprint(used))


def _label(row: Row) -> int:
    label = LABELS.get(row.label.strip().lower())
    if label is None:
        raise ValueError(
            f"{row.place}: label {row.label!r} is none of {', '.join(LABELS)} (1: they match)"
        )
    return label
