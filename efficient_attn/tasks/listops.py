"""ListOps: the value of a nested expression over digits, one label from a long sequence.

Source: Nangia and Bowman, "ListOps: A Diagnostic Dataset for Latent Tree Learning" (2018),
section 3; with the sizes of Tay et al., "Long Range Arena" (2021), section 2.2.1.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from efficient_attn.attention.errors import require_probability
from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.models import SequenceClassifier
from efficient_attn.tasks.labelled import LabelledTask
from efficient_attn.tasks.listops_grammar import (
    PAD,
    TOKENS,
    Grammar,
    read_tsv,
)
from efficient_attn.tasks.task import Batch, Capability, ModelConfig, require_count

CLASSES = 10
FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}


@dataclass(frozen=True)
class ListOps(LabelledTask):
    """The value of an expression of MIN, MAX, MED and SM (sum modulo 10)::

        [MAX 2 9 [MIN 4 7 ] 0 ]  ->  9

    MED is the median, rounded down between two. A node above max_depth is an operator with
    probability operator_probability, else a digit; an operator is one of the four and has
    2 ... max_args arguments, all of equal probability. Expressions of fewer than `shortest` or
    more than `length` tokens are drawn again. Inputs are padded to `length`.

    Published sizes: length=1999, shortest=501, max_depth=10, max_args=10, train=96000,
    evaluation=2000.

    train, evaluation: expressions to train, and in each of validation and test; the same for
        every seed.
    folder: of the published files ``basic_{train,val,test}.tsv``, read instead of drawing
        expressions: the first `train` and `evaluation` of them; `length` must hold the longest.
    """

    name: ClassVar[str] = "listops"
    capability: ClassVar[Capability] = "hierarchy"
    classes: ClassVar[int] = CLASSES
    pad: ClassVar[int | None] = PAD

    length: int = 128
    shortest: int = 30
    max_depth: int = 6
    max_args: int = 5
    operator_probability: float = 0.25
    train: int = 20_000
    evaluation: int = 2000
    folder: str | None = None

    def __post_init__(self) -> None:
        for name in ("length", "shortest", "max_depth", "train", "evaluation"):
            require_count(f"listops.{name}", getattr(self, name))
        require_count("listops.max_args", self.max_args, low=2)
        require_probability("listops.operator_probability", self.operator_probability)
        if self.shortest > self.length:
            raise ValueError(
                f"listops.shortest={self.shortest} must be at most length={self.length}"
            )

    @property
    def grammar(self) -> Grammar:
        return Grammar(
            self.length, self.shortest, self.max_depth, self.max_args, self.operator_probability
        )

    def build_model(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> nn.Module:
        settings = self.settings(variant, options, model)
        return SequenceClassifier(CLASSES, max_len=self.length, vocab_size=len(TOKENS), **settings)

    def samples(self, split: str) -> Batch:
        """Tokens [count, length] of 8 bits, padded with 0, and values [count]."""
        count = self.train if split == "train" else self.evaluation
        if self.folder is None:
            start = {"validation": 0, "test": self.evaluation, "train": 2 * self.evaluation}[split]
            tokens, values = _pool(self.grammar, 2 * self.evaluation + self.train)
        else:
            start = 0
            tokens, values = _file(self.folder, split, self.length)
        part = slice(start, start + count)
        return torch.from_numpy(tokens[part]), torch.from_numpy(values[part])

    def inputs(self, samples: Tensor) -> Tensor:
        return samples.long()

    def baselines(self) -> dict[str, float]:
        """Guesses that read nothing, the first token, and the first two; learnt on train."""
        train, test = (
            (tokens.numpy(), values.numpy())
            for tokens, values in map(self.samples, ("train", "test"))
        )
        return {
            **super().baselines(),
            "root_operator": table_accuracy(train, test, read=1),
            "root_operator_and_next_token": table_accuracy(train, test, read=2),
        }

    def provenance(self) -> dict[str, Any]:
        """Of files: a hash of their contents."""
        if self.folder is None:
            return {}
        mark = hashlib.sha256()
        for name in FILES.values():
            mark.update(_path(self.folder, name).read_bytes())
        return {"sha256": mark.hexdigest()}


def table_accuracy(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], read: int
) -> float:
    """Share right of the value that was most frequent in train after the same first tokens.

    train, test: tokens [count, length] and values [count]. read: how many tokens are looked at.
    Beginnings that train does not hold get its most frequent value.
    """
    size = len(TOKENS)
    weights = size ** np.arange(read)
    beginnings = [tokens[:, :read].astype(np.int64) @ weights for tokens, _ in (train, test)]
    counts = np.bincount(beginnings[0] * CLASSES + train[1], minlength=size**read * CLASSES)
    counts = counts.reshape(-1, CLASSES)
    guesses = np.where(counts.any(1), counts.argmax(1), counts.sum(0).argmax())
    return float((guesses[beginnings[1]] == test[1]).mean())


@lru_cache(maxsize=2)
def _pool(grammar: Grammar, count: int) -> tuple[np.ndarray, np.ndarray]:
    return grammar.draw(0, count)


@lru_cache(maxsize=3)
def _file(folder: str, split: str, length: int) -> tuple[np.ndarray, np.ndarray]:
    return read_tsv(_path(folder, FILES[split]), length)


def _path(folder: str, name: str) -> Path:
    path = Path(folder) / name
    if not path.is_file():
        raise FileNotFoundError(
            f"listops.folder={folder!r} has no {name}; give the folder of "
            f"{', '.join(FILES.values())}, or null to draw expressions"
        )
    return path
