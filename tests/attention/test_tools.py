"""What surrounds a module in practice: checkpoints, copies, number formats, data parallelism."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import CASES, ONE_EACH, Case, direction, kept, select, select_directions

# Twelve heads: their ALiBi slopes are no powers of two, and so have something to lose in rounding.
E, HEADS = 24, 12

# Constructor keywords under which a parameter might be left out of the graph.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-bias": {"bias": False},
    "grouped": {"num_kv_heads": 2},
    "one-group": {"num_kv_heads": 1, "bias": False},
    "wide-heads": {"head_dim": 4},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
}


def make(case: Case, **kwargs: Any) -> nn.Module:
    """The module of a case; options that bound the length leave room for 300 tokens."""
    options = dict(case.options)
    if "max_len" in options:
        options["max_len"] = 300
    module: nn.Module = ea.MultiHeadAttention(E, HEADS, case.variant, **kwargs, **options)
    return module


def allowed(case: Case, configuration: str) -> bool:
    """Whether the case has the positions that a configuration asks for."""
    kind = CONFIGURATIONS[configuration].get("positions")
    return kind is None or (case.can(kind) and case.length is None)


CONFIGURED = [
    pytest.param(case, CONFIGURATIONS[name], causal, id=f"{case}-{name}-{label}")
    for case in CASES
    for name in CONFIGURATIONS
    if allowed(case, name)
    for causal, label in ((False, "all"), (True, "causal"))
    if case.can("causal_self" if causal else "noncausal_self")
]
CONFIGURED_ONCE = [
    pytest.param(case, CONFIGURATIONS[name], id=f"{case}-{name}")
    for case in CASES
    for name in CONFIGURATIONS
    if allowed(case, name)
]


def all_get_gradients(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, f"{name} gets no gradient"
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize(("case", "kwargs"), CONFIGURED_ONCE)
def test_no_entry_of_the_state_dict_depends_on_a_length(case: Case, kwargs: dict[str, Any]) -> None:
    module = make(case, **kwargs).eval()
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    for N in case.lengths(7, 300):
        module(torch.randn(2, N, E), is_causal=direction(case))
        assert {name: t.shape for name, t in module.state_dict().items()} == shapes
    other = make(case, **kwargs).eval()
    other.load_state_dict(module.state_dict(), strict=True)
    x = torch.randn(2, case.length or 40, E)
    want = module(x, is_causal=direction(case))[0]
    assert torch.equal(other(x, is_causal=direction(case))[0], want)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize(("case", "kwargs"), CONFIGURED_ONCE)
def test_copies_agree_and_share_nothing(case: Case, kwargs: dict[str, Any], how: str) -> None:
    module = make(case, **kwargs).eval()
    x = torch.randn(2, case.length or 40, E)
    want = module(x, is_causal=direction(case))[0]
    twin = copy.deepcopy(module) if how == "deepcopy" else pickle.loads(pickle.dumps(module))
    assert torch.equal(twin(x, is_causal=direction(case))[0], want)
    assert [n for n, _ in twin.named_parameters()] == [n for n, _ in module.named_parameters()]
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(module(x, is_causal=direction(case))[0], want)


@pytest.mark.parametrize(("case", "kwargs"), CONFIGURED_ONCE)
def test_to_bfloat16_and_back(case: Case, kwargs: dict[str, Any]) -> None:
    """Works in bfloat16, and comes back as the module with its weights rounded, no more."""
    module = make(case, **kwargs).eval()
    x = torch.randn(2, case.length or 40, E)
    want = module(x, is_causal=direction(case))[0]
    twin = copy.deepcopy(module).to(torch.bfloat16)
    half = twin(x.to(torch.bfloat16), is_causal=direction(case))[0]
    assert half.dtype == torch.bfloat16
    assert torch.isfinite(half).all()
    back = twin.to(torch.float32)
    got = back(x, is_causal=direction(case))[0]
    assert got.dtype == torch.float32
    # bfloat16 keeps 8 bits: 0.4 % a weight, which a few products and a softmax do not multiply.
    assert (got - want).norm() < 0.02 * want.norm()
    rounded = copy.deepcopy(module)
    with torch.no_grad():
        for tensor in rounded.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(tensor.to(torch.bfloat16))
    assert torch.equal(got, rounded(x, is_causal=direction(case))[0])


@pytest.mark.parametrize("N", [1, 90])
@pytest.mark.parametrize(("case", "kwargs", "causal"), CONFIGURED)
def test_every_parameter_gets_a_gradient(
    case: Case, kwargs: dict[str, Any], causal: bool, N: int
) -> None:
    """Also at one token, where a softmax has nothing to choose: zeros then, but never None."""
    if case.length is not None and N != 90:
        pytest.skip(f"{case} has no capability for other lengths than its grid's")
    module = make(case, **kwargs)
    module(torch.randn(2, case.length or N, E), is_causal=causal)[0].square().sum().backward()
    all_get_gradients(module)


@select_directions("key_padding")
def test_a_batch_of_padding_alone_reaches_every_parameter(case: Case, causal: bool) -> None:
    """The last batch of a rank may hold nothing real; the other ranks wait for its gradients."""
    module = make(case)
    N = case.length or 9
    out, _ = module(torch.randn(2, N, E), key_padding_mask=~kept([0, 0], N), is_causal=causal)
    out.square().sum().backward()
    all_get_gradients(module)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("widths", [{}, {"kdim": 12, "vdim": 20}], ids=["same", "kdim_vdim"])
@select("noncausal_cross")
def test_every_parameter_gets_a_gradient_in_cross_attention(
    case: Case, widths: dict[str, int], bias: bool
) -> None:
    module = make(case, bias=bias, num_kv_heads=2, **widths)
    key = torch.randn(2, 9, widths.get("kdim", E))
    value = torch.randn(2, 9, widths.get("vdim", E))
    module(torch.randn(2, 9, E), key, value)[0].square().sum().backward()
    all_get_gradients(module)


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@select_directions(cases=ONE_EACH)
def test_data_parallel_training_goes_on(case: Case, causal: bool) -> None:
    """DDP itself: a parameter without a gradient stops it at the second step."""
    module = make(case)
    parallel = DistributedDataParallel(module)
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-3)
    losses: list[Tensor] = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = parallel(torch.randn(2, case.length or 9, E), is_causal=causal)[0].square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    all_get_gradients(module)
    assert torch.isfinite(torch.stack(losses)).all()


@select_directions(where=lambda c: c.length is None)
def test_one_length_leaves_nothing_behind_for_another(case: Case, causal: bool) -> None:
    """A cached mask or a table of the first length seen would show at the second."""
    module = make(case).eval()
    x = torch.randn(3, 300, E)
    fresh = {N: make(case).eval() for N in (300, 7, 90)}
    for N, other in fresh.items():
        other.load_state_dict(module.state_dict())
        want = other(x[:, :N], is_causal=causal)[0]
        assert_close(module(x[:, :N], is_causal=causal)[0], want, rtol=0, atol=0)
