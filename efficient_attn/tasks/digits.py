"""Handwritten digits, 8×8 pixels: one label from 64 tokens, as a sequence or on their grid.

Data: "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998), 1797 images of the
test part as shipped with scikit-learn; nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.models import ImageClassifier, SequenceClassifier
from efficient_attn.tasks.labelled import LabelledTask
from efficient_attn.tasks.task import Batch, Capability, ModelConfig, generator

SIDE = 8
CLASSES = 10
INK = 17
"""Grey levels 0...16 of a pixel."""
SHARES = {"train": 1197, "validation": 300, "test": 300}


@dataclass(frozen=True)
class Digits(LabelledTask):
    """The pixels row by row as 64 tokens of 17 grey levels; where they stood is not told.

    Fixed split: 1197 images to train, 300 to pick the learning rate, 300 to report.
    """

    name: ClassVar[str] = "digits"
    capability: ClassVar[Capability] = "2d"
    classes: ClassVar[int] = CLASSES
    length: ClassVar[int] = SIDE * SIDE  # type: ignore[misc]

    def build_model(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> nn.Module:
        settings = self.settings(variant, options, model)
        return SequenceClassifier(CLASSES, max_len=self.length, vocab_size=INK, **settings)

    def samples(self, split: str) -> Batch:
        return _split(split)

    def inputs(self, images: Tensor) -> Tensor:
        return images.flatten(1)


@dataclass(frozen=True)
class DigitsGrid(Digits):
    """The same images, every pixel a token on the 8×8 grid, told to variants that use one."""

    name: ClassVar[str] = "digits_grid"

    @property
    def grid(self) -> tuple[int, int]:
        return (SIDE, SIDE)

    def build_model(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> nn.Module:
        settings = self.settings(variant, options, model)
        return ImageClassifier(
            CLASSES, image_size=(SIDE, SIDE), patch_size=1, in_channels=1, **settings
        )

    def inputs(self, images: Tensor) -> Tensor:
        """Ink between 0 and 1, [B, 1, 8, 8]."""
        return images.unsqueeze(1).float() / (INK - 1)


@lru_cache
def _split(split: str) -> tuple[Tensor, Tensor]:
    """Images [count, 8, 8] of whole grey levels and labels [count] of a split."""
    images, labels = _load()
    order = torch.from_numpy(generator("digits split", 0).permutation(len(labels)))
    start = 0
    for name, count in SHARES.items():
        rows = order[start : start + count]
        if name == split:
            break
        start += count
    return images[rows], labels[rows]


def _load() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits tasks read scikit-learn's images: pip install 'efficient-attn[data]'"
        ) from error
    data = load_digits()
    return torch.from_numpy(data.images.astype(np.int64)), torch.from_numpy(
        data.target.astype(np.int64)
    )
