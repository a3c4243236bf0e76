"""Swin: an image as a hierarchy of ever fewer and wider tokens, attention within windows.

Source: Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows"
(2021), section 3 and table 7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from einops import rearrange, reduce
from torch import Tensor, nn

from efficient_attn.attention import MultiHeadAttention, OptionError
from efficient_attn.attention.errors import as_sides, require_choice, require_int
from efficient_attn.nn.block import ResidualBlock, StochasticDepth
from efficient_attn.nn.choice import Variant, VariantOptions, attention_at, variant_at
from efficient_attn.nn.feedforward import Activation
from efficient_attn.nn.positions import make_positions
from efficient_attn.nn.saving import Saved
from efficient_attn.nn.stack import tie_cores

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)},
    "small": {"embed_dim": 96, "depths": (2, 2, 18, 2), "num_heads": (3, 6, 12, 24)},
    "base": {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)},
    "large": {"embed_dim": 192, "depths": (2, 2, 18, 2), "num_heads": (6, 12, 24, 48)},
}
"""Of the paper: section 3.3 and table 7."""

WINDOWS = {"window": 7, "relative_bias": True}
"""Options of shifted_window unless others are given."""


class SwinTransformer(Saved):
    """One label for an image of any size: patches, stages, norm, mean over tokens, linear.

    num_classes: number of labels; None gives the pooled features instead.
    embed_dim: C, width of the first stage; each further one has half the rows and columns and
        twice the width. depths, num_heads: blocks and heads of each stage (see `preset`).
    patch_size: pixels of a token along either side. in_channels: of the image.
    mlp_ratio: width of the feed-forward over that of the stage.
    dropout: after patches, attention and feed-forward; attention_dropout: on the weights;
    drop_path: stochastic depth (Huang et al. 2016) of the last block, from 0 growing with depth.
    variant, variant_options: shifted_window with `WINDOWS` and every second block shifted, or any
        noncausal variant in its place, for comparison; a list is repeated over a stage's depth.
    positions: "none", or absolute ones of every token ("sinusoidal", "learned"), for variants
        without a relative bias. They need all images to be of `image_size`, which otherwise only
        says the longest input (linformer).
    as_published: by the definition, a window sees image only. The published code lets it see the
        zeros that complete the last windows, and shifts along neither side where one is no longer
        than its window; weights trained so want True.

    Raises OptionError for what is out of range, UnsupportedAttention for a causal-only variant.
    """

    def __init__(
        self,
        num_classes: int | None,
        *,
        embed_dim: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        patch_size: int | tuple[int, int] = 4,
        in_channels: int = 3,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
        activation: str | Activation = "gelu",
        layer_norm_eps: float = 1e-5,
        variant: Variant = "shifted_window",
        variant_options: VariantOptions = None,
        positions: str = "none",
        image_size: int | tuple[int, int] = (224, 224),
        as_published: bool = False,
    ) -> None:
        _check_stages(embed_dim, depths, num_heads, mlp_ratio)
        require_choice("as_published", as_published, [True, False])
        patch = as_sides("patch_size", patch_size, low=1)
        height, width = as_sides("image_size", image_size, low=1)
        super().__init__()
        self.grid = (-(-height // patch[0]), -(-width // patch[1]))
        self.embed = PatchEmbedding(in_channels, embed_dim, patch)
        self.positions: nn.Module | None = None
        if positions != "none":
            self.positions = make_positions(positions, self.grid[0] * self.grid[1], embed_dim)
        self.dropout = nn.Dropout(dropout)
        last, blocks_before = StochasticDepth(drop_path).p, max(sum(depths) - 1, 1)
        rates = (last * place / blocks_before for place in range(sum(depths)))
        self.stages, self.merging = nn.ModuleList(), nn.ModuleList()
        grid, dim = self.grid, embed_dim
        for stage, (depth, heads) in enumerate(zip(depths, num_heads, strict=True)):
            if stage:
                self.merging.append(PatchMerging(dim))
                grid, dim = ((grid[0] + 1) // 2, (grid[1] + 1) // 2), 2 * dim
            blocks = [
                SwinBlock(
                    dim,
                    heads,
                    int(mlp_ratio * dim),
                    grid=grid,
                    depth=place,
                    dropout=dropout,
                    attention_dropout=attention_dropout,
                    drop_path=next(rates),
                    activation=activation,
                    layer_norm_eps=layer_norm_eps,
                    variant=variant,
                    variant_options=variant_options,
                    as_published=as_published,
                )
                for place in range(depth)
            ]
            tie_cores(nn.ModuleList(blocks), "self_attn")
            self.stages.append(nn.Sequential(*blocks))
        self.norm = nn.LayerNorm(dim, eps=layer_norm_eps)
        self.head = nn.Identity() if num_classes is None else nn.Linear(dim, num_classes)
        self._initialise()

    @classmethod
    def preset(cls, name: str, num_classes: int | None, **settings: Any) -> SwinTransformer:
        """One of the four published sizes: tiny, small, base or large; settings as above."""
        require_choice("name", name, PRESETS)
        return cls(num_classes, **{**PRESETS[name], **settings})

    def features(self, images: Tensor) -> Tensor:
        """[B, in_channels, height, width] to the normed map of the last stage, [B, h, w, D]."""
        x = self.embed(images)
        if self.positions is not None:
            x = self._place(x)
        x = self.dropout(x)
        for merge, stage in zip([nn.Identity(), *self.merging], self.stages, strict=True):
            x = stage(merge(x))
        return self.norm(x)

    def forward(self, images: Tensor) -> Tensor:
        """[B, in_channels, height, width] to [B, num_classes]."""
        return self.head(reduce(self.features(images), "b h w d -> b d", "mean"))

    def _place(self, x: Tensor) -> Tensor:
        grid = (x.shape[1], x.shape[2])
        if grid != self.grid:
            raise ValueError(
                f"absolute positions stand on the {self.grid[0]}×{self.grid[1]} patches of "
                f"image_size, and this image has {grid[0]}×{grid[1]}; build the model for it, or "
                "with positions='none'"
            )
        assert self.positions is not None
        return _on_sequence(self.positions, x)

    def _initialise(self) -> None:
        """As published; what a variant draws for itself stays."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, MultiHeadAttention) and module.in_proj_weight is not None:
                nn.init.trunc_normal_(module.in_proj_weight, std=0.02)


