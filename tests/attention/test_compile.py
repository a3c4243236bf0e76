"""`torch.compile` without graph breaks, and without compiling anew for every length."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import ONE_EACH, Case, kept, select_directions
from .test_export import PATHS

E, HEADS = 16, 2
# Short before long before short: what was compiled first must serve, or be replaced only once.
LENGTHS = (5, 700, 64, 300, 129, 37)
BATCHES = (7, 2, 3, 2, 4, 2)  # more rows than tokens, and fewer
COMPILATIONS = 2
SAME = {"rtol": 1e-4, "atol": 1e-5}


def make(case: Case, **kwargs: Any) -> nn.Module:
    options = dict(case.options)
    if "max_len" in options:
        options["max_len"] = max(LENGTHS)
    module: nn.Module = ea.MultiHeadAttention(E, HEADS, case.variant, **kwargs, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


def results(module: nn.Module, parameters: list[Tensor], x: Tensor, **kwargs: Any) -> list[Tensor]:
    """The output, and the gradients of the input and of every parameter."""
    x = x.clone().requires_grad_()
    out = module(x, **kwargs)[0]
    return [out, *torch.autograd.grad(out.square().mean(), [x, *parameters])]


def compare(
    case: Case, module: nn.Module, causal: bool, padded: bool = False, backend: str = "eager"
) -> None:
    """Forward and backward agree with eager over all lengths, in few compilations."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(module, dynamic=True, fullgraph=True, backend=counter)
    parameters = list(module.parameters())
    # A grid has one length; there only the batch varies.
    for batch, wanted in zip(BATCHES, LENGTHS, strict=True):
        N = case.length or wanted
        x = torch.randn(batch, N, E)
        kwargs: dict[str, Any] = {"is_causal": causal}
        if padded:
            kwargs["key_padding_mask"] = ~kept([N - N // 3] * (batch - 1) + [0], N)
        got = results(compiled, parameters, x, **kwargs)
        want = results(module, parameters, x, **kwargs)
        for mine, theirs in zip(got, want, strict=True):
            assert_close(mine, theirs, **SAME, msg=lambda m, N=N: f"at length {N}: {m}")
    assert counter.frame_count <= COMPILATIONS, f"{counter.frame_count} compilations"


@select_directions(cases=ONE_EACH)
def test_lengths_share_what_was_compiled(case: Case, causal: bool) -> None:
    compare(case, make(case), causal)


@pytest.mark.parametrize("case", [c for c in PATHS if c not in ONE_EACH], ids=str)
def test_every_path_through_the_options_compiles(case: Case) -> None:
    compare(case, make(case), case.can("causal_self"))


@pytest.mark.parametrize("case", [c for c in ONE_EACH if c.can("key_padding")], ids=str)
def test_traced_backward_under_padding(case: Case) -> None:
    """AOT autograd traces the backward pass too, and forbids hidden writes."""
    compare(case, make(case), case.can("causal_self"), padded=True, backend="aot_eager")


@pytest.mark.parametrize("kind", ["rotary", "alibi"])
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_positions_share_what_was_compiled(case: Case, kind: str) -> None:
    if not case.can(kind):
        pytest.skip(f"{case.variant} has no capability {kind}")
    compare(case, make(case, positions=kind), case.can("causal_self"))


@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
def test_inductor_runs_a_causal_window() -> None:
    """The default backend, once: it generates and builds code, which takes most of this file."""
    torch._dynamo.reset()
    module = make(Case("local_window", {"window": 3}))
    compiled = torch.compile(module, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for N in (200, 301):
            x = torch.randn(2, N, E)
            assert_close(compiled(x, is_causal=True)[0], module(x, is_causal=True)[0], **SAME)
