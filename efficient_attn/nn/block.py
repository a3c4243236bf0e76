"""What encoder and decoder layers share: residuals, norms and the feed-forward."""

from __future__ import annotations

from torch import Tensor, nn

from efficient_attn.nn.feedforward import Activation


class ResidualBlock(nn.Module):
    """Sublayers with a residual each, normed before them (`norm_first`) or after the sum."""

    norm_first: bool
    activation: Activation
    linear1: nn.Linear
    linear2: nn.Linear
    dropout: nn.Dropout

    def _enter(self, norm: nn.Module, x: Tensor) -> Tensor:
        """What a sublayer reads of x [B, N, D]."""
        return norm(x) if self.norm_first else x

    def _leave(self, norm: nn.Module, x: Tensor, update: Tensor) -> Tensor:
        """x [B, N, D] with what the sublayer made of it."""
        return x + update if self.norm_first else norm(x + update)

    def _widen(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))
