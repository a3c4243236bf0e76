"""What tasks share that label images: pixels as a sequence of grey levels, or patches on a grid."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.models import ImageClassifier, SequenceClassifier
from efficient_attn.tasks.labelled import LabelledTask
from efficient_attn.tasks.task import Capability, ModelConfig, require_count


class ImageTask(LabelledTask):
    """Base of such tasks. Samples are square images of whole levels, [count, (C,) side, side].

    levels: of a pixel, 0 … levels − 1. channels: 1 for grey, whose samples have no C.
    grid_told: True: patches of `patch_size` pixels along either side are tokens on their grid,
        which variants that use one are told; False: the grey pixels row by row, each level a
        token, and where they stood is not told.
    """

    capability: ClassVar[Capability] = "2d"
    levels: int = 256
    channels: int = 1
    side: int
    patch_size: int = 1
    grid_told: bool

    def require_whole_tokens(self) -> None:
        """ValueError where patches do not divide the side, or a sequence is not of grey pixels."""
        for option in ("side", "patch_size"):
            require_count(f"{self.name}.{option}", getattr(self, option))
        if self.side % self.patch_size:
            raise ValueError(
                f"{self.name}.patch_size={self.patch_size} must divide side={self.side}"
            )
        if not self.grid_told and (self.channels > 1 or self.patch_size > 1):
            raise ValueError(
                f"{self.name}.grid_told={self.grid_told} reads grey pixels one by one: it needs "
                f"patch_size=1 (not {self.patch_size}) and no colour"
            )

    @property
    def grid(self) -> tuple[int, int] | None:
        rows = self.side // self.patch_size
        return (rows, rows) if self.grid_told else None

    @property
    def length(self) -> int:  # type: ignore[override]
        return (self.side // self.patch_size) ** 2

    def build_model(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> nn.Module:
        settings = self.settings(variant, options, model)
        if not self.grid_told:
            return SequenceClassifier(
                self.classes, max_len=self.length, vocab_size=self.levels, **settings
            )
        return ImageClassifier(
            self.classes,
            image_size=(self.side, self.side),
            patch_size=self.patch_size,
            in_channels=self.channels,
            **settings,
        )

    def inputs(self, samples: Tensor) -> Tensor:
        """Levels between 0 and 1, [B, C, side, side]; or as tokens, [B, side²]."""
        if not self.grid_told:
            return samples.flatten(1).long()
        images = samples if self.channels > 1 else samples.unsqueeze(1)
        return images.float() / (self.levels - 1)
