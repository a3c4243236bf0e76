"""Probes of positions that act inside attention: rotary and ALiBi, by formulas of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from efficient_attn.attention.conformance.finding import Check
from efficient_attn.attention.conformance.masking import effective_weights
from efficient_attn.attention.conformance.subject import HEADS, WIDTH, Pattern, Subject, distance
from efficient_attn.attention.errors import UnsupportedAttention

BASE = 10000.0


def rotary(subject: Subject) -> Iterator[Check]:
    """A module with rotary positions attends with queries and keys that were turned by hand."""
    module = _clear_module(subject, "rotary")
    for pattern in _self_patterns(subject):
        for N in subject.lengths(1, 2, 37, 200):
            q, k, v = subject.draw(N)
            found = _through(module, q, k, v, causal=pattern.causal)
            by_hand = subject.run(_turned(q), _turned(k), v, **pattern.request)
            yield Check(
                f"{pattern}, N={N}: must equal attention with turned queries and keys",
                distance(found, by_hand),
            )
    yield from _steps(subject, module)


def alibi(subject: Subject) -> Iterator[Check]:
    """A module with ALiBi weighs key j by exp(−slope_h·|i − j|) more than without, normalised."""
    module = _clear_module(subject, "alibi")
    i = torch.arange(subject.lengths(200)[-1])
    apart = (i[:, None] - i[None, :]).abs()
    slopes = torch.tensor(
        [2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)], dtype=torch.float64
    )
    for pattern in _self_patterns(subject):
        for N in subject.lengths(1, 2, 37, 200):
            q, k, v = subject.draw(N)
            plain = effective_weights(subject, q, k, **pattern.request)
            weighed = plain * (-slopes[:, None, None] * apart[:N, :N]).exp()
            expected = weighed / weighed.sum(-1, keepdim=True) @ v
            found = _through(module, q, k, v, causal=pattern.causal)
            yield Check(
                f"{pattern}, N={N}: scores must fall by slope times distance",
                distance(found, expected),
            )
    yield from _steps(subject, module)


def _self_patterns(subject: Subject) -> list[Pattern]:
    return [pattern for pattern in subject.patterns if not pattern.cross]


def _turned(x: Tensor) -> Tensor:
    """Entries c and c + D/2 of x [B, H, N, D] as a complex number, times e^(i·position·angle)."""
    N, half = x.shape[-2], x.shape[-1] // 2
    angle = BASE ** (-torch.arange(half, dtype=x.dtype) / half)
    turn = torch.polar(torch.ones(N, half, dtype=x.dtype), torch.arange(N)[:, None] * angle)
    turned = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([turned.real, turned.imag], -1)


def _clear_module(subject: Subject, positions: str) -> Any:
    """A module whose input is q, k and v side by side and whose projections only part them."""
    width = HEADS * WIDTH
    module: Any = subject.make_module(3 * width, head_dim=WIDTH, positions=positions)
    with torch.no_grad():
        module.core.load_state_dict(subject.core.state_dict())
        module.in_proj_weight.copy_(torch.eye(3 * width))
        module.out_proj.weight.copy_(torch.eye(3 * width, width))
        module.in_proj_bias.zero_()
        module.out_proj.bias.zero_()
    return module.requires_grad_(False)


def _pack(*tensors: Tensor) -> Tensor:
    return torch.cat([rearrange(x, "b h n d -> b n (h d)") for x in tensors], -1)


def _through(module: Any, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    out, _ = module(_pack(q, k, v), is_causal=causal)
    return rearrange(out[..., : HEADS * WIDTH], "b n (h d) -> b h n d", h=HEADS)


def _steps(subject: Subject, module: Any) -> Iterator[Check]:
    """Decoding counts positions on from where it stands."""
    try:
        module.init_state(1)
    except UnsupportedAttention:  # of which the probe of decoding tells
        return
    if Pattern(True, False) not in subject.patterns:
        return
    for N in subject.lengths(5, 37):
        x = _pack(*subject.draw(N))
        parallel, _ = module(x, is_causal=True)
        yield Check(
            f"N={N}: the steps must equal the parallel form",
            distance(subject.stepwise(module, x.split(1, 1)), parallel),
        )
