"""Rotary and ALiBi positions by their formulas, in float64, and the cases that carry them.

No line is shared with the package: rotary is a multiplication of complex numbers, ALiBi a loop over
pairs of tokens.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from .conftest import CASES, Case
from .oracles import ORACLES, dense

KINDS = ("rotary", "alibi")


def rotate(x: Tensor, base: float = 10000.0) -> Tensor:
    """RoPE (Su et al. 2021, equation 34) on x [..., N, D]: the complex number
    x_j + i·x_{j + D/2} of token n is multiplied by exp(i·n·base^(−2j/D))."""
    N, D = x.shape[-2:]
    first, second = x.double().chunk(2, -1)
    turns = torch.tensor(
        [[n * base ** (-2 * j / D) for j in range(D // 2)] for n in range(N)], dtype=torch.float64
    )
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(turns), turns)
    return torch.cat([turned.real, turned.imag], -1)


def slopes(H: int) -> list[float]:
    """ALiBi (Press et al. 2022, section 3): a geometric sequence from 2^(−8/H) down to 2^(−8).

    Where H is no power of two: those of the next lower power P, then every second one of 2P.
    """
    P = 2 ** int(math.log2(H))
    own = [2 ** (-8 * (h + 1) / P) for h in range(P)]
    between = [2 ** (-8 * (h + 1) / (2 * P)) for h in range(0, 2 * P, 2)]
    return own + between[: H - P]


def alibi(H: int, N: int) -> Tensor:
    """What is added to the scores, [H, N, N]."""
    distance = [[abs(i - j) for j in range(N)] for i in range(N)]
    steepness = torch.tensor(slopes(H), dtype=torch.float64)
    return -steepness[:, None, None] * torch.tensor(distance)


def definition(
    case: Case, kind: str, q: Tensor, k: Tensor, v: Tensor, base: float = 10000.0, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Output and weights by the variant's oracle, with positions; masks: True = take part."""
    if kind == "rotary":
        q, k = rotate(q, base), rotate(k, base)
    else:
        bias = alibi(q.shape[1], q.shape[2])
        mask = kwargs.pop("attn_mask", None)
        if mask is None:
            kwargs["attn_mask"] = bias
        elif mask.dtype == torch.bool:
            kwargs["attn_mask"] = bias.masked_fill(~mask, -math.inf)
        else:
            kwargs["attn_mask"] = bias + mask
    return dense(case.variant, case.options, q, k, v, **kwargs)


def positioned(case: Case, kind: str, **more: Any) -> Case:
    """The case with positions among its keywords, for `clear_module`."""
    return Case(case.variant, {**case.options, "positions": kind, **more})


def carrying(
    *kinds: str, directions: tuple[bool, ...] = (False, True), cases: list[Case] = CASES
) -> Any:
    """Parametrise case, kind and causal over the cases that carry positions on a sequence."""
    return pytest.mark.parametrize(
        ("case", "kind", "causal"),
        [
            pytest.param(case, kind, causal, id=f"{case}-{kind}-{'causal' if causal else 'all'}")
            for kind in kinds or KINDS
            for case in cases
            if case.can(kind) and case.length is None and case.variant in ORACLES
            for causal in directions
            if case.can("causal_self" if causal else "noncausal_self")
        ],
    )
