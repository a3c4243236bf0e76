"""Encoder and decoder together; the twin of ``torch.nn.Transformer``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from efficient_attn.nn.block import make_norm
from efficient_attn.nn.choice import Variant, VariantOptions, decoder_choice
from efficient_attn.nn.decoder import TransformerDecoder, TransformerDecoderLayer
from efficient_attn.nn.encoder import TransformerEncoder, TransformerEncoderLayer
from efficient_attn.nn.feedforward import Activation
from efficient_attn.nn.saving import Saved


class Transformer(Saved):
    """A decoder that attends to what an encoder makes of the source.

    Arguments, forward and state dict are those of ``torch.nn.Transformer`` (Vaswani et al. 2017,
    figure 1), batch first always. Beyond them:

    variant, variant_options: self-attention of the encoder, and of the decoder unless
        `decoder_variant` (with decoder_variant_options) names another, which a variant that cannot
        be causal needs; a list of variants is repeated over depth.
    cross_variant, cross_variant_options: the decoder's attention to the memory.
    max_len: longest source and target, for variants that need to know it.
    positions, norm, drop_path, activation="swiglu": as in `TransformerEncoderLayer`.

    Raises what the layers raise: ValueError for ``batch_first=False``, UnsupportedAttention for
    what a variant cannot.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = F.relu,
        custom_encoder: nn.Module | None = None,
        custom_decoder: nn.Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        variant: Variant = "full",
        variant_options: VariantOptions = None,
        decoder_variant: Variant | None = None,
        decoder_variant_options: VariantOptions = None,
        cross_variant: Variant = "full",
        cross_variant_options: VariantOptions = None,
        max_len: int | None = None,
        positions: str | None = None,
        norm: str = "layer",
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        shared: dict[str, Any] = {
            "d_model": d_model,
            "nhead": nhead,
            "dim_feedforward": dim_feedforward,
            "dropout": dropout,
            "activation": activation,
            "layer_norm_eps": layer_norm_eps,
            "batch_first": batch_first,
            "norm_first": norm_first,
            "bias": bias,
            "max_len": max_len,
            "positions": positions,
            "norm": norm,
            "drop_path": drop_path,
            **where,
        }

        def last_norm() -> nn.Module:
            return make_norm(norm, d_model, layer_norm_eps, bias, **where)

        encoder, decoder = custom_encoder, custom_decoder
        if encoder is None:
            layer = TransformerEncoderLayer(
                **shared, variant=variant, variant_options=variant_options
            )
            encoder = TransformerEncoder(layer, num_encoder_layers, last_norm())
        if decoder is None:
            decoder_variant, decoder_variant_options = decoder_choice(
                decoder_variant, decoder_variant_options, variant, variant_options
            )
            decoder_layer = TransformerDecoderLayer(
                **shared,
                variant=decoder_variant,
                variant_options=decoder_variant_options,
                cross_variant=cross_variant,
                cross_variant_options=cross_variant_options,
                memory_max_len=max_len,
            )
            decoder = TransformerDecoder(decoder_layer, num_decoder_layers, last_norm())
        self.encoder, self.decoder = encoder, decoder
        self.d_model, self.nhead, self.batch_first = d_model, nhead, True
        self._reset_parameters()

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Source [B, M, d_model] and target [B, N, d_model] to [B, N, d_model].

        Masks: True = ignore, float ones are added to the scores; `src_mask` [M, M], `tgt_mask`
        [N, N], `memory_mask` [N, M], padding of source and memory [B, M], of the target [B, N].
        src_is_causal, tgt_is_causal: None looks whether the mask is a causal one.
        """
        memory = self.encoder(
            src,
            mask=src_mask,
            src_key_padding_mask=src_key_padding_mask,
            is_causal=src_is_causal,
        )
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The causal mask [sz, sz] to be added to scores: −inf above the diagonal, else 0."""
        return torch.full((sz, sz), float("-inf"), device=device, dtype=dtype).triu(1)

    def _reset_parameters(self) -> None:
        """Draw matrices anew, as torch.nn does; a variant's own parameters stay as drawn."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1 and ".core." not in name:
                nn.init.xavier_uniform_(parameter)
