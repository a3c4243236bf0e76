"""What tasks share that put one label on each of a fixed set of inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from efficient_attn.nn.mode import evaluating
from efficient_attn.tasks.task import (
    Batch,
    Split,
    Task,
    TaskPattern,
    generator,
    require_split,
)

EVALUATION_TOKENS = 32_000
"""Tokens that a model sees at once in evaluation."""


class LabelledTask(Task):
    """Base of such tasks: they say what their inputs are, and what a model reads of them.

    pad: the token that fills up short inputs, which models are told to ignore; None where all
    inputs have one length.
    """

    pattern: ClassVar[TaskPattern] = "noncausal_self"
    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    classes: ClassVar[int]
    pad: ClassVar[int | None] = None

    @abstractmethod
    def samples(self, split: str) -> Batch:
        """All inputs [count, ...] and labels [count] of train, validation or test."""

    @abstractmethod
    def inputs(self, samples: Tensor) -> Tensor:
        """What the model reads of some of them."""

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """What the model says of such inputs, [B, classes]."""
        if self.pad is None:
            return model(inputs)
        return model(inputs, inputs == self.pad)

    def batches(self, seed: int, batch_size: int) -> Iterator[Batch]:
        """Inputs and labels [B]; every sample once per epoch, in a new order."""
        samples, labels = self.samples("train")
        draw = generator(self.name, seed)
        queue = np.empty(0, dtype=np.int64)
        while True:
            while len(queue) < batch_size:
                queue = np.concatenate([queue, draw.permutation(len(labels))])
            rows, queue = torch.from_numpy(queue[:batch_size]), queue[batch_size:]
            yield self.inputs(samples[rows]), labels[rows]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels = batch
        return F.cross_entropy(self.logits(model, inputs), labels)

    def evaluate(self, model: nn.Module, split: Split) -> float:
        """Share of samples labelled right."""
        require_split(split)
        samples, labels = self.samples(split)
        with evaluating(model) as device:
            guesses = torch.cat(
                [
                    self.logits(model, self.inputs(chunk).to(device)).argmax(-1).cpu()
                    for chunk in samples.split(max(1, EVALUATION_TOKENS // self.length))
                ]
            )
        return (guesses == labels).double().mean().item()

    def baselines(self) -> dict[str, float]:
        """Guessing, and the most frequent label of the training samples."""
        majority = torch.bincount(self.samples("train")[1]).argmax()
        share = (self.samples("test")[1] == majority).double().mean().item()
        return {"chance": 1 / self.classes, "majority_class": share}
