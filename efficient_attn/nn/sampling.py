"""The next token from logits: the likeliest one, or one drawn from a restricted distribution."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from efficient_attn.attention.errors import OptionError, require_int, require_number


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn; the three are applied in this order.

    temperature: divides the logits; 0 takes the likeliest token always.
    top_k: only the k likeliest tokens, and what is as likely as the last of them (Fan et al. 2018,
        "Hierarchical Neural Story Generation").
    top_p: only the likeliest tokens that together have probability p, the one that crosses p
        among them (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration").

    Raises `OptionError` for values out of range, and for top_k or top_p at temperature 0.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature, low=0)
        if self.top_k is not None:
            require_int("top_k", self.top_k, low=1)
        if self.top_p is not None:
            require_number("top_p", self.top_p, low=0)
            if not 0 < self.top_p <= 1:
                raise OptionError(f"top_p={self.top_p!r}: allowed is above 0 and at most 1")
        if self.greedy and (self.top_k, self.top_p) != (None, None):
            raise OptionError(
                f"top_k={self.top_k!r}, top_p={self.top_p!r} change nothing at temperature=0, "
                "which takes the likeliest token; give a temperature above 0, such as 1.0"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def distribution(self, logits: Tensor) -> Tensor:
        """Logits [..., V] to the probabilities [..., V] that tokens are drawn with; fp64."""
        # The largest becomes 0 and 1 / temperature stays finite, so that nothing overflows to inf.
        logits = logits.double() - logits.double().amax(-1, keepdim=True)
        logits = logits / max(self.temperature, sys.float_info.min)
        if self.top_k is not None:
            least = logits.topk(min(self.top_k, logits.shape[-1])).values[..., -1:]
            logits = logits.masked_fill(logits < least, -math.inf)
        probabilities = logits.softmax(-1)
        if self.top_p is not None:
            ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(-1) - ordered
            ordered = ordered.masked_fill(before >= self.top_p, 0.0)
            probabilities = torch.zeros_like(ordered).scatter(-1, order, ordered)
        return probabilities / probabilities.sum(-1, keepdim=True)

    def choose(self, logits: Tensor, uniform: Tensor | None) -> Tensor:
        """Tokens [B] from logits [B, V]; uniform [B], in [0, 1), decides each draw."""
        if uniform is None:
            return logits.argmax(-1)
        cumulative = self.distribution(logits).cumsum(-1)
        aim = uniform.unsqueeze(-1) * cumulative[..., -1:]
        return torch.searchsorted(cumulative, aim, right=True).squeeze(-1)
