"""Induction heads: what followed the special token when it came for the first time?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from efficient_attn.tasks.recall import IGNORE, RecallTask, answers, share_among
from efficient_attn.tasks.task import Batch, Split, require_count

SPECIAL = 0


@dataclass(frozen=True)
class Induction(RecallTask):
    """Say at the end, where the special token comes again, what followed it before.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023),
    section 4.1.2, after Fu et al., "Hungry Hungry Hippos" (2022), section 3.1; the mechanism is
    that of Olsson et al., "In-context Learning and Induction Heads" (2022). With 12 tokens, 16
    different ones, the special one *::

        position   0  1  2  3  4  5  6  7  8  9 10 11
        input      7  2  *  9 14  7  3  3 11  9  1  *
        label      -  -  -  -  -  -  -  -  -  -  -  9

    One answer and much noise: memory is not what is short here, only reach and selection. Models
    are trained and scored at `length`; `details` adds longer sequences, never trained on.

    Models get a causal convolution of width 3 before attention, and no other positions, so that
    they can read more tokens than they were trained on.

    vocab: the special token and vocab − 1 others.
    gap: at least so many tokens stand between answer and question; 0 is the papers' task, in which
        a window answers what happens to be near. None: (length − 2) // 2, with which special token
        and answer stand in the first half.
    test_length: the longest that `details` tells of, on the way there by doubling; None: four
        times `length`.
    evaluation: samples of each length in each of validation and test.
    """

    name: ClassVar[str] = "induction"
    positions: ClassVar[str] = "none"
    short_conv: ClassVar[int] = 3

    length: int = 64
    vocab: int = 16
    gap: int | None = None
    test_length: int | None = None
    evaluation: int = 512

    def __post_init__(self) -> None:
        require_count("induction.length", self.length, low=3)
        require_count("induction.vocab", self.vocab, low=3)
        require_count("induction.evaluation", self.evaluation)
        if self.gap is not None:
            require_count("induction.gap", self.gap, low=0)
            if self.gap > self.length - 3:
                raise ValueError(
                    f"induction.gap={self.gap} leaves no place for the special token and its "
                    f"answer in length={self.length}; use gap={self.length - 3} or less"
                )
        if self.test_length is not None:
            require_count("induction.test_length", self.test_length, low=self.length)

    @property
    def max_len(self) -> int:
        return 4 * self.length if self.test_length is None else self.test_length

    def draw(self, draw: np.random.Generator, count: int) -> Batch:
        gap = (self.length - 2) // 2 if self.gap is None else self.gap
        inputs = draw.integers(1, self.vocab, (count, self.length))
        places = draw.integers(0, self.length - 2 - gap, (count, 1))
        np.put_along_axis(inputs, places, SPECIAL, axis=1)
        inputs[:, -1] = SPECIAL
        labels = np.full_like(inputs, IGNORE)
        labels[:, -1:] = np.take_along_axis(inputs, places + 1, axis=1)
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    def details(self, model: nn.Module, split: Split) -> dict[str, dict[str, float]]:
        """Accuracy at `length`, at its doubles and at the longest length of the test."""
        doubles = []
        length = self.length
        while length < self.max_len:
            doubles.append(length)
            length *= 2
        return {
            f"N={n}": {
                self.metric: replace(self, length=n, test_length=None).evaluate(model, split)
            }
            for n in (*doubles, self.max_len)
        }

    def baselines(self) -> dict[str, float]:
        """A token drawn from all but the special one, and from those of the sample."""
        inputs, labels = self.held("test")
        others = inputs[inputs != SPECIAL].reshape(len(inputs), -1)
        return {
            "chance": 1 / (self.vocab - 1),
            "some_token_of_the_sample": share_among(answers(labels), others),
        }
