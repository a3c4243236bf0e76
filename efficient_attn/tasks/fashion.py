"""Fashion-MNIST: ten kinds of clothes, 28×28 pixels, as patches (ViT, Swin) or pixel by pixel.

Data: Xiao et al., "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms" (2017); read from the files of Debian's package, nothing is downloaded.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.models import ImageClassifier
from efficient_attn.nn.swin import SwinTransformer
from efficient_attn.tasks.images import ImageTask
from efficient_attn.tasks.labelled import LabelledTask
from efficient_attn.tasks.task import Batch, Capability, ModelConfig, require_count

SIDE = 28
CLASSES = 10
FOLDER = "/usr/share/datasets/fashion-mnist"
HELD_OUT = 5000
"""The last of the 60 000 training images pick the learning rate."""
FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
ARCHITECTURES = ("vit", "swin")
IDX_BYTES = 8
"""The code of bytes among the types of numbers in an idx file."""


@dataclass(frozen=True)
class Fashion(LabelledTask):
    """The kind of a piece of clothing: 55 000 images to train, 5000 to pick, 10 000 to report.

    architecture: "vit", a stack of `model.num_layers` layers on learned positions; or "swin", two
        stages of half and of all `model.d_model`, `model.num_layers` blocks each, whose positions
        are those of its attention.
    patch_size: pixels of a token along either side, a divisor of 28.
    folder: of the four idx files, as gzip.
    """

    name: ClassVar[str] = "fashion"
    capability: ClassVar[Capability] = "2d"
    classes: ClassVar[int] = CLASSES

    architecture: str = "vit"
    patch_size: int = 4
    folder: str = FOLDER

    def __post_init__(self) -> None:
        require_count("fashion.patch_size", self.patch_size)
        if SIDE % self.patch_size:
            raise ValueError(f"fashion.patch_size={self.patch_size} must divide {SIDE}")
        if self.architecture not in ARCHITECTURES:
            raise ValueError(
                f"fashion.architecture={self.architecture!r} is not one of "
                f"{', '.join(ARCHITECTURES)}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        return (SIDE // self.patch_size, SIDE // self.patch_size)

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.grid[0] * self.grid[1]

    def build_model(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> nn.Module:
        if self.architecture == "swin":
            return self._swin(variant, options, model)
        settings = self.settings(variant, options, model)
        return ImageClassifier(
            CLASSES,
            image_size=(SIDE, SIDE),
            patch_size=self.patch_size,
            in_channels=1,
            **settings,
        )

    def samples(self, split: str) -> Batch:
        return _samples(self.folder, split)

    def inputs(self, samples: Tensor) -> Tensor:
        """Grey between −1 and 1, [B, 1, 28, 28]."""
        return samples.unsqueeze(1).float() / 127.5 - 1

    def provenance(self) -> dict[str, Any]:
        return _provenance(self.folder)

    def _swin(self, variant: Variant, options: VariantOptions, model: ModelConfig) -> nn.Module:
        if model.d_model % 2 or model.nhead % 2:
            raise ValueError(
                f"model.d_model={model.d_model} and model.nhead={model.nhead} must be even for "
                "architecture swin, whose first stage has half of each"
            )
        if model.short_conv:
            raise ValueError(
                f"model.short_conv={model.short_conv}: architecture swin has no short convolution"
            )
        return SwinTransformer(
            CLASSES,
            embed_dim=model.d_model // 2,
            depths=(model.num_layers, model.num_layers),
            num_heads=(model.nhead // 2, model.nhead),
            patch_size=self.patch_size,
            in_channels=1,
            mlp_ratio=(model.dim_feedforward or 4 * model.d_model) / model.d_model,
            variant=variant,
            variant_options=options,
            positions=model.positions or "none",
            image_size=(SIDE, SIDE),
            dropout=model.dropout,
            attention_dropout=model.dropout,
        )


@dataclass(frozen=True)
class FashionPixels(ImageTask):
    """The same images as a sequence, the grey levels row by row; where they stood is not told.

    Every pixel a token on its grid is `fashion` with patch_size=1.

    shrink: 1: every pixel a token, 784; 2, 4, 7 or 14: every token is the mean grey of
        shrink×shrink pixels, rounded; with 2 there are 196.
    """

    name: ClassVar[str] = "fashion_pixels"
    classes: ClassVar[int] = CLASSES
    grid_told: ClassVar[bool] = False  # type: ignore[misc]

    shrink: int = 2
    folder: str = FOLDER

    def __post_init__(self) -> None:
        require_count("fashion_pixels.shrink", self.shrink)
        if SIDE % self.shrink:
            raise ValueError(f"fashion_pixels.shrink={self.shrink} must divide {SIDE}")

    @property
    def side(self) -> int:  # type: ignore[override]
        return SIDE // self.shrink

    def samples(self, split: str) -> Batch:
        return _samples(self.folder, split)

    def inputs(self, samples: Tensor) -> Tensor:
        if self.shrink > 1:
            samples = F.avg_pool2d(samples.float().unsqueeze(1), self.shrink).round()
        return super().inputs(samples)

    def provenance(self) -> dict[str, Any]:
        return _provenance(self.folder)


def read_idx(path: Path) -> np.ndarray:
    """The bytes of a gzipped idx file, in the shape that it says.

    Format: two zeros, the type of number (8: bytes, the only one read here), the number of
    dimensions, each of them as 4 bytes, big end first; then the numbers.
    """
    content = _unpacked(path)
    if content[:3] != bytes([0, 0, IDX_BYTES]):
        raise ValueError(f"{path} is not an idx file of bytes")
    start = 4 + 4 * content[3] if len(content) > 3 else 4
    if len(content) < start:
        raise ValueError(f"{path} ends after {len(content)} bytes, within the sizes it says")
    shape = np.frombuffer(content[4:start], ">u4").astype(int)
    numbers = np.frombuffer(content[start:], np.uint8)
    if numbers.size != shape.prod():
        raise ValueError(f"{path} holds {numbers.size} bytes, and says {tuple(shape.tolist())}")
    return numbers.reshape(shape)


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or no gzip file: {error}; install it anew") from error


def _samples(folder: str, split: str) -> Batch:
    images, labels = _read_pair(folder, "test" if split == "test" else "train")
    if split == "test":
        return images, labels
    part = slice(-HELD_OUT, None) if split == "validation" else slice(None, -HELD_OUT)
    return images[part], labels[part]


def _provenance(folder: str) -> dict[str, Any]:
    """A hash of the files' contents."""
    mark = hashlib.sha256()
    for name in sum(FILES.values(), ()):
        mark.update(_path(folder, name).read_bytes())
    return {"sha256": mark.hexdigest()}


@lru_cache(maxsize=4)
def _read_pair(folder: str, part: str) -> Batch:
    """Images [count, 28, 28] as bytes and labels [count]."""
    images, labels = (read_idx(_path(folder, name)) for name in FILES[part])
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))


def _path(folder: str, name: str) -> Path:
    path = Path(folder) / name
    if not path.exists():
        raise FileNotFoundError(
            f"task.folder={folder} has no {name}: apt-get install dataset-fashion-mnist brings "
            "Fashion-MNIST to /usr/share/datasets/fashion-mnist, or give the folder of its files"
        )
    return path
