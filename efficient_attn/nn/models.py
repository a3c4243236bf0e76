"""Small complete models around the encoder: sequence and image classifier.

All take the same keywords (`EncoderSettings`), so that only attention differs between contestants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from einops import rearrange, reduce
from torch import Tensor, nn

from efficient_attn.attention.errors import as_pair, require_int
from efficient_attn.nn.saving import Saved
from efficient_attn.nn.settings import EncoderSettings, completed, initialise
from efficient_attn.nn.trunk import Trunk

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SequenceClassifier(Saved):
    """One label for a sequence of tokens or of feature vectors: encoder, mean over tokens, linear.

    num_classes: number of labels.
    vocab_size: inputs are token numbers [B, N]; or in_features: they are vectors [B, N, F].
    max_len: longest input. settings: see `EncoderSettings`.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        max_len: int,
        vocab_size: int | None = None,
        in_features: int | None = None,
        **settings: Unpack[EncoderSettings],
    ) -> None:
        settings = completed(settings)
        super().__init__()
        d_model = settings["d_model"]
        for option, size in (("vocab_size", vocab_size), ("in_features", in_features)):
            if size is not None:
                require_int(option, size, low=1)
        require_int("num_classes", num_classes, low=1)
        self.embed: nn.Module
        if vocab_size is not None and in_features is None:
            self.embed = nn.Embedding(vocab_size, d_model)
        elif in_features is not None and vocab_size is None:
            self.embed = nn.Linear(in_features, d_model)
        else:
            raise ValueError(
                "give vocab_size for inputs of token numbers, or in_features for inputs of "
                f"vectors, and not both: got vocab_size={vocab_size}, in_features={in_features}"
            )
        initialise(self.embed, settings)
        self.trunk = Trunk(max_len, **settings)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, inputs: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Tokens [B, N] or features [B, N, F], padding [B, N] (True = ignore) to [B, classes]."""
        x = self.trunk(self.embed(inputs), key_padding_mask)
        return self.head(masked_mean(x, key_padding_mask))


class ImageClassifier(Saved):
    """One label for an image: patches as tokens on a grid, encoder, mean over tokens, linear.

    Source: Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021), section 3.1, with mean
    pooling in place of the class token, so that every token stands on the grid.

    image_size: (height, width) in pixels, each a multiple of `patch_size`.
    The grid (height / patch, width / patch) reaches variants that use one (shifted_window).
    """

    def __init__(
        self,
        num_classes: int,
        *,
        image_size: tuple[int, int],
        patch_size: int = 4,
        in_channels: int = 3,
        **settings: Unpack[EncoderSettings],
    ) -> None:
        super().__init__()
        for option, size in (
            ("num_classes", num_classes),
            ("patch_size", patch_size),
            ("in_channels", in_channels),
        ):
            require_int(option, size, low=1)
        height, width = as_pair("image_size", image_size, low=1)
        if height % patch_size or width % patch_size:
            raise ValueError(
                f"patch_size={patch_size} must divide both sides of image_size={image_size}"
            )
        settings = completed(settings)
        d_model = settings["d_model"]
        self.image_size = (height, width)
        self.grid = (height // patch_size, width // patch_size)
        self.embed = nn.Conv2d(in_channels, d_model, patch_size, stride=patch_size)
        initialise(self.embed, settings)
        self.trunk = Trunk(self.grid[0] * self.grid[1], self.grid, **settings)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, height, width] to [B, classes]."""
        if tuple(images.shape[-2:]) != self.image_size:
            raise ValueError(
                f"images are {tuple(images.shape[-2:])}; this model was built for "
                f"image_size={self.image_size}"
            )
        x = rearrange(self.embed(images), "b d h w -> b (h w) d")
        return self.head(reduce(self.trunk(x), "b n d -> b d", "mean"))


def masked_mean(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Mean over the unpadded tokens, [B, N, D] to [B, D]; zeros when there is none."""
    if key_padding_mask is None:
        return reduce(x, "b n d -> b d", "mean")
    padded = rearrange(key_padding_mask, "b n -> b n 1")
    count = (~padded).sum(1).clamp(min=1)
    return reduce(x.masked_fill(padded, 0.0), "b n d -> b d", "sum") / count
