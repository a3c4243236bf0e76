"""Decoding by pieces of any size gives what the parallel causal form gives, and says its size."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from shipped import SHIPPED
from torch import Tensor
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import CASES, Case, clear_module, qkv, select, through

EXACT = {"rtol": 1e-8, "atol": 1e-9}


def random_split(N: int, largest: int, seed: int) -> list[int]:
    """Sizes between 1 and `largest` that add up to N."""
    draw = random.Random(seed)
    sizes: list[int] = []
    while sum(sizes) < N:
        sizes.append(min(draw.randint(1, largest), N - sum(sizes)))
    return sizes


SPLITS = {
    "whole": [23],
    "tokens": [1] * 23,
    "prefill-3": [3, 20],
    "prefill-20": [20, 1, 1, 1],
    "random-a": random_split(23, 7, seed=1),
    "random-b": random_split(23, 7, seed=2),
}
# Past the blocks and chunks inside the variants (64 and 128), whole and from either side.
LONG_SPLITS = {
    "whole": [301],
    "prefill-then-tokens": [290, *[1] * 11],
    "halves": [150, 151],
    "blocks": [64, 64, 128, 45],
    "random": random_split(301, 140, seed=3),
}


def by_pieces(core: Any, inputs: tuple[Tensor, ...], sizes: list[int]) -> tuple[Tensor, Any]:
    """Outputs [B, H, N, V] of `core.step` over pieces, and the last state."""
    state = core.init_state(inputs[0].shape[0], device="cpu", dtype=inputs[0].dtype)
    outs = []
    for parts in zip(*(x.split(sizes, dim=2) for x in inputs), strict=True):
        out, state = core.step(*parts, state)
        assert out.shape == parts[0].shape
        outs.append(out)
    return torch.cat(outs, dim=2), state


def module_by_pieces(module: Any, x: Tensor, sizes: list[int]) -> Tensor:
    """Outputs [B, N, E] of `module.step` over pieces."""
    state = module.init_state(x.shape[0])
    outs = []
    for part in x.split(sizes, dim=1):
        out, state = module.step(part, state)
        outs.append(out)
    return torch.cat(outs, dim=1)


def storages(state: Any) -> Iterator[torch.UntypedStorage]:
    """The memory behind every tensor of a state, whatever it is made of."""
    if isinstance(state, Tensor):
        yield state.untyped_storage()
    elif isinstance(state, dict):
        for value in state.values():
            yield from storages(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from storages(value)
    elif hasattr(state, "__dict__"):
        yield from storages(vars(state))


def held(state: Any) -> int:
    """Bytes that a state keeps alive: a view of a long tensor keeps all of it."""
    return sum({s.data_ptr(): s.nbytes() for s in storages(state)}.values())


@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS)
@select("decode")
def test_pieces_equal_the_parallel_form(case: Case, sizes: list[int]) -> None:
    module = clear_module(case)
    q, k, v = qkv(sum(sizes), batch=3)
    want = through(module, q, k, v, causal=True)
    assert_close(by_pieces(module.core, (q, k, v), sizes)[0], want, **EXACT)


@pytest.mark.parametrize("sizes", LONG_SPLITS.values(), ids=LONG_SPLITS)
@select("decode")
def test_long_pieces_equal_the_parallel_form(case: Case, sizes: list[int]) -> None:
    module = clear_module(case)
    q, k, v = qkv(sum(sizes), spread=3.0)
    want = through(module, q, k, v, causal=True)
    assert_close(by_pieces(module.core, (q, k, v), sizes)[0], want, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS)
@select("decode")
def test_grouped_heads_by_pieces(case: Case, sizes: list[int]) -> None:
    module = ea.MultiHeadAttention(
        16, 4, case.variant, num_kv_heads=2, dtype=torch.float64, **case.options
    ).eval()
    x = torch.randn(2, sum(sizes), 16, dtype=torch.float64)
    want, _ = module(x, is_causal=True)
    assert_close(module_by_pieces(module, x, sizes), want, **EXACT)


@pytest.mark.parametrize("kind", ["rotary", "alibi"])
@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS)
@select("decode")
def test_positions_go_on_from_piece_to_piece(case: Case, sizes: list[int], kind: str) -> None:
    if not case.can(kind):
        pytest.skip(f"{case.variant} has no capability {kind}")
    module = ea.MultiHeadAttention(
        16, 4, case.variant, num_kv_heads=2, positions=kind, dtype=torch.float64, **case.options
    ).eval()
    x = torch.randn(2, sum(sizes), 16, dtype=torch.float64)
    want, _ = module(x, is_causal=True)
    assert_close(module_by_pieces(module, x, sizes), want, **EXACT)


@select("decode")
def test_pieces_in_float32_survive_large_tokens(case: Case) -> None:
    module = clear_module(case, dtype=torch.float32)
    q, k, v = qkv(40, dtype=torch.float32)
    k[:, :, 7] *= 30
    q[:, :, 29] *= 30
    want = through(module, q, k, v, causal=True)
    got, _ = by_pieces(module.core, (q, k, v), [5, 10, 20, 5])
    assert torch.isfinite(got).all()
    assert_close(got, want, rtol=2e-3, atol=2e-3)


@select("decode")
def test_a_piece_leaves_the_state_it_started_from(case: Case) -> None:
    """The same state can be continued twice: a step returns a new one."""
    core = clear_module(case).core
    inputs = qkv(20)
    head, tail = ([x[:, :, :13] for x in inputs], [x[:, :, 13:] for x in inputs])
    _, state = by_pieces(core, tuple(head), [13])
    first, _ = core.step(*tail, state)
    again, _ = core.step(*tail, state)
    assert_close(again, first, rtol=0, atol=0)


@select("decode")
def test_state_size_is_what_it_says(case: Case) -> None:
    """Bytes held after t tokens: in proportion to t where the complexity names N, else bounded."""
    core = clear_module(case).core
    inputs = qkv(80)
    state = core.init_state(2, device="cpu", dtype=torch.float64)
    sizes = []
    for parts in zip(*(x.split(1, dim=2) for x in inputs), strict=True):
        _, state = core.step(*parts, state)
        assert type(state.nbytes) is int
        assert state.nbytes > 0
        assert held(state) <= state.nbytes
        sizes.append(state.nbytes)
    if "N" in ea.describe(case.variant).state:
        growth = {later - earlier for earlier, later in pairwise(sizes)}
        assert growth == {sizes[0]}
    else:
        assert max(sizes[40:]) == max(sizes[:40])


@pytest.mark.parametrize("sizes", LONG_SPLITS.values(), ids=LONG_SPLITS)
@select("decode")
def test_state_size_does_not_depend_on_the_pieces(case: Case, sizes: list[int]) -> None:
    """A long prefill leaves no more behind than its tokens one by one."""
    core = clear_module(case).core
    inputs = qkv(sum(sizes))
    _, state = by_pieces(core, inputs, sizes)
    _, one_by_one = by_pieces(core, inputs, [1] * sum(sizes))
    assert state.nbytes == one_by_one.nbytes
    assert held(state) <= state.nbytes


@pytest.mark.parametrize("name", SHIPPED)
def test_the_complexity_of_the_state_is_described(name: str) -> None:
    spec = ea.describe(name)
    assert isinstance(spec.state, str)
    assert bool(spec.state) == spec.capabilities.decode
    assert spec.to_dict()["state"] == spec.state


def test_states_of_the_known_variants() -> None:
    """Full caches every token; the others exist because they need not."""
    growing = {name for name in ea.list_variants(decode=True) if "N" in ea.describe(name).state}
    assert "full" in growing
    assert not growing & {"local_window", "performer", "shifted_window"}


def test_the_cases_above_cover_every_variant_that_decodes() -> None:
    assert {c.variant for c in CASES if c.can("decode")} == set(ea.list_variants(decode=True))
