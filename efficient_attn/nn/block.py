"""What encoder and decoder layers share: residuals, norms and the feed-forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.attention.errors import require_choice, require_int, require_probability
from efficient_attn.nn.feedforward import Activation, activation_function, is_gated


class StochasticDepth(nn.Module):
    """Drops a sublayer's update for whole samples with probability `p`, in training only.

    Source: Huang et al., "Deep Networks with Stochastic Depth" (2016), section 3. Updates that stay
    are divided by 1 − p, so that the expectation is the update and eval needs no factor.
    """

    def __init__(self, p: float) -> None:
        require_probability("drop_path", p)
        super().__init__()
        self.p = float(p)

    def forward(self, update: Tensor) -> Tensor:
        """[B, ...] to [B, ...]."""
        if not self.training or self.p == 0:
            return update
        stays = update.new_empty(update.shape[0], *[1] * (update.dim() - 1)).bernoulli_(1 - self.p)
        return update * (stays / (1 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class ResidualBlock(nn.Module):
    """Sublayers with a residual each, normed before them (`norm_first`) or after the sum.

    `_arguments` are those that the layer was built with, all but its depth.
    """

    norm_first: bool
    drop_path: StochasticDepth
    activation: Activation
    _arguments: dict[str, Any]

    def at_depth(self, depth: int, num_layers: int) -> nn.Module:
        """A new layer of the same description, as it stands at `depth` of so many layers.

        `drop_path` grows linearly to its value at the last layer (Huang et al. 2016, section 3).
        """
        drop_path = self.drop_path.p * (depth + 1) / num_layers
        return type(self)(**{**self._arguments, "drop_path": drop_path}, depth=depth)

    def _add_feed_forward(
        self,
        d_model: int,
        dim_feedforward: int,
        dropout: float,
        activation: str | Activation,
        bias: bool,
        where: dict[str, Any],
    ) -> None:
        require_int("dim_feedforward", dim_feedforward, low=1)
        self.activation = activation_function(activation)
        rows = 2 * dim_feedforward if is_gated(activation) else dim_feedforward
        self.linear1 = nn.Linear(d_model, rows, bias=bias, **where)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=bias, **where)

    def _enter(self, norm: nn.Module, x: Tensor) -> Tensor:
        """What a sublayer reads of x [B, N, D]."""
        return norm(x) if self.norm_first else x

    def _leave(self, norm: nn.Module, x: Tensor, update: Tensor) -> Tensor:
        """x [B, N, D] with what the sublayer made of it."""
        x = x + self.drop_path(update)
        return x if self.norm_first else norm(x)

    def _widen(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


def layer_arguments_in(scope: dict[str, Any]) -> dict[str, Any]:
    """Of the `locals()` at the head of a layer's __init__, the arguments but for its depth."""
    return {
        name: value for name, value in scope.items() if name not in ("self", "depth", "__class__")
    }


def make_norm(
    norm: str,
    d_model: int,
    eps: float,
    bias: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Layer norm ("layer") or the one without mean and bias ("rms").

    Source of "rms": Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
    """
    require_choice("norm", norm, ["layer", "rms"])
    if norm == "rms":
        return nn.RMSNorm(d_model, eps=eps, device=device, dtype=dtype)
    return nn.LayerNorm(d_model, eps=eps, bias=bias, device=device, dtype=dtype)
