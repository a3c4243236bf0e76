"""Small complete models around the encoder: sequence and image classifier, language model.

All take the same keywords (`EncoderSettings`), so that only attention differs between contestants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from efficient_attn.nn.choice import Variant, VariantOptions, require_causal
from efficient_attn.nn.encoder import TransformerEncoder, TransformerEncoderLayer
from efficient_attn.nn.positions import make_positions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class EncoderSettings(TypedDict, total=False):
    """Keywords that every model here takes.

    variant, variant_options: attention; a list of variants is repeated over depth.
    d_model (64), nhead (4), num_layers (2), dim_feedforward (4·d_model), dropout (0),
    norm_first (True): of the encoder. activation ("gelu").
    positions: "sinusoidal", "learned" or "none".
    short_conv (0): width of a causal depthwise convolution before each attention.
    """

    variant: Variant
    variant_options: VariantOptions
    d_model: int
    nhead: int
    num_layers: int
    dim_feedforward: int | None
    dropout: float
    norm_first: bool
    activation: str
    positions: str
    short_conv: int


class _Trunk(nn.Module):
    """Positions, encoder stack and last norm: embedded [B, N, D] to features [B, N, D]."""

    def __init__(
        self,
        max_len: int,
        grid: tuple[int, int] | None = None,
        *,
        variant: Variant = "full",
        variant_options: VariantOptions = None,
        d_model: int = 64,
        nhead: int = 4,
        num_layers: int = 2,
        dim_feedforward: int | None = None,
        dropout: float = 0.0,
        norm_first: bool = True,
        activation: str = "gelu",
        positions: str = "learned",
        short_conv: int = 0,
    ) -> None:
        super().__init__()
        self.positions = make_positions(positions, max_len, d_model)
        layer = TransformerEncoderLayer(
            d_model,
            nhead,
            dim_feedforward or 4 * d_model,
            dropout,
            activation,
            norm_first=norm_first,
            variant=variant,
            variant_options=variant_options,
            max_len=max_len,
            grid=grid,
            short_conv=short_conv,
        )
        # Post-norm layers end in a norm already.
        norm = nn.LayerNorm(d_model) if norm_first else None
        self.encoder = TransformerEncoder(layer, num_layers, norm, same_weights=False)

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        return self.encoder(
            self.positions(x), src_key_padding_mask=key_padding_mask, is_causal=is_causal
        )


class SequenceClassifier(nn.Module):
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
        super().__init__()
        d_model = settings.get("d_model", 64)
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
        _initialise(self.embed, settings)
        self.trunk = _Trunk(max_len, **settings)
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, inputs: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Tokens [B, N] or features [B, N, F], padding [B, N] (True = ignore) to [B, classes]."""
        x = self.trunk(self.embed(inputs), key_padding_mask)
        return self.head(masked_mean(x, key_padding_mask))


class ImageClassifier(nn.Module):
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
        height, width = image_size
        if patch_size < 1 or height % patch_size or width % patch_size:
            raise ValueError(
                f"patch_size={patch_size} must divide both sides of image_size={image_size}"
            )
        d_model = settings.get("d_model", 64)
        self.image_size = (height, width)
        self.grid = (height // patch_size, width // patch_size)
        self.embed = nn.Conv2d(in_channels, d_model, patch_size, stride=patch_size)
        _initialise(self.embed, settings)
        self.trunk = _Trunk(self.grid[0] * self.grid[1], self.grid, **settings)
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


class LanguageModel(nn.Module):
    """Logits of the next token at every position: causal encoder and linear.

    Raises UnsupportedAttention, when it is built, for a variant that cannot be causal.
    """

    def __init__(
        self, vocab_size: int, *, max_len: int, **settings: Unpack[EncoderSettings]
    ) -> None:
        require_causal(settings.get("variant", "full"))
        super().__init__()
        d_model = settings.get("d_model", 64)
        self.embed = nn.Embedding(vocab_size, d_model)
        _initialise(self.embed, settings)
        self.trunk = _Trunk(max_len, **settings)
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Token numbers [B, N], padding [B, N] (True = ignore) to logits [B, N, vocab_size]."""
        return self.head(self.trunk(self.embed(tokens), key_padding_mask, is_causal=True))


def _initialise(embed: nn.Module, settings: EncoderSettings) -> None:
    """Draw an embedding on the scale of the positions added to it, so that neither drowns."""
    std = 1.0 if settings.get("positions") == "sinusoidal" else 0.02
    for name, parameter in embed.named_parameters():
        if name == "bias":
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=std)


def masked_mean(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Mean over the unpadded tokens, [B, N, D] to [B, D]; zeros when there is none."""
    if key_padding_mask is None:
        return reduce(x, "b n d -> b d", "mean")
    padded = rearrange(key_padding_mask, "b n -> b n 1")
    count = torch.clamp((~padded).sum(1), min=1)
    return reduce(x.masked_fill(padded, 0.0), "b n d -> b d", "sum") / count