class PatchEmbedding(nn.Module):
    """Patches of an image as tokens; zeros complete the last ones."""

    def __init__(self, in_channels: int, dim: int, patch_size: tuple[int, int]) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.projection = nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(dim)

    def forward(self, images: Tensor) -> Tensor:
        """[B, in_channels, height, width] to [B, h, w, dim]."""
        if images.dim() != 4 or images.shape[1] != self.projection.in_channels:
            raise ValueError(
                f"images have shape {tuple(images.shape)}, expected "
                f"[batch, {self.projection.in_channels}, height, width]"
            )
        below, right = (
            -side % patch for side, patch in zip(images.shape[2:], self.patch_size, strict=True)
        )
        patches = self.projection(F.pad(images, (0, right, 0, below)))
        return self.norm(rearrange(patches, "b d h w -> b h w d"))


class PatchMerging(nn.Module):
    """Each 2×2 tokens become one of twice the width; zeros complete an odd side."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, h, w, dim] to [B, ⌈h/2⌉, ⌈w/2⌉, 2·dim]."""
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        x = rearrange(x, "b (h i) (w j) d -> b h w (j i d)", i=2, j=2)
        return self.reduction(self.norm(x))


class SwinBlock(ResidualBlock):
    """Attention on the map, then feed-forward, each behind a norm and beside a residual.

    grid: the largest map, for variants that need to know it; depth: place in the stage, every
    second one is shifted. The other arguments are those of `SwinTransformer`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dim_feedforward: int,
        *,
        grid: tuple[int, int],
        depth: int = 0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
        activation: str | Activation = "gelu",
        layer_norm_eps: float = 1e-5,
        variant: Variant = "shifted_window",
        variant_options: VariantOptions = None,
        as_published: bool = False,
    ) -> None:
        super().__init__()
        name, options = variant_at(variant, variant_options, depth)
        if name == "shifted_window":
            options = WINDOWS | options | {"grid": grid}
        self.norm1 = nn.LayerNorm(dim, eps=layer_norm_eps)
        self.self_attn = attention_at(
            depth,
            name,
            options,
            max_len=grid[0] * grid[1],
            grid=grid,
            embed_dim=dim,
            num_heads=num_heads,
            dropout=attention_dropout,
        )
        self.norm2 = nn.LayerNorm(dim, eps=layer_norm_eps)
        self._add_feed_forward(dim, dim_feedforward, dropout, activation, True, {})
        self.drop_path = StochasticDepth(drop_path)
        self.windows: tuple[int, int] | None = None
        if as_published and name == "shifted_window":
            self.windows = self.self_attn.core.options.windows

    def forward(self, x: Tensor) -> Tensor:
        """[B, h, w, dim] to [B, h, w, dim]."""
        attend = self._attend if self.windows is None else self._attend_among_zeros
        x = x + self.drop_path(self.dropout(attend(self.norm1(x))))
        return x + self.drop_path(self.dropout(self._widen(self.norm2(x))))

    def _attend(self, x: Tensor) -> Tensor:
        grid = (x.shape[1], x.shape[2])
        return _on_sequence(lambda tokens: self.self_attn(tokens, grid=grid)[0], x)

    def _attend_among_zeros(self, x: Tensor) -> Tensor:
        """As published: whole windows of tokens and zeros, unshifted where one is all there is."""
        assert self.windows is not None
        (B, height, width, _), (rows, columns) = x.shape, self.windows
        x = F.pad(x, (0, 0, 0, -width % columns, 0, -height % rows))
        if height <= rows or width <= columns:
            # A grid of one window has nowhere to shift to.
            parts = rearrange(x, "b (m h) (n w) d -> (b m n) h w d", h=rows, w=columns)
            out = rearrange(
                self._attend(parts), "(b m n) h w d -> b (m h) (n w) d", b=B, m=x.shape[1] // rows
            )
        else:
            out = self._attend(x)
        return out[:, :height, :width]


def _on_sequence(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` of [B, N, D] applied to a map [B, h, w, D], row after row."""
    return function(x.flatten(1, 2)).view(x.shape)


def _check_stages(
    embed_dim: int, depths: Sequence[int], num_heads: Sequence[int], mlp_ratio: float
) -> None:
    require_int("embed_dim", embed_dim, low=1)
    if not depths or len(depths) != len(num_heads):
        raise OptionError(
            f"depths={tuple(depths)!r} and num_heads={tuple(num_heads)!r}: allowed is one number "
            "of each per stage, at least one stage"
        )
    if not mlp_ratio * embed_dim >= 1:
        raise OptionError(f"mlp_ratio={mlp_ratio!r}: allowed is at least 1/{embed_dim}")
    for stage, (depth, heads) in enumerate(zip(depths, num_heads, strict=True)):
        require_int(f"depths[{stage}]", depth, low=1)
        require_int(f"num_heads[{stage}]", heads, low=1)
