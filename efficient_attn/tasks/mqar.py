"""Multi-query associative recall: pairs of key and value, later each key is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from efficient_attn.tasks.recall import IGNORE, RecallTask, answers, distinct, share_among
from efficient_attn.tasks.task import Batch, require_count

BLANK = 0


@dataclass(frozen=True)
class Mqar(RecallTask):
    """Recall the value of every key that comes again.

    Source: Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models"
    (2023), section 3 and appendix. With vocab=16 and 3 pairs (keys 1–7, values 8–15, blank ·)::

        position   0  1  2  3  4  5  6  7  8  9 10 11
        input      3 12  7  9  5 15  7  ·  5  3  ·  ·
        label      -  -  -  -  -  -  9  - 15 12  -  -

    The pairs stand first, keys differ within a sample. Every key is asked once, in a slot of the
    rest drawn without replacement with probability proportional to gap^(power − 1), so that most
    questions come soon and some very late; all other slots are blank and unlabelled. A model
    that sees few tokens back cannot answer; one with a small state cannot keep many pairs.

    Models get a causal convolution of width 3 before attention, with which one layer suffices.

    vocab: blank, keys (1 ... vocab/2 − 1) and values (vocab/2 ... vocab − 1).
    power: of the law of the gaps; towards 0 questions come earlier, 1 is uniform.
    evaluation: samples in each of validation and test.
    """

    name: ClassVar[str] = "mqar"
    short_conv: ClassVar[int] = 3

    length: int = 64
    pairs: int = 8
    vocab: int = 64
    power: float = 0.01
    evaluation: int = 512

    def __post_init__(self) -> None:
        for name in ("length", "pairs", "vocab", "evaluation"):
            require_count(f"mqar.{name}", getattr(self, name))
        if self.vocab < 4 or self.vocab % 2:
            raise ValueError(f"mqar.vocab={self.vocab} must be even and at least 4")
        if self.pairs > self.vocab // 2 - 1:
            raise ValueError(
                f"mqar.pairs={self.pairs} needs as many different keys, but vocab={self.vocab} "
                f"has {self.vocab // 2 - 1}; use vocab={2 * self.pairs + 2} or more"
            )
        if 3 * self.pairs > self.length:
            raise ValueError(
                f"mqar.length={self.length} does not hold {self.pairs} pairs and their questions; "
                f"use length={3 * self.pairs} or more"
            )
        if not 0 < self.power <= 1:
            raise ValueError(f"mqar.power={self.power!r} must lie in (0, 1]")

    def draw(self, draw: np.random.Generator, count: int) -> Batch:
        half, context = self.vocab // 2, 2 * self.pairs
        keys = 1 + distinct(draw.random((count, half - 1)), self.pairs)
        values = draw.integers(half, self.vocab, (count, self.pairs))
        gaps = np.arange(1, self.length - context + 1)
        # The largest of log-weight plus Gumbel noise are a weighted draw without replacement.
        noise = (self.power - 1) * np.log(gaps) + draw.gumbel(size=(count, len(gaps)))
        slots = context + distinct(-noise, self.pairs)

        inputs = np.full((count, self.length), BLANK)
        inputs[:, 0:context:2] = keys
        inputs[:, 1:context:2] = values
        np.put_along_axis(inputs, slots, keys, axis=1)
        labels = np.full((count, self.length), IGNORE)
        np.put_along_axis(labels, slots, values, axis=1)
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    def baselines(self) -> dict[str, float]:
        """A value drawn from all, and from those that the sample itself holds."""
        inputs, labels = self.held("test")
        held = inputs[:, 1 : 2 * self.pairs : 2]
        return {
            "chance": 2 / self.vocab,
            "some_value_of_the_sample": share_among(answers(labels), held),
        }
