"""The option ``implementation``: who runs, and that all give the same."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
import torch
from shipped import SHIPPED
from torch.testing import assert_close

import efficient_attn as ea
from efficient_attn.attention import AttentionMask, make_core
from efficient_attn.attention.errors import OptionError
from efficient_attn.attention.kernels import mixing
from efficient_attn.bench.work import work_of
from efficient_attn.bench.workload import Workload

E, HEADS = 16, 2
OPTIONS: dict[str, dict[str, Any]] = {
    "linformer": {"k": 4, "max_len": 700},
    "performer": {"num_features": 8},
    "local_window": {"window": 3},
    "shifted_window": {"window": 4, "shift": 2},
}


def module(variant: str, implementation: str) -> ea.MultiHeadAttention:
    torch.manual_seed(0)
    options = {**OPTIONS[variant], "implementation": implementation}
    return ea.MultiHeadAttention(E, HEADS, variant, **options)


@pytest.mark.parametrize("variant", OPTIONS)
def test_others_than_the_three_are_refused(variant: str) -> None:
    with pytest.raises(OptionError, match=r"eager.*formula.*compiled"):
        module(variant, "fast")
    assert ea.describe(variant).options["implementation"] == "eager"


@pytest.mark.parametrize("length", [40, 611])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", OPTIONS)
def test_the_formula_gives_the_same(variant: str, causal: bool, padded: bool, length: int) -> None:
    """At lengths that are short for the kernels and at those they are for."""
    if causal and not ea.describe(variant).capabilities.causal_self:
        pytest.skip(f"{variant} is never causal")
    x = torch.randn(2, length, E, requires_grad=True)
    ignored = None
    if padded:
        ignored = torch.zeros(2, length, dtype=torch.bool)
        ignored[0, length // 2 :] = True
        ignored[1, : length // 3] = True
    results = []
    for implementation in ("formula", "eager"):
        made = module(variant, implementation)
        out = made(x, key_padding_mask=ignored, is_causal=causal)[0]
        gradients = torch.autograd.grad(out.square().sum(), [x, *made.parameters()])
        results.append([out, *gradients])
    for formula, eager in zip(*results, strict=True):
        assert_close(eager, formula, rtol=1e-4, atol=1e-4 * float(formula.abs().max()))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_flex_sees_what_eager_sees() -> None:
    torch._dynamo.reset()
    options: dict[str, Any] = {"window": (40, 9), "global_tokens": 2}
    q, k, v = torch.randn(3, 2, HEADS, 200, E).unbind()
    exists = torch.ones(2, 200, dtype=torch.bool)
    exists[0, 150:] = False
    exists[1] = False
    mask = AttentionMask(True, exists, slopes=torch.tensor([0.5, 0.1]))
    cores = [
        make_core("local_window", HEADS, E, implementation=name, **options)
        for name in ("flex", "eager")
    ]
    flex, eager = (core(q, k, v, mask) for core in cores)
    assert_close(flex, eager, rtol=1e-4, atol=1e-5)


def test_flex_refuses_what_it_cannot_do() -> None:
    core = make_core("local_window", HEADS, E, implementation="flex")
    q, k, v = torch.randn(3, 1, HEADS, 9, E).unbind()
    with pytest.raises(ea.UnsupportedAttention, match="no dropout"):
        core(q, k, v, AttentionMask(), 0.1)
    with pytest.raises(ea.UnsupportedAttention, match="no backward pass on a CPU"):
        core(q.requires_grad_(), k, v, AttentionMask())
    with pytest.raises(ea.UnsupportedAttention, match="float64"):
        core(q.detach().double(), k.double(), v.double(), AttentionMask())


def test_the_formula_runs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(*args: Any) -> None:
        raise AssertionError("a kernel ran")

    monkeypatch.setattr(mixing, "_mix", kernel)
    x = torch.randn(2, 40, E)
    module("linformer", "formula")(x)
    with pytest.raises(AssertionError, match="a kernel ran"):
        module("linformer", "eager")(x)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_trains_at_changing_lengths_from_one_program() -> None:
    torch._dynamo.reset()
    eager, compiled = module("linformer", "eager"), module("linformer", "compiled")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for length in (40, 23, 64, 11):
        x = torch.randn(2, length, E, requires_grad=True)
        results = []
        for made in (eager, compiled):
            out = made(x)[0]
            results.append([out, *torch.autograd.grad(out.square().sum(), [x, made.core.E])])
        for mine, theirs in zip(*results, strict=True):
            assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before <= 2
    assert "_program" not in copy.deepcopy(compiled.core).__dict__
    w = Workload(heads=HEADS, head_dim=E // HEADS, length=40)
    assert work_of(compiled.core, compiled.core, w).flops is None


def test_compiled_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(OptionError, match="C\\+\\+ compiler"):
        module("linformer", "compiled")(torch.randn(1, 8, E))


@pytest.mark.parametrize("length", [40, 611])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", SHIPPED)
def test_the_default_device_is_not_that_of_the_inputs(
    variant: str, causal: bool, length: int
) -> None:
    """What a variant makes for itself belongs where its inputs are."""
    if causal and not ea.describe(variant).capabilities.causal_self:
        pytest.skip(f"{variant} is never causal")
    options = OPTIONS.get(variant, {})
    core = make_core(variant, HEADS, E, **options)
    leaves = [x.requires_grad_() for x in torch.randn(3, 2, HEADS, length, E)]
    exists = torch.ones(2, length, dtype=torch.bool)
    exists[0, length // 2 :] = False
    mask = AttentionMask(causal, exists)
    expected = core(*leaves, mask)
    with torch.device("meta"):
        out = core(*leaves, mask)
        found = torch.autograd.grad(out.square().sum(), leaves)
    assert_close(out, expected)
    assert all(x.device.type == "cpu" for x in found)
