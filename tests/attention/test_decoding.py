"""One token at a time gives what the parallel causal form gives."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import CASES, Case, clear_module, qkv, select, suggests_an_alternative, through
from .oracles import ORACLES, dense

EXACT = {"rtol": 1e-8, "atol": 1e-9}


def decode(core: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Any]:
    """Outputs [B, H, N, V] of `core.step` over all tokens, and the last state."""
    state = core.init_state(q.shape[0], device=q.device, dtype=q.dtype)
    outs = []
    for t in range(q.shape[2]):
        out, state = core.step(*(x[:, :, t : t + 1] for x in (q, k, v)), state)
        outs.append(out)
    return torch.cat(outs, dim=2), state


def tensors_in(state: Any) -> Iterator[Tensor]:
    """Every tensor of a state, whatever containers it is made of."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors_in(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from tensors_in(value)
    elif is_dataclass(state):
        for f in fields(state):
            yield from tensors_in(getattr(state, f.name))
    elif hasattr(state, "__dict__"):
        for value in vars(state).values():
            yield from tensors_in(value)


@pytest.mark.parametrize("N", [1, 2, 5, 37])
@select("decode")
def test_core_steps_equal_the_parallel_form(case: Case, N: int) -> None:
    module = clear_module(case)
    q, k, v = qkv(N, batch=3)
    want = through(module, q, k, v, causal=True)
    assert_close(decode(module.core, q, k, v)[0], want, **EXACT)


@select("decode")
def test_module_steps_equal_the_parallel_form(case: Case) -> None:
    torch.manual_seed(1)
    module = ea.MultiHeadAttention(
        16, 4, case.variant, num_kv_heads=2, dtype=torch.float64, **case.options
    ).eval()
    x = torch.randn(2, 11, 16, dtype=torch.float64)
    want, _ = module(x, is_causal=True)
    state = module.init_state(2)
    for t in range(11):
        out, state = module.step(x[:, t : t + 1], state)
        assert out.shape == (2, 1, 16)
        assert_close(out[:, 0], want[:, t], **EXACT)


@select("decode")
def test_steps_in_float32_survive_large_tokens(case: Case) -> None:
    """A token thirty times the usual must not spoil the running sums for those after it."""
    module = clear_module(case, dtype=torch.float32)
    q, k, v = qkv(20, dtype=torch.float32)
    k[:, :, 7] *= 30
    q[:, :, 9] *= 30
    want = through(module, q, k, v, causal=True)
    got, _ = decode(module.core, q, k, v)
    assert torch.isfinite(got).all()
    assert_close(got, want, rtol=2e-3, atol=2e-3)


