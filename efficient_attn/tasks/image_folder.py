"""Images of your own: folders by class, CIFAR-10's files, a data set of Hugging Face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from efficient_attn.tasks.image_files import LabelledImages, read_images
from efficient_attn.tasks.images import ImageTask
from efficient_attn.tasks.task import Batch


@dataclass(frozen=True)
class ImageFolder(ImageTask):
    """The class of an image, as in the file layouts that others use.

    folder: what is in it says how it is read:
        CLASS/1.png: images by class, undivided; or train/CLASS/1.png, val/… and test/…, as
        torchvision's ImageFolder takes them one by one;
        data_batch_1.bin, …, test_batch.bin: CIFAR-10, binary version (its pickles are refused);
        dataset_dict.json or state.json: written by save_to_disk of Hugging Face's datasets, whose
        images and labels are in `image_column` and `label_column`.
        Where parts are missing they are held back by contents, see `read_images`.
    side: every image is cropped to a square and scaled to so many pixels. colour: else grey.
    patch_size: pixels of a token along either side, a divisor of `side`.
    grid_told: False: the grey pixels are a sequence, and where they stood is not told; the Long
        Range Arena's image task is CIFAR-10 with side=32, patch_size=1, grid_told=False.
    """

    name: ClassVar[str] = "image_folder"

    folder: str = "data/images"
    side: int = 32
    patch_size: int = 4
    colour: bool = False
    grid_told: bool = True
    image_column: str = "image"
    label_column: str = "label"

    def __post_init__(self) -> None:
        self.require_whole_tokens()

    @property
    def channels(self) -> int:  # type: ignore[override]
        return 3 if self.colour else 1

    @property
    def classes(self) -> int:  # type: ignore[override]
        return len(self._images.classes)

    def samples(self, split: str) -> Batch:
        images, labels = self._images.parts[split]
        return torch.from_numpy(images), torch.from_numpy(labels)

    def provenance(self) -> dict[str, Any]:
        """Names of the classes, images in each part, and a hash of all contents."""
        return {
            "classes": list(self._images.classes),
            "images": {part: len(labels) for part, (_, labels) in self._images.parts.items()},
            "sha256": self._images.sha256,
        }

    @property
    def _images(self) -> LabelledImages:
        return read_images(
            self.folder, self.side, self.colour, self.image_column, self.label_column
        )
