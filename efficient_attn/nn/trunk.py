"""What all models here have in common: settings, positions, the encoder stack, the last norm."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor, nn

from efficient_attn.attention.errors import require_choice
from efficient_attn.nn.block import make_norm
from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.encoder import TransformerEncoder, TransformerEncoderLayer
from efficient_attn.nn.positions import POSITION_KINDS, LearnedPositions, make_positions
from efficient_attn.nn.state import DecodingState

WITHIN_ATTENTION = ("rotary", "alibi")
"""Positions that attention applies to its queries and keys; the others are added to tokens."""


class EncoderSettings(TypedDict, total=False):
    """Keywords that every model here takes.

    variant, variant_options: attention; a list of variants is repeated over depth.
    d_model (64), nhead (4), num_layers (2), dim_feedforward (4·d_model), dropout (0),
    norm_first (True), activation ("gelu"), norm ("layer"), drop_path (0): of the encoder's layers.
    positions: "sinusoidal", "learned" or "none", added to tokens; "rotary" or "alibi", within
    attention.
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
    norm: str
    drop_path: float
    positions: str
    short_conv: int


class Trunk(nn.Module):
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
        norm: str = "layer",
        drop_path: float = 0.0,
        positions: str = "learned",
        short_conv: int = 0,
    ) -> None:
        require_choice("positions", positions, [*POSITION_KINDS, *WITHIN_ATTENTION])
        super().__init__()
        within = positions in WITHIN_ATTENTION
        self.positions = make_positions("none" if within else positions, max_len, d_model)
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
            positions=positions if within else None,
            norm=norm,
            drop_path=drop_path,
        )
        # Post-norm layers end in a norm already.
        last = make_norm(norm, d_model, eps=1e-5) if norm_first else None
        self.encoder = TransformerEncoder(layer, num_layers, last, same_weights=False)

    def require_length(self, length: int) -> None:
        """ValueError where there are no positions for so many tokens."""
        if isinstance(self.positions, LearnedPositions) and length > len(self.positions.weight):
            raise ValueError(
                f"{length} tokens are more than the {len(self.positions.weight)} learned "
                "positions; shorten prompts or max_new_tokens, or build the model with "
                f"max_len={length} or more, or with positions='rotary' or 'sinusoidal'"
            )

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        return self.encoder(
            self.positions(x), src_key_padding_mask=key_padding_mask, is_causal=is_causal
        )

    def init_state(self, batch: int) -> DecodingState:
        return self.encoder.init_state(batch)

    def step(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """The next n embedded tokens [B, n, D] to features [B, n, D] and new state."""
        return self.encoder.step(self.positions(x, state.position), state)


def initialise(embed: nn.Module, settings: EncoderSettings) -> None:
    """Draw an embedding on the scale of the positions added to it, so that neither drowns."""
    std = 1.0 if settings.get("positions") == "sinusoidal" else 0.02
    for name, parameter in embed.named_parameters():
        if name == "bias":
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=std)