@select("decode", where=lambda c: c.variant in ORACLES)
def test_many_steps_equal_the_definition(case: Case) -> None:
    """Past many turns of a ring buffer, with scores four times the usual."""
    module = clear_module(case)
    q, k, v = qkv(90, batch=1, spread=4.0)
    want, _ = dense(case.variant, case.options, q, k, v, causal=True, core=module.core)
    assert_close(decode(module.core, q, k, v)[0], want, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@select("decode", where=lambda c: c.variant in ORACLES)
def test_steps_in_half_precision(case: Case, dtype: torch.dtype) -> None:
    module = clear_module(case, dtype=dtype)
    q, k, v = qkv(40, dtype=dtype)
    want, _ = dense(case.variant, case.options, q, k, v, causal=True, core=module.core)
    got, _ = decode(module.core, q, k, v)
    assert got.dtype == dtype
    assert_close(got.double(), want, rtol=0.05, atol=0.05)


@select("decode", where=lambda c: c.variant != "full")
def test_state_stops_growing(case: Case) -> None:
    """A ring buffer or running sums: the state is no larger after 60 tokens than after 20."""
    core = clear_module(case).core
    q, k, v = qkv(60)

    def held(n: int) -> int:
        state = decode(core, *(x[:, :, :n] for x in (q, k, v)))[1]
        return sum(t.numel() for t in tensors_in(state))

    assert 0 < held(60) <= held(20)


@select("decode")
def test_a_copied_state_branches(case: Case) -> None:
    """Beam search: two continuations of one prefix do not disturb each other."""
    module = clear_module(case)
    q, k, v = qkv(12)
    other_q, other_k, other_v = qkv(12, seed=5)
    core = module.core
    _, state = decode(core, *(x[:, :, :8] for x in (q, k, v)))
    branch = copy.deepcopy(state)
    for t in range(8, 12):
        _, branch = core.step(*(x[:, :, t : t + 1] for x in (other_q, other_k, other_v)), branch)
    want = through(module, q, k, v, causal=True)
    for t in range(8, 12):
        out, state = core.step(*(x[:, :, t : t + 1] for x in (q, k, v)), state)
        assert_close(out, want[:, :, t : t + 1], **EXACT)


@pytest.mark.parametrize("rows", [[2, 0], [1, 1, 1, 0], [0]], ids=str)
@select("decode")
def test_selected_samples_go_on_alone(case: Case, rows: list[int]) -> None:
    """Beam search again: samples may be dropped, repeated and reordered between two steps."""
    core = clear_module(case).core
    q, k, v = qkv(12, batch=3)
    _, state = decode(core, *(x[:, :, :8] for x in (q, k, v)))
    index = torch.tensor(rows)
    selected = state.select(index)
    assert selected.position == state.position == 8
    assert selected.nbytes * 3 == state.nbytes * len(rows)
    want, _ = core.step(*(x[:, :, 8:] for x in (q, k, v)), state)
    got, _ = core.step(*(x[index, :, 8:] for x in (q, k, v)), selected)
    assert_close(got, want[index], **EXACT)


@pytest.mark.parametrize("groups", [4, 2], ids=["all-heads", "grouped"])
@pytest.mark.parametrize("padded", [None, "bool", "float"], ids=["whole", "bool", "float"])
@select("noncausal_cross", where=lambda c: not c.can("equal_lengths"))
def test_a_projected_memory_gives_what_cross_attention_gives(
    case: Case, padded: str | None, groups: int
) -> None:
    module = ea.MultiHeadAttention(
        16, 4, case.variant, num_kv_heads=groups, dtype=torch.float64, **case.options
    ).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    query, memory = (torch.randn(3, n, 16, dtype=torch.float64) for n in (5, 9))
    padding = None
    if padded:
        padding = torch.arange(9) >= torch.tensor([[4], [9], [1]])
        if padded == "float":
            padding = torch.zeros(3, 9, dtype=torch.float64).masked_fill(padding, float("-inf"))
    want, _ = module(query, memory, key_padding_mask=padding)
    projected = module.project_memory(memory, padding)
    for piece, expected in zip(query.split([1, 4], 1), want.split([1, 4], 1), strict=True):
        assert_close(module.attend_memory(piece, projected), expected, **EXACT)
    index = torch.tensor([2, 0, 0])
    assert_close(module.attend_memory(query[index], projected.select(index)), want[index], **EXACT)


def test_an_added_padding_mask_is_selected_with_its_samples() -> None:
    module = ea.MultiHeadAttention(16, 4, "full", dtype=torch.float64).eval()
    query, memory = (torch.randn(3, n, 16, dtype=torch.float64) for n in (2, 5))
    padding = torch.randn(3, 5, dtype=torch.float64)
    want, _ = module(query, memory, key_padding_mask=padding)
    index = torch.tensor([2, 0])
    selected = module.project_memory(memory, padding).select(index)
    assert_close(module.attend_memory(query[index], selected), want[index], **EXACT)


@select("equal_lengths")
def test_a_memory_for_windows_is_refused(case: Case) -> None:
    """One query against one key would pass for equal lengths, and see the wrong window."""
    module = ea.MultiHeadAttention(16, 2, case.variant, **case.options)
    with pytest.raises(ea.UnsupportedAttention, match=r"step by step.*full"):
        module.project_memory(torch.randn(2, 1, 16))


def test_a_memory_with_positions_is_refused() -> None:
    module = ea.MultiHeadAttention(16, 2, "full", positions="rotary")
    with pytest.raises(ea.UnsupportedAttention, match="two sequences"):
        module.project_memory(torch.randn(2, 3, 16))


@pytest.mark.parametrize("case", [c for c in CASES if not c.can("decode")], ids=str)
def test_decoding_is_refused_where_it_cannot_be(case: Case) -> None:
    with pytest.raises(ea.UnsupportedAttention) as caught:
        ea.MultiHeadAttention(16, 2, case.variant, **case.options).init_state(2)
    assert suggests_an_alternative(caught.value, "decode")
