"""Small parts of a layer: activations by name, and the short causal convolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from efficient_attn.attention.errors import OptionError

Activation = Callable[[Tensor], Tensor]


def swiglu(x: Tensor) -> Tensor:
    """SiLU of the first half of the last dimension times the second, [..., 2·F] to [..., F].

    Source: Shazeer, "GLU Variants Improve Transformer" (2020), section 2.
    """
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


ACTIVATIONS: dict[str, Activation] = {"relu": F.relu, "gelu": F.gelu, "swiglu": swiglu}


def activation_function(activation: str | Activation) -> Activation:
    """The function that `activation` names; a callable is taken as it is."""
    if callable(activation):
        return activation
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise OptionError(
            f"activation={activation!r} is not one of {', '.join(ACTIVATIONS)}, nor a callable"
        )
    return ACTIVATIONS[activation]


def is_gated(activation: str | Activation) -> bool:
    """Whether the activation reads two numbers for each that it gives."""
    return activation in ("swiglu", swiglu)


def require_batch_first(batch_first: bool) -> None:
    if not batch_first:
        raise ValueError(
            "batch_first=False is not supported: inputs are [batch, length, d_model]; "
            "pass batch_first=True and transpose the inputs of code that puts length first"
        )


class ShortConvolution(nn.Module):
    """Causal depthwise convolution over length: y[n] = x[n] + Σ_w weight[w] · x[n − w] + bias.

    In front of attention it lets queries and keys know the tokens just before them, which
    associative recall with one layer needs (Arora et al., "Zoology", 2023, section 4). The
    weights start small, so that the module starts near the identity.
    """

    def __init__(
        self,
        dim: int,
        width: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.width = width
        self.conv = nn.Conv1d(dim, dim, width, groups=dim, device=device, dtype=dtype)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """[B, N, D] to [B, N, D]; padded tokens (True, or −inf added) enter as zeros."""
        if key_padding_mask is not None:
            padded = key_padding_mask
            if padded.dtype != torch.bool:
                padded = padded <= torch.finfo(padded.dtype).min
            x = x.masked_fill(padded.unsqueeze(-1), 0.0)
        past = F.pad(x.transpose(1, 2), (self.width - 1, 0))
        return x + self.conv(past).transpose(1, 2)

    def init_state(self, batch: int) -> RecentTokens:
        """State for `step` before the first token of `batch` sequences."""
        weight = self.conv.weight
        return RecentTokens(weight.new_zeros(batch, self.width - 1, weight.shape[0]))

    def step(self, x: Tensor, state: RecentTokens) -> tuple[Tensor, RecentTokens]:
        """The next n tokens [B, n, D] -> output [B, n, D] and new state, as in `forward`."""
        past = torch.cat([state.tokens, x], 1)
        out = x + self.conv(past.transpose(1, 2)).transpose(1, 2)
        return out, RecentTokens(past[:, past.shape[1] - self.width + 1 :])


@dataclass(frozen=True)
class RecentTokens:
    """The inputs [B, width − 1, D] just before the next token; zeros before the first."""

    tokens: Tensor

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes

    def select(self, index: Tensor) -> RecentTokens:
        """The tokens of the samples index [B']."""
        return RecentTokens(self.tokens.index_select(0, index))
