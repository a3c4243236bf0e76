"""Classification of texts as bytes: which package a piece of source comes from, or one's own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.models import SequenceClassifier
from efficient_attn.tasks.files import (
    PARTS,
    STDLIB,
    TOP_LEVEL,
    File,
    fingerprint,
    packages,
    size,
    windows,
)
from efficient_attn.tasks.labelled import LabelledTask
from efficient_attn.tasks.task import Batch, Capability, ModelConfig, generator, require_count
from efficient_attn.tasks.texts import PAD, VOCAB, Columns, Row, encoded, histograms, read_texts

PACKAGES = 6
HELD_BYTES = 16_000
"""What a package holds in each of validation and test, at least, to be one of those."""
OVERLAP = 4
"""Windows of the standard library begin a quarter of their length apart."""


@dataclass(frozen=True)
class ByteText(LabelledTask):
    """The label of a text from its first `length` bytes; short texts are padded.

    Source of the task: Tay et al., "Long Range Arena" (2021), section 2.2.2, on bytes of reviews.

    source: "stdlib": windows of the standard library's sources, labelled with their top-level
        package. No file is in two parts, the heads of files are left out, and all labels are
        equally frequent. Or texts of one's own in any form that `read_texts` knows: a table of
        text and label, a folder with a folder per label, a dataset saved on disk.
    max_classes: so many labels at most, those with most texts in training (of "stdlib": the
        largest packages); texts of others are left out, and counted in the provenance. None: of
        "stdlib" six, else all.
    max_per_class: texts of a label in training, at most.
    evaluation: texts of a label in each of validation and test, at most.
    text_column, label_column: names in tables that have names, and in datasets.
    """

    name: ClassVar[str] = "byte_text"
    capability: ClassVar[Capability] = "locality"
    pad: ClassVar[int | None] = PAD

    length: int = 256
    source: str = STDLIB
    max_classes: int | None = None
    max_per_class: int = 2000
    evaluation: int = 150
    text_column: str = "text"
    label_column: str = "label"

    def __post_init__(self) -> None:
        for name in ("length", "max_per_class", "evaluation"):
            require_count(f"byte_text.{name}", getattr(self, name))
        if self.max_classes is not None:
            require_count("byte_text.max_classes", self.max_classes, low=2)

    @property
    def labels(self) -> tuple[str, ...]:
        """What the classes stand for."""
        return _load(self).labels

    @property
    def classes(self) -> int:  # type: ignore[override]
        return len(self.labels)

    def build_model(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> nn.Module:
        settings = self.settings(variant, options, model)
        return SequenceClassifier(self.classes, max_len=self.length, vocab_size=VOCAB, **settings)

    def samples(self, split: str) -> Batch:
        """Bytes [count, length] of 16 bits, padded with `PAD`, and labels [count]."""
        tokens, labels = _load(self).parts[split]
        return torch.from_numpy(tokens), torch.from_numpy(labels)

    def inputs(self, samples: Tensor) -> Tensor:
        return samples.long()

    def baselines(self) -> dict[str, float]:
        """Guesses that read nothing; naive Bayes on the frequencies of bytes (add-one)."""
        data = _load(self)
        counts, classes = histograms(data.parts["train"][0]), data.parts["train"][1]
        frequencies = np.ones((self.classes, PAD))
        np.add.at(frequencies, classes, counts)
        log_likelihood = np.log(frequencies / frequencies.sum(1, keepdims=True))
        log_prior = np.log(np.bincount(classes, minlength=self.classes) / len(classes))
        tokens, labels = data.parts["test"]
        guesses = (histograms(tokens) @ log_likelihood.T + log_prior).argmax(1)
        return {
            **super().baselines(),
            "byte_unigrams": float((guesses == labels).mean()),
        }

    def provenance(self) -> dict[str, Any]:
        """The labels, how many texts are used and left out, and a hash of the texts."""
        data = _load(self)
        return {
            "source": self.source,
            "labels": list(data.labels),
            "texts": {name: len(labels) for name, (_, labels) in data.parts.items()},
            "left_out": data.left_out,
            "sha256": data.sha256,
        }


@dataclass(frozen=True)
class _Data:
    """Tokens [count, length] and labels [count] of each part; left_out: texts of other labels."""

    labels: tuple[str, ...]
    parts: dict[str, tuple[np.ndarray, np.ndarray]]
    left_out: int
    sha256: str


@lru_cache(maxsize=2)
def _load(task: ByteText) -> _Data:
    return _stdlib(task) if task.source == STDLIB else _own(task)


def _stdlib(task: ByteText) -> _Data:
    """Windows of the largest packages, as many of each."""
    count = task.max_classes or PACKAGES
    usable = {
        package: parts
        for package, parts in packages().items()
        if package != TOP_LEVEL
        and all(size(parts[part]) >= HELD_BYTES for part in ("validation", "test"))
    }
    chosen = dict(list(usable.items())[:count])
    if len(chosen) < count:
        raise ValueError(
            f"byte_text.max_classes={count}: this Python's standard library has "
            f"{len(usable)} packages with files enough; lower it"
        )
    labels = tuple(sorted(chosen))
    step = max(1, task.length // OVERLAP)
    parts = {}
    for part in PARTS:
        rows = [
            np.concatenate([windows(text, task.length, step) for _, text in chosen[label][part]])
            for label in labels
        ]
        limit = task.max_per_class if part == "train" else task.evaluation
        count = min(limit, *map(len, rows))
        if not count:
            raise ValueError(
                f"byte_text.length={task.length}: no file of {part} is so long in some package; "
                "lower it"
            )
        tokens = np.concatenate(
            [texts[np.linspace(0, len(texts) - 1, count).astype(int)] for texts in rows]
        ).astype(np.int16)
        parts[part] = (tokens, np.repeat(np.arange(len(labels)), count))
    files = (file for label in labels for part in PARTS for file in chosen[label][part])
    return _Data(labels, parts, 0, fingerprint(files))


def _own(task: ByteText) -> _Data:
    columns = Columns(task.label_column, (task.text_column,))
    found = read_texts(task.source, columns, "byte_text.source")
    ranking = Counter(row.label for row in found["train"]).most_common(task.max_classes)
    labels = tuple(sorted(label for label, _ in ranking))
    if len(labels) < 2:
        raise ValueError(f"byte_text.source={task.source!r} has one label, {labels[0]!r}")
    number = {label: place for place, label in enumerate(labels)}
    parts, left_out = {}, 0
    used: list[File] = []
    for part, rows in found.items():
        for row in rows:
            if row.label not in number and task.max_classes is None:
                raise ValueError(
                    f"{row.place}: train has no text with the label {row.label!r} of {part}; its "
                    f"labels are {', '.join(labels)}"
                )
        known = [row for row in rows if row.label in number]
        left_out += len(rows) - len(known)
        rows = _capped(known, task.max_per_class if part == "train" else task.evaluation)
        if not rows:
            raise ValueError(f"byte_text.source={task.source!r}: {part} has none of {labels}")
        tokens = encoded([row.texts[0] for row in rows], task.length)
        parts[part] = (tokens, np.array([number[row.label] for row in rows]))
        used += [(f"{part}/{row.label}", row.texts[0]) for row in rows]
    return _Data(labels, parts, left_out, fingerprint(used))


def _capped(rows: list[Row], limit: int) -> list[Row]:
    """At most so many rows of each label, drawn once and for all."""
    kept: list[Row] = []
    counts: Counter[str] = Counter()
    for place in generator("byte_text", 0).permutation(len(rows)):
        row = rows[place]
        counts[row.label] += 1
        if counts[row.label] <= limit:
            kept.append(row)
    return kept
