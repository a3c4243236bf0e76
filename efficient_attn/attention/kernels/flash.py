"""torch's fused attention for CPU as a building block: it also returns the log-sum-exp.

Attention over parts of the keys, each fused, can be merged by their log-sum-exps, and gradients
follow from inputs, output and log-sum-exp alone (Dao et al. 2022, "FlashAttention", algorithm 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

_formulas_only: ContextVar[bool] = ContextVar("formulas_only", default=False)


@contextmanager
def formulas_only() -> Iterator[None]:
    """Inside, no kernel runs: what the variants compute is what their files say."""
    token = _formulas_only.set(True)
    try:
        yield
    finally:
        _formulas_only.reset(token)


def hand_written(*tensors: Tensor | None) -> bool:
    """Whether a kernel with a backward of its own may take these tensors: plain ones, on the CPU,
    outside traced programs, function transforms and forward-mode differentiation."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if _formulas_only.get():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if forward_ad._current_level >= 0:
        return False
    return all(
        type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu"
        for x in tensors
        if x is not None
    )


def wants_gradient(*tensors: Tensor) -> bool:
    """Whether a backward pass may follow."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def under_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the type that autocast gives to attention, as they are without autocast."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x.to(dtype) if x.dtype == torch.float32 else x for x in tensors)


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(scale·q kᵀ + bias) v and its log-sum-exp, without autograd.

    q [B, H, N, D], k, v [B, H, M, D] of any strides but a contiguous last dimension; bias
    broadcastable to [B, H, N, M], in the inputs' type or fp32, −inf where a key is not seen;
    causal: top-left, for N = M; scale: 1/√D when None -> [B, H, N, D] laid out as [B, N, H, D],
    and [B, H, N] in fp32 at least. A query that sees nothing gets zeros and log-sum-exp 0.
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=bias, scale=scale
    )
    return out, lse


def flash_gradients(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v of `flash`. `out` and `lse` may be those of a merged attention, of
    which k and v are a part: the gradients are then that part's share."""
    gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, q, k, v, out, lse, 0.0, causal, attn_mask=bias, scale=scale
    )
    return gradients[0], gradients[1], gradients[2]


def differentiable_gradients(
    formula: Callable[..., Tensor], tensors: Sequence[Tensor], gradient: Tensor
) -> list[Tensor | None]:
    """Gradients of ``formula(*tensors)`` that can be differentiated again.

    For the backward of a kernel under ``create_graph=True``, when torch enables gradients in it.
    """
    wanted = [x for x in tensors if x.requires_grad]
    with sdpa_kernel(SDPBackend.MATH):  # fused, it has no second derivative
        out = formula(*tensors)
    found = iter(torch.autograd.grad(out, wanted, gradient, create_graph=True, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in tensors]
