"""Transformer decoder with any attention variant; the twin of torch.nn's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from efficient_attn.attention import variant_class
from efficient_attn.nn.block import ResidualBlock, StochasticDepth, layer_arguments_in, make_norm
from efficient_attn.nn.choice import Variant, VariantOptions, attention_at, variant_cycle
from efficient_attn.nn.feedforward import Activation, require_batch_first
from efficient_attn.nn.stack import LayerStack, recognise_causal, tie_cores
from efficient_attn.nn.state import DecodingState


class TransformerDecoderLayer(ResidualBlock):
    """Self-attention, cross-attention to a memory, and feed-forward.

    Arguments, forward and state dict are those of ``torch.nn.TransformerDecoderLayer`` (Vaswani
    et al. 2017, figure 1), batch first always. Beyond them:

    variant, variant_options: self-attention; a list of variants is repeated over depth.
    cross_variant, cross_variant_options: the same for the attention to the memory.
    max_len, memory_max_len: longest target and memory, for variants that need to know them.
    activation="swiglu", positions, norm, drop_path: as in `TransformerEncoderLayer`; positions
        count along the target, within self-attention.

    Raises ValueError for ``batch_first=False``; UnsupportedAttention, here, when `cross_variant`
    cannot attend from one sequence to another.
    """

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
        cross_variant: Variant = "full",
        cross_variant_options: VariantOptions = None,
        max_len: int | None = None,
        memory_max_len: int | None = None,
        positions: str | None = None,
        norm: str = "layer",
        drop_path: float = 0.0,
        depth: int = 0,
    ) -> None:
        arguments = layer_arguments_in(locals())
        require_batch_first(batch_first)
        for cross in dict.fromkeys(variant_cycle(cross_variant)):
            variant_class(cross).capabilities.require(cross, causal=False, cross=True)
        super().__init__()
        self._arguments = arguments
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        shared: dict[str, Any] = {
            "embed_dim": d_model,
            "num_heads": nhead,
            "dropout": dropout,
            "bias": bias,
            **where,
        }
        self.self_attn = attention_at(
            depth,
            variant,
            variant_options,
            max_len=max_len,
            positions=positions,
            **shared,
        )
        self.multihead_attn = attention_at(
            depth,
            cross_variant,
            cross_variant_options,
            max_len=memory_max_len,
            **shared,
        )
        self._add_feed_forward(d_model, dim_feedforward, dropout, activation, bias, where)
        self.norm_first = norm_first
        self.norm1 = make_norm(norm, d_model, layer_norm_eps, bias, **where)
        self.norm2 = make_norm(norm, d_model, layer_norm_eps, bias, **where)
        self.norm3 = make_norm(norm, d_model, layer_norm_eps, bias, **where)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.dropout3 = nn.Dropout(dropout)
        self.drop_path = StochasticDepth(drop_path)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Target [B, N, d_model] and memory [B, M, d_model] to [B, N, d_model].

        Masks: True = ignore, float ones are added to the scores; `tgt_mask` [N, N],
        `memory_mask` [N, M] (or with a leading B·H), padding [B, N] and [B, M].
        """
        own = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        other = (memory_mask, memory_key_padding_mask, memory_is_causal)
        x = self._leave(self.norm1, tgt, self._attend(self._enter(self.norm1, tgt), *own))
        read = self._enter(self.norm2, x)
        return self._finish(x, self._attend_memory(read, memory, *other))

    def init_state(
        self, memory: Tensor, memory_key_padding_mask: Tensor | None = None
    ) -> DecodingState:
        """State for `step` before the first target token; memory [B, M, d_model], padding [B, M].

        The memory's keys and values are projected here, once. UnsupportedAttention for a variant
        that cannot decode, or a cross_variant that attends only between equal lengths.
        """
        projected = self.multihead_attn.project_memory(memory, memory_key_padding_mask)
        return DecodingState((self.self_attn.init_state(memory.shape[0]), projected))

    def step(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """The next n target tokens [B, n, d_model] -> output [B, n, d_model] and new state.

        In eval the outputs equal those of ``forward(x, memory, tgt_is_causal=True)``, however x is
        split.
        """
        attention, memory = state.parts
        attended, attention = self.self_attn.step(self._enter(self.norm1, x), attention)
        x = self._leave(self.norm1, x, self.dropout1(attended))
        attended = self.multihead_attn.attend_memory(self._enter(self.norm2, x), memory)
        return self._finish(x, self.dropout2(attended)), DecodingState((attention, memory))

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self._leave(self.norm2, x, attended)
        update = self.dropout3(self._widen(self._enter(self.norm3, x)))
        return self._leave(self.norm3, x, update)

    def _attend(
        self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        x, _ = self.self_attn(
            x, x, x, key_padding_mask=padding, attn_mask=mask, is_causal=is_causal
        )
        return self.dropout1(x)

    def _attend_memory(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None,
        padding: Tensor | None,
        is_causal: bool,
    ) -> Tensor:
        x, _ = self.multihead_attn(
            x, memory, memory, key_padding_mask=padding, attn_mask=mask, is_causal=is_causal
        )
        return self.dropout2(x)


class TransformerDecoder(LayerStack):
    """A stack of decoder layers; arguments, forward and state dict of torch.nn's twin.

    decoder_layer: description of the layers, each of which is built anew for its depth.
    same_weights: layers start with copies of `decoder_layer`'s parameters, as in torch.nn; False
        lets each draw its own, which trains better.
    """

    def __init__(
        self,
        decoder_layer: TransformerDecoderLayer,
        num_layers: int,
        norm: nn.Module | None = None,
        *,
        same_weights: bool = True,
    ) -> None:
        super().__init__(decoder_layer, TransformerDecoderLayer, num_layers, norm, same_weights)
        tie_cores(self.layers, "self_attn")
        tie_cores(self.layers, "multihead_attn")

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Target [B, N, d_model] and memory [B, M, d_model] to [B, N, d_model].

        tgt_is_causal: None (the default) looks whether `tgt_mask` is a causal one.
        """
        tgt_mask, causal = recognise_causal(tgt_mask, tgt_is_causal)
        x = tgt
        for layer in self.layers:
            x = layer(
                x,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=causal,
                memory_is_causal=memory_is_causal,
            )
        return self._normed(x)

    def init_state(
        self, memory: Tensor, memory_key_padding_mask: Tensor | None = None
    ) -> DecodingState:
        """State for `step` before the first target token; memory [B, M, d_model], padding [B, M].

        Every layer projects the memory here, once.
        """
        return DecodingState(
            tuple(layer.init_state(memory, memory_key_padding_mask) for layer in self.layers)
        )
