"""Transformer encoder with any attention variant; the twin of torch.nn's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from efficient_attn.attention.errors import require_int
from efficient_attn.nn.block import ResidualBlock, StochasticDepth, layer_arguments_in, make_norm
from efficient_attn.nn.choice import Variant, VariantOptions, attention_at
from efficient_attn.nn.feedforward import (
    Activation,
    ShortConvolution,
    require_batch_first,
)
from efficient_attn.nn.stack import LayerStack, recognise_causal, tie_cores
from efficient_attn.nn.state import DecodingState


class TransformerEncoderLayer(ResidualBlock):
    """Self-attention and feed-forward, each with residual and layer norm.

    Arguments, forward and state dict are those of ``torch.nn.TransformerEncoderLayer`` (Vaswani
    et al. 2017, figure 1; norm_first: Xiong et al. 2020), batch first always. Beyond them:

    variant, variant_options: attention and its options; a list of variants is repeated over the
        depth of a stack (see `efficient_attn.nn.choice.variant_at`). A layer on its own is the
        one at depth 0.
    max_len: longest input, for variants that need to know it (linformer).
    grid: (h, w) of tokens that stand row-major on an image, for variants that use it.
    short_conv: width of a causal depthwise convolution before attention; 0 is none.
    activation: also "swiglu" (Shazeer 2020): linear1 then holds gate and value, 2·dim_feedforward
        rows, so that two thirds of the width give the parameters of the other activations.
    positions: None, "rotary" or "alibi", within self-attention.
    norm: "layer" or "rms" (without a bias).
    drop_path: probability in training that a sample skips a sublayer; in a stack, of the last
        layer (`efficient_attn.nn.block.StochasticDepth`).

    Raises ValueError for ``batch_first=False``, UnsupportedAttention for what the variant cannot.
    """

    short_conv: ShortConvolution

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        variant: Variant = "full",
        variant_options: VariantOptions = None,
        max_len: int | None = None,
        grid: tuple[int, int] | None = None,
        short_conv: int = 0,
        positions: str | None = None,
        norm: str = "layer",
        drop_path: float = 0.0,
        depth: int = 0,
    ) -> None:
        arguments = layer_arguments_in(locals())
        require_batch_first(batch_first)
        require_int("short_conv", short_conv, low=0)
        super().__init__()
        self._arguments = arguments
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = attention_at(
            depth,
            variant,
            variant_options,
            max_len=max_len,
            grid=grid,
            embed_dim=d_model,
            num_heads=nhead,
            dropout=dropout,
            bias=bias,
            positions=positions,
            **where,
        )
        if short_conv:
            self.short_conv = ShortConvolution(d_model, short_conv, **where)
        self._add_feed_forward(d_model, dim_feedforward, dropout, activation, bias, where)
        self.norm_first = norm_first
        self.norm1 = make_norm(norm, d_model, layer_norm_eps, bias, **where)
        self.norm2 = make_norm(norm, d_model, layer_norm_eps, bias, **where)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.drop_path = StochasticDepth(drop_path)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """[B, N, d_model] to [B, N, d_model].

        src_mask: [N, N] or [B·H, N, N], True = ignore, or float added to the scores.
        src_key_padding_mask: [B, N], True = ignore.
        is_causal: no token sees a later one, whether or not `src_mask` says so too.
        """
        read = self._enter(self.norm1, src)
        return self._finish(src, self._attend(read, src_mask, src_key_padding_mask, is_causal))

    def init_state(self, batch: int) -> DecodingState:
        """State for `step` before the first token of `batch` sequences.

        UnsupportedAttention for a variant that cannot decode.
        """
        attention = self.self_attn.init_state(batch)
        if not hasattr(self, "short_conv"):
            return DecodingState((attention,))
        return DecodingState((attention, self.short_conv.init_state(batch)))

    def step(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """The next n tokens [B, n, d_model] -> output [B, n, d_model] and new state.

        In eval the outputs equal those of ``forward(x, is_causal=True)``, however x is split.
        """
        read = self._enter(self.norm1, x)
        attention, *rest = state.parts
        if rest:
            read, rest[0] = self.short_conv.step(read, rest[0])
        read, attention = self.self_attn.step(read, attention)
        return self._finish(x, self.dropout1(read)), DecodingState((attention, *rest))

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self._leave(self.norm1, x, attended)
        update = self.dropout2(self._widen(self._enter(self.norm2, x)))
        return self._leave(self.norm2, x, update)

    def _attend(
        self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        if hasattr(self, "short_conv"):
            x = self.short_conv(x, padding)
        x, _ = self.self_attn(
            x, x, x, key_padding_mask=padding, attn_mask=mask, is_causal=is_causal
        )
        return self.dropout1(x)


class TransformerEncoder(LayerStack):
    """A stack of encoder layers; arguments, forward and state dict of torch.nn's twin.

    encoder_layer: description of the layers. It is not itself part of the stack: every layer is
        built anew for its depth, with the variant that stands there.
    same_weights: layers start with copies of `encoder_layer`'s parameters, as in torch.nn; False
        lets each draw its own, which trains better.
    enable_nested_tensor, mask_check: choose a fast path of torch.nn's that does not exist here;
        accepted so that calls written for torch.nn work, without any effect on the output.
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: nn.Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
        *,
        same_weights: bool = True,
    ) -> None:
        super().__init__(encoder_layer, TransformerEncoderLayer, num_layers, norm, same_weights)
        tie_cores(self.layers, "self_attn")

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """[B, N, d_model] to [B, N, d_model]; masks as in the layer.

        is_causal: None (the default) looks whether `mask` is a causal one.
        """
        mask, causal = recognise_causal(mask, is_causal)
        x = src
        for layer in self.layers:
            x = layer(x, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=causal)
        return self._normed(x)

    def init_state(self, batch: int) -> DecodingState:
        """State for `step` before the first token of `batch` sequences."""
        return DecodingState(tuple(layer.init_state(batch) for layer in self.layers))
