"""Counting the matrix products of attention, for the variants' cost formulas.

FLOPs here are those of matrix products, two per multiply-add, in the way of Kaplan et al. 2020;
exponentials, sums and masks are not counted.
"""

from __future__ import annotations

from math import prod


def product_flops(*sizes: int) -> int:
    """FLOPs of a matrix product [..., n, k] @ [..., k, m] from its sizes: batches, n, k and m."""
    return 2 * prod(sizes)


def attention_flops(
    pairs: int, head_dim: int, *, backward: bool = False, written_out: bool = False
) -> int:
    """FLOPs of softmax attention on `pairs` pairs of a query and a key, D = V = head_dim.

    Two products forward, q·k and weight·v, and two more for the gradients of each. A fused kernel
    keeps no scores and takes q·k once more in its backward; `written_out` ones do not.
    """
    products = 2
    if backward:
        products = 6 if written_out else 7
    return products * product_flops(pairs, head_dim)


def causal_pairs(length: int) -> int:
    """Pairs of a query and a key that it sees, causal, among `length` tokens."""
    return length * (length + 1) // 2
