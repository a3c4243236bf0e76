"""What all models here have in common: positions, the encoder stack, the last norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from efficient_attn.attention.errors import require_int
from efficient_attn.nn.encoder import TransformerEncoder, TransformerEncoderLayer
from efficient_attn.nn.positions import LearnedPositions
from efficient_attn.nn.settings import (
    EncoderSettings,
    added_positions,
    completed,
    last_norm,
    layer_arguments,
)
from efficient_attn.nn.state import DecodingState

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Trunk(nn.Module):
    """Positions, encoder stack and last norm: embedded [B, N, D] to features [B, N, D].

    max_len: longest input. grid: (h, w) of tokens that stand row-major on an image. settings: see
    `EncoderSettings`.
    """

    def __init__(
        self,
        max_len: int,
        grid: tuple[int, int] | None = None,
        **settings: Unpack[EncoderSettings],
    ) -> None:
        settings = completed(settings)
        require_int("max_len", max_len, low=1)
        super().__init__()
        self.positions = added_positions(settings, max_len)
        layer = TransformerEncoderLayer(
            **layer_arguments(settings),
            variant=settings["variant"],
            variant_options=settings["variant_options"],
            max_len=max_len,
            grid=grid,
            short_conv=settings["short_conv"],
        )
        self.encoder = TransformerEncoder(
            layer, settings["num_layers"], last_norm(settings), same_weights=False
        )

    def require_length(self, length: int) -> None:
        """ValueError where there are no positions for so many tokens."""
        if isinstance(self.positions, LearnedPositions):
            self.positions.require_length(length)

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Embedded [B, N, D], padding [B, N] (True = ignore) to features [B, N, D]."""
        return self.encoder(
            self.positions(x), src_key_padding_mask=key_padding_mask, is_causal=is_causal
        )

    def init_state(self, batch: int) -> DecodingState:
        """State for `step` before the first token of `batch` sequences."""
        return self.encoder.init_state(batch)

    def step(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """The next n embedded tokens [B, n, D] to features [B, n, D] and new state."""
        return self.encoder.step(self.positions(x, state.position), state)
