"""What the kernels of performer share: work cut into pieces that stay in the cache, and φ.

A piece is one span of the tokens of a few heads. All pieces of a call write their temporaries into
the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from efficient_attn.attention.kernels.workspace import Workspace

ROWS, ELEMENTS = 4096, 1 << 20
ALIGNED = 16

Heads = tuple[slice, slice]


class Call:
    """Types, constants and temporaries of one call."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, features: Tensor) -> None:
        self.dtype = torch.promote_types(q.dtype, torch.float32)
        low = q.dtype == k.dtype == v.dtype == torch.bfloat16
        self.product = torch.bfloat16 if low else self.dtype
        self.workspace = Workspace(self.dtype)
        self.features = features.to(self.dtype) * q.shape[-1] ** -0.25  # [R, D]
        self.width = max(len(features), 4 * q.shape[-1])

    def narrow(self, name: str, x: Tensor) -> Tensor:
        """x in the type of products."""
        return self.workspace.cast(name, x, self.product)


def head_groups(B: int, H: int, N: int, width: int) -> Iterator[Heads]:
    """Samples and heads that make a piece together: several where sequences are short.

    N: tokens of the longest sequence; width: numbers per token in the largest temporary.
    """
    heads = max(1, _rows(width) // N)
    if heads >= H:
        samples = heads // H
        for b in range(0, B, samples):
            yield slice(b, min(b + samples, B)), slice(0, H)
    else:
        for b in range(B):
            for h in range(0, H, heads):
                yield slice(b, b + 1), slice(h, min(h + heads, H))


def spans(N: int, width: int) -> list[slice]:
    """Spans of tokens, of nearly equal length, that fit into a piece."""
    count = -(-N // min(ROWS, _rows(width)))
    length = aligned(-(-N // count))
    return [slice(start, min(start + length, N)) for start in range(0, N, length)]


def aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _rows(width: int) -> int:
    return max(ALIGNED, ELEMENTS // width)


def exp_(x: Tensor) -> Tensor:
    """exp in place, with the smallest normal number for all below it.

    Denormal numbers slow exp and matrix products down a hundredfold.
    """
    return x.clamp_(min=math.log(torch.finfo(x.dtype).tiny) + 0.3).exp_()


def decay_(x: Tensor) -> Tensor:
    """exp in place of differences of log scales, at most 0, or exactly 0 for what is lost beside
    the larger: what it multiplies must not become denormal either."""
    least = math.log(torch.finfo(x.dtype).tiny) + 7
    return torch.threshold_(x.clamp_(least, 0.0).exp_(), 2 * math.exp(least), 0.0)


def floor(dtype: torch.dtype) -> float:
    """A log scale below every other one, with room to add and subtract."""
    return torch.finfo(dtype).min / 8


def half_squares(x: Tensor, workspace: Workspace) -> Tensor:
    """|x|²/2 [G, n, 1] of x [G, n, D] that is still to be scaled by D^(−1/4)."""
    squares = torch.mul(x, x, out=workspace("squares", *x.shape))
    return squares.sum(-1, keepdim=True).mul_(0.5 * x.shape[-1] ** -0.5)


def gradient_of_keys(dlog: Tensor, k: Tensor, features: Tensor, workspace: Workspace) -> Tensor:
    """[G, n, D], from that of log φ(k) [G, n, R] and k [G, n, D]; features [R, D] are scaled."""
    D = k.shape[-1]
    dk = workspace.cast("wide dk", times(dlog, features, "dk", workspace), workspace.dtype)
    weight = dlog.sum(-1, keepdim=True).to(workspace.dtype).mul_(D**-0.5)
    return dk.sub_(torch.mul(k, weight, out=workspace("squares", *k.shape)))


def times(x: Tensor, matrix: Tensor, name: str, workspace: Workspace) -> Tensor:
    """x [G, n, a] @ matrix [a, b] as one product, in the type of x."""
    out = workspace(name, *x.shape[:-1], matrix.shape[-1], dtype=x.dtype)
    torch.mm(x.reshape(-1, x.shape[-1]), matrix, out=out.view(-1, matrix.shape[-1]))
    return out
