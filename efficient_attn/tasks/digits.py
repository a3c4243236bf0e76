"""Handwritten digits, 8×8 pixels or larger: one label, from a sequence or from a grid of pixels.

Data: "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998), 1797 images of the
test part as shipped with scikit-learn; nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from efficient_attn.tasks.images import ImageTask
from efficient_attn.tasks.task import Batch, generator, require_count

SIDE = 8
CLASSES = 10
INK = 17
"""Grey levels 0...16 of a pixel."""
SHARES = {"train": 1197, "validation": 300, "test": 300}


@dataclass(frozen=True)
class Digits(ImageTask):
    """The pixels row by row as tokens of 17 grey levels; where they stood is not told.

    scale: of the images: 1 is 8×8 pixels, 64 tokens; 2 is 256 tokens; 4 is 1024. Every pixel
        becomes scale×scale equal ones, so that an image says the same at every length.
    Fixed split: 1197 images to train, 300 to pick the learning rate, 300 to report.
    """

    name: ClassVar[str] = "digits"
    classes: ClassVar[int] = CLASSES
    levels: ClassVar[int] = INK  # type: ignore[misc]
    grid_told: ClassVar[bool] = False  # type: ignore[misc]

    scale: int = 1

    def __post_init__(self) -> None:
        require_count(f"{self.name}.scale", self.scale)

    @property
    def side(self) -> int:  # type: ignore[override]
        return SIDE * self.scale

    def samples(self, split: str) -> Batch:
        return _split(split)

    def inputs(self, samples: Tensor) -> Tensor:
        scaled = samples.repeat_interleave(self.scale, 1).repeat_interleave(self.scale, 2)
        return super().inputs(scaled)


@dataclass(frozen=True)
class DigitsGrid(Digits):
    """The same images, every pixel a token on its grid, told to variants that use one."""

    name: ClassVar[str] = "digits_grid"
    grid_told: ClassVar[bool] = True  # type: ignore[misc]


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
