"""Does a model that must be causal let later tokens through? Asked before anything is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.attention import MultiHeadAttention, UnsupportedAttention
from efficient_attn.nn.mode import evaluating

MAGNITUDE = 30.0
TOLERANCE = 1e-4
"""Of the largest logit: well above rounding, well below any leak seen at this magnitude."""


class NotCausal(UnsupportedAttention):
    """A model for a causal task whose earlier outputs move with later inputs."""


def check_causality(model: nn.Module, tokens: Tensor, variant: Any) -> None:
    """Raise `NotCausal` when an output depends on a later token. tokens [B, N], N of any length.

    Two questions, each at several places n: is the output before n the same when token n is
    made very large in front of every attention (small nudges miss leaks through a maximum, and
    layer norms hide large embeddings), and is it the same when the input ends before n (which
    shows leaks through pooling, hashing and anything else that reads the length)?
    """
    N = tokens.shape[1]
    places = sorted({n for n in (1, N // 3, N // 2, N - 1) if 0 < n < N})
    with evaluating(model):
        expected = model(tokens)
        slack = TOLERANCE * (1.0 + expected.abs().max().item())
        for n in places:
            loud = _with_loud_token(model, tokens, n)
            short = model(tokens[:, :n])
            for what, got in (("a large token", loud[:, :n]), ("cutting the input", short)):
                moved = (got - expected[:, :n]).abs().max().item()
                if not moved <= slack:
                    raise NotCausal(
                        f"{variant} is not causal: {what} at position {n} of {N} moved earlier "
                        f"outputs by {moved:.3g}; a causal task would reward that leak, so "
                        "nothing was trained"
                    )


def _with_loud_token(model: nn.Module, tokens: Tensor, n: int) -> Tensor:
    """Outputs with the vector at position `n` scaled up at the input of every attention."""

    def scale(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        # Query, key and value of self-attention stay one object, which is how it is recognised;
        # keys of another sequence have other positions.
        query = args[0]
        scaled = _scaled(query, n)
        return tuple(scaled if arg is query else arg for arg in args)

    attentions = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    hooks = [part.register_forward_pre_hook(scale) for part in attentions]
    try:
        return model(tokens)
    finally:
        for hook in hooks:
            hook.remove()


def _scaled(x: Tensor, n: int) -> Tensor:
    factor = torch.ones(x.shape[1], 1, dtype=x.dtype, device=x.device)
    factor[n] = MAGNITUDE
    return x * factor
