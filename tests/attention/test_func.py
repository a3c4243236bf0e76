"""Functional transforms and second derivatives: attention is a function like any other."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradgradcheck
from torch.func import functional_call, grad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import CASES, Case, attend, direction, kept, qkv, select, select_directions

EXACT = {"rtol": 1e-9, "atol": 1e-10}
# Long enough to leave the dense form that short inputs take, or to need a second chunk.
LONG = [
    (Case("local_window", {"window": 1}), 70),
    (Case("local_window", {"window": 1, "global_tokens": 1}), 70),
    (Case("performer", {"num_features": 3}), 131),
]


def small(case: Case, embed: int = 4, heads: int = 2) -> nn.Module:
    """A module in float64 whose parameters are all away from zero."""
    module: nn.Module = ea.MultiHeadAttention(
        embed, heads, case.variant, dtype=torch.float64, **case.options
    ).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def second_derivatives_agree(
    module: nn.Module, N: int, *, causal: bool, padding: Tensor | None = None
) -> bool:
    """Second derivatives by input and parameters against finite differences of the first."""
    names = [name for name, _ in module.named_parameters()]
    tensors = [p.detach().clone().requires_grad_() for p in module.parameters()]
    batch = 1 if padding is None else padding.shape[0]
    x = torch.randn(batch, N, module.out_proj.out_features, dtype=torch.float64)

    def forward(x: Tensor, *parameters: Tensor) -> Tensor:
        replaced = dict(zip(names, parameters, strict=True))
        kwargs = {"is_causal": causal, "key_padding_mask": padding}
        return functional_call(module, replaced, (x,), kwargs)[0]

    # Numerical errors raise GradcheckError unless told not to; what torch raises passes through.
    return gradgradcheck(
        forward, (x.requires_grad_(), *tensors), fast_mode=True, raise_exception=False
    )


@select_directions()
def test_func_grad_by_parameters_equals_autograd(case: Case, causal: bool) -> None:
    module = small(case)
    x = torch.randn(2, case.length or 9, 4, dtype=torch.float64)
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(module, parameters, (x,), {"is_causal": causal})[0].square().sum()

    got = grad(loss)(parameters)
    module(x, is_causal=causal)[0].square().sum().backward()
    for name, parameter in module.named_parameters():
        assert_close(got[name], parameter.grad, **EXACT, msg=lambda m, n=name: f"{n}: {m}")


@select_directions()
def test_func_grad_by_tensors_equals_autograd(case: Case, causal: bool) -> None:
    inputs = qkv(case.length or 9)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(case, q, k, v, is_causal=causal).square().sum()

    got = grad(loss, argnums=(0, 1, 2))(*inputs)
    leaves = [x.clone().requires_grad_() for x in inputs]
    want = torch.autograd.grad(loss(*leaves), leaves)
    for mine, theirs in zip(got, want, strict=True):
        assert_close(mine, theirs, **EXACT)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_functional_call_takes_another_modules_tensors(case: Case) -> None:
    """Buffers such as features included; the module that lends its code stays as it was."""
    first, second = small(case), small(case)
    before = copy.deepcopy(first.state_dict())
    x = torch.randn(2, case.length or 9, 4, dtype=torch.float64)
    kwargs = {"is_causal": direction(case)}
    # Each tensor once: a matrix that two names share is replaced under both.
    tensors = {**dict(second.named_parameters()), **dict(second.named_buffers())}
    got = functional_call(first, tensors, (x,), kwargs)[0]
    assert_close(got, second(x, **kwargs)[0], **EXACT)
    assert not torch.allclose(got, first(x, **kwargs)[0])
    assert all(torch.equal(tensor, before[name]) for name, tensor in first.state_dict().items())


@select_directions()
def test_double_backward_of_the_math_kernel(case: Case, causal: bool) -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert second_derivatives_agree(small(case), case.length or 4, causal=causal)


@select_directions("key_padding")
def test_double_backward_under_padding(case: Case, causal: bool) -> None:
    """Rows that see nothing included: their zeros have zero derivatives of any order."""
    N = case.length or 4
    padding = ~kept([N - 1, 0], N)
    with sdpa_kernel(SDPBackend.MATH):
        assert second_derivatives_agree(small(case), N, causal=causal, padding=padding)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(("case", "N"), [pytest.param(c, N, id=f"{c}-N{N}") for c, N in LONG])
def test_double_backward_of_the_long_form(case: Case, N: int, causal: bool) -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert second_derivatives_agree(small(case, 1, 1), N, causal=causal)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@select(where=lambda c: c.variant == "performer" or c.options.get("implementation") == "naive")
def test_double_backward_needs_no_setting_where_the_formula_is_written_out(
    case: Case, causal: bool
) -> None:
    assert second_derivatives_agree(small(case), 4, causal=causal)


@select_directions()
def test_double_backward_is_right_or_refused(case: Case, causal: bool) -> None:
    """Torch's fused kernels have no second derivative and say so; none may be wrong in silence."""
    message = ""
    agree = False
    try:
        agree = second_derivatives_agree(small(case), case.length or 4, causal=causal)
    except RuntimeError as error:
        message = str(error)
    assert agree or "derivative for" in message, message
