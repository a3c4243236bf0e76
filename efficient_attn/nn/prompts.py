"""What a model is to continue: token numbers, checked before it reads them."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

import torch
from torch import Tensor

from efficient_attn.attention.errors import OptionError, require_int

Prompts = Tensor | Sequence[Tensor] | Sequence[Sequence[int]]


def as_rows(prompts: Prompts, device: torch.device | None = None) -> list[Tensor]:
    """Prompts as tensors [n] with n ≥ 1; OptionError for what is no such thing."""
    try:
        rows = [torch.as_tensor(prompt, device=device) for prompt in prompts]
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise OptionError(f"prompts={reprlib.repr(prompts)}: {_ALLOWED_PROMPTS}") from error
    if not rows or any(row.dim() != 1 or len(row) == 0 for row in rows):
        shapes = [tuple(row.shape) for row in rows]
        raise OptionError(f"prompts have shapes {reprlib.repr(shapes)}: {_ALLOWED_PROMPTS}")
    return rows


_ALLOWED_PROMPTS = (
    "allowed are token numbers [B, n], or one or more sequences of one token at least, such as "
    "[[5], [7, 2]]; to start from nothing, give a token that stands for the beginning"
)


def require_tokens(option: str, rows: Sequence[Tensor], vocab_size: int | None = None) -> None:
    """Raise `OptionError` unless rows hold whole numbers from 0, below vocab_size if given."""
    for dtype in {row.dtype for row in rows}:
        if dtype == torch.bool or dtype.is_floating_point or dtype.is_complex:
            raise OptionError(f"{option} of {dtype}: allowed are token numbers (torch.long)")
    for extreme in torch.cat([row.flatten().long() for row in rows]).aminmax():
        require_int(f"token in {option}", int(extreme), low=0, high=highest_token(vocab_size))


def highest_token(vocab_size: int | None) -> int | None:
    """The last token of a vocabulary; None where it is not known."""
    if vocab_size is None:
        return None
    require_int("vocab_size", vocab_size, low=1)
    return vocab_size - 1
