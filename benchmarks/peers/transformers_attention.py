"""transformers (Hugging Face): the attention modules of Longformer, Swin and others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efficient_attn.attention import Capabilities

from .base import ModulePeer, PeerOptions, band, dense, linear, merge, peer, split
from .grids import GridPeer, groups
from .torch_fused import BandOptions

MODELS = "transformers.models"


@peer("transformers-longformer")
class Longformer(ModulePeer):
    """`LongformerSelfAttention` without global tokens, padded as `LongformerModel` does."""

    distribution = "transformers"
    counterpart = "local_window"
    differs = (
        "has no output projection: one is added; projections for global tokens are there and get "
        "no gradient"
    )
    Options = BandOptions
    capabilities = Capabilities(key_padding=True)

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        longformer = self.package(f"{MODELS}.longformer.modeling_longformer")
        width = heads * head_dim
        config = longformer.LongformerConfig(
            hidden_size=width,
            num_attention_heads=heads,
            attention_window=[2 * options.window],
            attention_probs_dropout_prob=0.0,
        )
        self.theirs = longformer.LongformerSelfAttention(config, 0).to(**place)
        self.out = nn.Linear(width, width, **place)

    def whole(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        B, N, _ = x.shape
        more = -N % (2 * self.options.window)
        if padding is None:
            padding = torch.zeros(B, N, dtype=torch.bool, device=x.device)
        masked = F.pad(padding, (0, more), value=True)
        (out,) = self.theirs(
            F.pad(x, (0, 0, 0, more)),
            attention_mask=masked * -10000.0,
            is_index_masked=masked,
            is_index_global_attn=torch.zeros_like(masked),
            is_global_attn=False,
        )
        return self.out(out[:, :N])

    def token_formula(self, x: Tensor, *, causal: bool) -> Tensor:
        theirs = self.theirs
        q, k, v = (
            split(linear(x, layer), self.heads)
            for layer in (theirs.query, theirs.key, theirs.value)
        )
        keep = band(x.shape[1], self.options.window, causal=False)
        return linear(merge(dense(q, k, v, keep)), self.out)


@peer("transformers-swin")
class Swin(GridPeer):
    """`SwinLayer`'s shifted windows, with its norms and feed-forward taken away."""

    distribution = "transformers"
    counterpart = "shifted_window"
    differs = (
        "adds its input to the output, which here is taken off again; fused without gradients, "
        "written out with them, whichever is faster"
    )
    capabilities = Capabilities()

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        swin = self.package(f"{MODELS}.swin.modeling_swin")
        self.config = config = swin.SwinConfig(
            window_size=options.window,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        grid = options.grid or (2 * options.window, 2 * options.window)
        layer = swin.SwinLayer(
            config, heads * head_dim, grid, heads, shift_size=options.window // 2
        )
        layer.layernorm_before = layer.layernorm_after = nn.Identity()
        layer.mlp = _Nothing()
        self.theirs = layer.to(**place)

    def whole(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        self.config._attn_implementation = "eager" if torch.is_grad_enabled() else "sdpa"
        return self.theirs(x, self.grid(x.shape[1]))[0] - x

    def token_formula(self, x: Tensor, *, causal: bool) -> Tensor:
        theirs, window = self.theirs.attention, self.options.window
        grid = self.grid(x.shape[1])
        projections = (theirs.q_proj, theirs.k_proj, theirs.v_proj)
        q, k, v = (split(linear(x, layer), self.heads) for layer in projections)
        one_window = theirs.relative_position_bias()[0]  # [H, window², window²]
        rows, columns = grid
        row, column = torch.arange(rows) % window, torch.arange(columns) % window
        # Rolled by half a window, tokens stand at these places of their windows.
        row, column = row.roll(window // 2), column.roll(window // 2)
        place = (row[:, None] * window + column[None, :]).flatten()
        bias = one_window[:, place[:, None], place[None, :]]
        keep = groups(grid, window, window // 2)
        return linear(merge(dense(q, k, v, keep, bias)), theirs.o_proj)


class _Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class LandmarkOptions(PeerOptions):
    """landmarks: means of segments; max_len: the one length it takes, None = the workload's."""

    landmarks: int = 64
    max_len: int | None = None


@peer("transformers-nystromformer")
class Nystromformer(ModulePeer):
    """`NystromformerSelfAttention` without convolution."""

    distribution = "transformers"
    differs = (
        "no variant of ours computes it; takes one length, a multiple of its landmarks; a "
        "maximum over the batch scales its inverse; no output projection: one is added"
    )
    Options = LandmarkOptions
    capabilities = Capabilities()

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        model = self.package(f"{MODELS}.nystromformer.modeling_nystromformer")
        width = heads * head_dim
        config = model.NystromformerConfig(
            hidden_size=width,
            num_attention_heads=heads,
            num_landmarks=options.landmarks,
            segment_means_seq_len=options.max_len or 256,
            attention_probs_dropout_prob=0.0,
        )
        self.theirs = model.NystromformerSelfAttention(config).to(**place)
        self.theirs.conv_kernel_size = None
        del self.theirs.conv
        self.out = nn.Linear(width, width, **place)

    @classmethod
    def resolve(
        cls, options: Any, *, max_len: int | None, grid: tuple[int, int] | None, layer: int | None
    ) -> Any:
        options = super().resolve(options, max_len=max_len, grid=grid, layer=layer)
        return options if options.max_len else replace(options, max_len=max_len)

    def whole(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        return self.out(self.theirs(x)[0])


@dataclass(frozen=True)
class BlockOptions(PeerOptions):
    """block: tokens of a block; random_blocks: further blocks that each block sees."""

    block: int = 64
    random_blocks: int = 3


@peer("transformers-bigbird")
class BigBird(ModulePeer):
    """`BigBirdBlockSparseAttention`: neighbours, first and last block, random blocks."""

    distribution = "transformers"
    differs = (
        "no variant of ours computes it; more than twelve whole blocks; which blocks are random "
        "is drawn from numpy's global generator in every call that trains; no output projection: "
        "one is added"
    )
    Options = BlockOptions
    capabilities = Capabilities()

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        model = self.package(f"{MODELS}.big_bird.modeling_big_bird")
        width = heads * head_dim
        config = model.BigBirdConfig(
            hidden_size=width,
            num_attention_heads=heads,
            block_size=options.block,
            num_random_blocks=options.random_blocks,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=2**16,
        )
        self.masks = model.BigBirdModel.create_masks_for_block_sparse_attn
        self.theirs = model.BigBirdBlockSparseAttention(config, seed=0).to(**place)
        self.out = nn.Linear(width, width, **place)

    def whole(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        exists = torch.ones(x.shape[:2], dtype=x.dtype, device=x.device)
        blocked, banded, rows, columns = self.masks(exists, self.options.block)
        out = self.theirs(x, banded, rows, columns, blocked, blocked)
        return self.out(out[0])
