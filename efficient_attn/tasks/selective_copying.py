"""Selective copying: tokens scattered among blanks, to be said in order at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from efficient_attn.tasks.recall import IGNORE, RecallTask, answers, distinct, share_among
from efficient_attn.tasks.task import Batch, require_count

BLANK, MARKER = 0, 1
NOT_SAID = 2
"""Blank and marker: numbers from here on are tokens to be said."""


@dataclass(frozen=True)
class SelectiveCopying(RecallTask):
    """Say the tokens that stood among the blanks, in order, one at each marker.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023),
    section 4.1.1, after Jing et al., "Gated Orthogonal Recurrent Units" (2019), who scattered the
    tokens of the copying memory task of Arjovsky et al., "Unitary Evolution Recurrent Neural
    Networks" (2016). With 12 positions, 3 tokens, blank · and marker ?::

        position   0  1  2  3  4  5  6  7  8  9 10 11
        input      ·  5  ·  ·  9  ·  ·  5  ·  ?  ?  ?
        label      -  -  -  -  -  -  -  -  -  5  9  5

    A model must count: which token is asked for is told by the marker's place among the markers,
    and where it stood differs from sample to sample.

    tokens: how many are scattered, and how many markers follow.
    vocab: blank, marker and vocab − 2 tokens to be said, which may come more than once.
    evaluation: samples in each of validation and test.
    """

    name: ClassVar[str] = "selective_copying"
    positions: ClassVar[str] = "sinusoidal"
    short_conv: ClassVar[int] = 3

    length: int = 64
    tokens: int = 8
    vocab: int = 16
    evaluation: int = 512

    def __post_init__(self) -> None:
        for name in ("length", "tokens", "evaluation"):
            require_count(f"selective_copying.{name}", getattr(self, name))
        require_count("selective_copying.vocab", self.vocab, low=NOT_SAID + 2)
        if 2 * self.tokens > self.length:
            raise ValueError(
                f"selective_copying.length={self.length} does not hold {self.tokens} tokens and "
                f"as many markers; use length={2 * self.tokens} or more"
            )

    def draw(self, draw: np.random.Generator, count: int) -> Batch:
        context = self.length - self.tokens
        places = np.sort(distinct(draw.random((count, context)), self.tokens), axis=1)
        said = draw.integers(NOT_SAID, self.vocab, (count, self.tokens))
        inputs = np.full((count, self.length), BLANK)
        inputs[:, context:] = MARKER
        np.put_along_axis(inputs, places, said, axis=1)
        labels = np.full_like(inputs, IGNORE)
        labels[:, context:] = said
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    def baselines(self) -> dict[str, float]:
        """A token drawn from all that may be said, and from those of the sample."""
        said = answers(self.held("test")[1])
        return {
            "chance": 1 / (self.vocab - NOT_SAID),
            "some_token_of_the_sample": share_among(said, said),
        }
