"""Variants that say they are linear hold nothing quadratic, and write to nobody's tensors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from shipped import SHIPPED
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import efficient_attn as ea

from .conftest import (
    Case,
    attend,
    clear_module,
    kept,
    pack,
    qkv,
    select_directions,
    select_lengths,
)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operator returned."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0
        self.by = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            # An expanded view holds no memory of its own; its storage says what is really there.
            if isinstance(leaf, Tensor):
                held = leaf.untyped_storage().nbytes() // leaf.element_size()
                if held > self.numel:
                    self.numel, self.by = held, str(func)
        return out


LONG_OPTIONS: dict[str, dict[str, Any]] = {
    "local_window": {"window": 16, "global_tokens": 2},
    "linformer": {"k": 16, "max_len": 2048},
    "performer": {"num_features": 16},
    "shifted_window": {"window": 16, "shift": 8},
}


def is_subquadratic(name: str) -> bool:
    """By what the variant itself says of its memory."""
    text = ea.describe(name).memory
    return re.search(r"N\s*[²·*×]?\s*[NM]|N²|N\^2|N\*\*2", text) is None and name != "full"


LONG_CASES = [Case(name, LONG_OPTIONS.get(name, {})) for name in SHIPPED if is_subquadratic(name)]


@pytest.mark.parametrize("padded", [False, True], ids=["bare", "padded"])
@select_directions(cases=LONG_CASES)
def test_no_tensor_of_n_by_n(case: Case, causal: bool, padded: bool) -> None:
    """Forward and backward at N = 2048 hold nothing near N² elements in one piece."""
    N = 2048
    module = ea.MultiHeadAttention(8, 1, case.variant, **case.options)
    x = torch.randn(1, N, 8, requires_grad=True)
    mask = ~kept([N - 5], N) if padded and case.can("key_padding") else None
    with Largest() as largest:
        out, _ = module(x, is_causal=causal, key_padding_mask=mask)
        out.sum().backward()
    assert largest.numel < N * N / 8, f"{largest.by} made {largest.numel} elements"


def test_the_known_four_claim_less_than_quadratic_memory() -> None:
    assert all(is_subquadratic(name) for name in LONG_OPTIONS)


@select_lengths(9, needs=("noncausal_self",))
def test_inputs_are_not_written_to(case: Case, N: int) -> None:
    q, k, v = qkv(N)
    before = [x.clone() for x in (q, k, v)]
    attend(case, q, k, v)
    assert all(torch.equal(a, b) for a, b in zip((q, k, v), before, strict=True))
    x = pack(q, k, v)
    clear_module(case)(x)
    assert torch.equal(x, pack(*before))
