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

EVALUATION_CHUNK = 500
"""Samples that are evaluated together, at most,"""
EVALUATION_TOKENS = 2**16
"""and so many tokens, which keeps the memory of long samples small."""


class LabelledTask(Task):
    """Base of such tasks: they say what their inputs are, and what a model reads of them."""

    pattern: ClassVar[TaskPattern] = "noncausal_self"
    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    classes: ClassVar[int]

    @abstractmethod
    def samples(self, split: str) -> Batch:
        """All inputs [count, ...] and labels [count] of train, validation or test."""

    @abstractmethod
    def inputs(self, samples: Tensor) -> Tensor:
        """What the model reads of some of them."""

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
        return F.cross_entropy(model(inputs), labels)

    def evaluate(self, model: nn.Module, split: Split) -> float:
        """Share of samples labelled right."""
        require_split(split)
        samples, labels = self.samples(split)
        chunk_size = min(EVALUATION_CHUNK, max(1, EVALUATION_TOKENS // self.length))
        with evaluating(model) as device:
            guesses = torch.cat(
                [
                    model(self.inputs(chunk).to(device)).argmax(-1).cpu()
                    for chunk in samples.split(chunk_size)
                ]
            )
        return (guesses == labels).double().mean().item()

    def baselines(self) -> dict[str, float]:
        """Guessing, and the most frequent label of the training samples."""
        majority = torch.bincount(self.samples("train")[1]).argmax()
        share = (self.samples("test")[1] == majority).double().mean().item()
        return {"chance": 1 / self.classes, "majority_class": share}
