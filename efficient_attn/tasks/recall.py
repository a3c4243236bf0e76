"""What the recall tasks share: a causal model is asked, at few places, for tokens it has read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.language_model import LanguageModel
from efficient_attn.nn.mode import evaluating
from efficient_attn.tasks.task import (
    Batch,
    Capability,
    ModelConfig,
    Split,
    Task,
    TaskPattern,
    generator,
    require_split,
)

IGNORE = -100
"""Label of the places where nothing is asked."""
EVALUATION_TOKENS = 8192
"""Of a chunk that is scored at once."""


class RecallTask(Task):
    """A causal sequence in which some places ask for a token; the metric is the share right.

    Subclasses say in `draw` how samples are made.
    """

    pattern: ClassVar[TaskPattern] = "causal_self"
    capability: ClassVar[Capability] = "recall"
    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    vocab: int
    """Different tokens, all of them possible answers for the model."""
    evaluation: int
    """Samples in each of validation and test."""

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence that a model must take."""
        return self.length

    @abstractmethod
    def draw(self, draw: np.random.Generator, count: int) -> Batch:
        """`count` samples: inputs [count, N] and labels [count, N], `IGNORE` where none is asked.

        Every sample has equally many questions.
        """

    def build_model(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> nn.Module:
        settings = self.settings(variant, options, model)
        return LanguageModel(self.vocab, max_len=self.max_len, **settings)

    def batches(self, seed: int, batch_size: int) -> Iterator[Batch]:
        """Inputs and labels [B, N] each, as `draw` makes them; always new."""
        draw = generator(f"{self.name} train", seed)
        while True:
            yield self.draw(draw, batch_size)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy at the questions."""
        inputs, labels = batch
        asked = labels != IGNORE
        return F.cross_entropy(model(inputs)[asked], labels[asked])

    def evaluate(self, model: nn.Module, split: Split) -> float:
        """Share of questions answered right, over the whole vocabulary."""
        inputs, labels = self.held(split)
        rows = max(1, EVALUATION_TOKENS // inputs.shape[1])
        right = 0
        with evaluating(model) as device:
            for asked, wanted in zip(inputs.split(rows), labels.split(rows), strict=True):
                guesses = model(asked.to(device)).argmax(-1).cpu()
                right += int((guesses == wanted).sum())
        return right / int((labels != IGNORE).sum())

    def held(self, split: Split) -> Batch:
        """Inputs and labels of a fixed split, [evaluation, N] each."""
        require_split(split)
        return self.draw(generator(self.name, split), self.evaluation)


def answers(labels: Tensor) -> Tensor:
    """What is asked for in labels [B, N] with Q questions each, [B, Q]."""
    return labels[labels != IGNORE].reshape(len(labels), -1)


def share_among(wanted: Tensor, candidates: Tensor) -> float:
    """How often a blind choice among a sample's candidates [B, C] hits one of wanted [B, Q]."""
    return (wanted.unsqueeze(2) == candidates.unsqueeze(1)).double().mean().item()


def distinct(scores: np.ndarray, count: int) -> np.ndarray:
    """Columns of the `count` smallest scores of every row, smallest first."""
    return np.argsort(scores, axis=1)[:, :count]
