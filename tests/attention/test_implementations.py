"""The option ``implementation``: who runs, and that all give the same."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import efficient_attn as ea
from efficient_attn.attention.errors import OptionError
from efficient_attn.attention.kernels import mixing
from efficient_attn.bench.work import work_of
from efficient_attn.bench.workload import Workload

E, HEADS = 16, 2
OPTIONS: dict[str, dict[str, Any]] = {
    "linformer": {"k": 4, "max_len": 64},
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


@pytest.mark.parametrize("variant", OPTIONS)
def test_the_formula_gives_the_same(variant: str) -> None:
    x = torch.randn(2, 40, E)
    assert_close(module(variant, "formula")(x)[0], module(variant, "eager")(x)[0])


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
