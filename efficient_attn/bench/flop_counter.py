"""Counting the FLOPs of a call by watching the operators that it runs.

torch's own counter does not know the fused attention kernel of the CPU or products added in place,
takes causal kernels for full ones, and is blind to `nn.MultiheadAttention`'s fast path. Here fused
kernels count the pairs of a query and a key that they see, two FLOPs per multiply-add and product:
two products forward, five backward, of which one takes the scores anew (Dao et al. 2022,
"FlashAttention").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

aten = torch.ops.aten

_FORWARD = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)


def count_flops(call: Callable[[], object]) -> int:
    """FLOPs in matrix products of one `call`, which is run once; gradients it takes count too.

    Sees eager operators only: never ask it about a compiled call.
    """
    with _slow_path(), FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter:
        call()
    return counter.get_total_flops()


@contextmanager
def _slow_path() -> Iterator[None]:
    """Without torch.nn's fused inference path, one operator that hides the same products."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _fused_attention(operator: Any, backward: bool) -> Callable[..., int]:
    """Formula of a fused kernel, whose arguments are found by the names in its schema.

    Its causal mask is aligned top-left: query i sees keys j <= i.
    """
    names = [argument.name for argument in operator.default._schema.arguments]

    def count(*args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        batch, heads, N, D = given["query"]
        M, V = given["value"][-2:]
        pairs = N * M
        if given.get("is_causal", False):
            seen = min(N, M)
            pairs = seen * (seen + 1) // 2 + (N - seen) * M
        widths = 3 * D + 2 * V if backward else D + V
        return 2 * batch * heads * pairs * widths

    return count


def _matrix_vector(matrix: Any, vector: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * matrix[0] * matrix[1]


def _added_matrix_vector(added: Any, matrix: Any, vector: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * matrix[0] * matrix[1]


def _added_product(added: Any, left: Any, right: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * prod(left) * int(right[-1])


def _dot(a: Any, b: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * a[0]


def _convolution_backward(
    gradient: Any,
    x: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Any,
    **kwargs: Any,
) -> int:
    """Each gradient asked for, of input and weight, costs what the forward did, grouped or not."""
    forward = conv_flop_count(x, weight, gradient, transposed=transposed)
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


_FORMULAS: dict[Any, Callable[..., int]] = {
    aten.mv: _matrix_vector,
    aten.addmv: _added_matrix_vector,
    aten.dot: _dot,
    aten.convolution_backward: _convolution_backward,
    aten.addmm_: _added_product,
    aten.baddbmm_: _added_product,
}
for _name in _FORWARD:
    for _suffix in ("", "_backward"):
        _operator = getattr(aten, _name + _suffix, None)
        if _operator is not None:
            _FORMULAS[_operator] = _fused_attention(_operator, backward=bool(_suffix))
