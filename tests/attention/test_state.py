"""Parameters, checkpoints, copies and randomness: all that decides the output is saved."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import (
    CASES,
    Case,
    attend,
    direction,
    qkv,
    select,
    select_directions,
)


@select_directions()
def test_every_parameter_gets_a_gradient(case: Case, causal: bool) -> None:
    module = ea.MultiHeadAttention(16, 2, case.variant, **case.options)
    out, _ = module(torch.randn(2, case.length or 9, 16), is_causal=causal)
    out.square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, f"{name} gets no gradient"
        assert torch.isfinite(parameter.grad).all(), name
        if name.startswith("core."):
            assert (parameter.grad != 0).any(), f"{name} gets a gradient of zeros"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_state_dict_round_trip(case: Case) -> None:
    """All that decides the output is in the state dict, and nothing in it has the input's size."""
    torch.manual_seed(1)
    first = ea.MultiHeadAttention(16, 2, case.variant, **case.options)
    seeded = {"seed": 99} if "seed" in ea.describe(case.variant).options else {}
    second = ea.MultiHeadAttention(16, 2, case.variant, **{**case.options, **seeded})
    shapes = {name: t.shape for name, t in first.state_dict().items()}
    for N in case.lengths(9, 5):
        first(torch.randn(2, N, 16), is_causal=direction(case))
    assert {name: t.shape for name, t in first.state_dict().items()} == shapes
    second.load_state_dict(first.state_dict())
    x = torch.randn(2, case.length or 7, 16)
    want = first.eval()(x, is_causal=direction(case))[0]
    assert_close(second.eval()(x, is_causal=direction(case))[0], want, rtol=0, atol=0)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_copies_agree(case: Case, how: str) -> None:
    module = ea.MultiHeadAttention(16, 2, case.variant, **case.options).eval()
    x = torch.randn(2, case.length or 7, 16)
    want = module(x, is_causal=direction(case))[0]
    twin = copy.deepcopy(module) if how == "deepcopy" else pickle.loads(pickle.dumps(module))
    assert_close(twin(x, is_causal=direction(case))[0], want, rtol=0, atol=0)


def test_a_checkpoint_of_other_sizes_is_refused_whole() -> None:
    """A bias table of another window must not be loaded in part."""
    grid = {"grid": (4, 4), "relative_bias": True, "shift": 0}
    small = ea.MultiHeadAttention(16, 2, "shifted_window", window=2, **grid)
    large = ea.MultiHeadAttention(16, 2, "shifted_window", window=4, **grid)
    with pytest.raises(RuntimeError):
        large.load_state_dict(small.state_dict())


@select_directions()
def test_eval_is_deterministic_and_leaves_the_global_generator_alone(
    case: Case, causal: bool
) -> None:
    module = ea.MultiHeadAttention(16, 2, case.variant, dropout=0.5, **case.options).eval()
    x = torch.randn(2, case.length or 9, 16)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, _ = module(x, is_causal=causal)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(module(x, is_causal=causal)[0], first)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_functional_is_deterministic_and_leaves_the_global_generator_alone(case: Case) -> None:
    q, k, v = qkv(case.length or 9)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = attend(case, q, k, v, is_causal=direction(case))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(attend(case, q, k, v, is_causal=direction(case)), first)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_history_leaves_no_trace_in_eval(case: Case) -> None:
    """One short or odd batch does not change the method for ever."""
    module = ea.MultiHeadAttention(16, 2, case.variant, **case.options).eval()
    x = torch.randn(2, case.length or 9, 16)
    first, _ = module(x, is_causal=direction(case))
    for N in case.lengths(1, 17):
        module(torch.randn(1, N, 16) * 10, is_causal=direction(case))
    assert torch.equal(module(x, is_causal=direction(case))[0], first)


@select("noncausal_self")
def test_dropout_in_training_acts_or_is_refused(case: Case) -> None:
    x = torch.randn(2, case.length or 9, 16)
    try:
        module = ea.MultiHeadAttention(16, 2, case.variant, dropout=0.5, **case.options)
        first, second = module(x)[0], module(x)[0]
    except ea.UnsupportedAttention:
        return
    assert not torch.allclose(first, second), "dropout was accepted and dropped"
    assert torch.isfinite(first).all()
