"""Windows by blocks: outputs and gradients of the kernel against the dense formula in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from efficient_attn.attention import AttentionMask, make_core
from efficient_attn.attention.kernels import blockwise, parts
from efficient_attn.attention.variant import AttentionVariant
from efficient_attn.attention.variants import local_window, shifted_window

H, D = 2, 8


@pytest.fixture(autouse=True, scope="module")
def kernels_at_every_length():
    """Where they would be left for what is faster on few tokens too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shifted_window, "SHORT", 0)
        patch.setattr(shifted_window, "SHORT_WITH_BIAS", 0)
        yield


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, runs and workspaces of a few rows, so that short sequences have many of them."""
    monkeypatch.setattr(local_window, "QUERIES_PER_BLOCK", 4)
    monkeypatch.setattr(blockwise, "WORKSPACE", 200)
    monkeypatch.setattr(blockwise, "GATHERED", 1000)
    monkeypatch.setattr(parts, "GATHERED", 1000)


def oracle(core: AttentionVariant, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
    q, k, v = q.double(), k.double(), v.double()
    return core.double().weights(q, k, mask) @ v


def tensors(
    B: int, N: int, *, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(B, H, N, D, generator=generator, dtype=torch.float64) for _ in range(4)]
    return [(x * scale).to(dtype) for x in made[:2]] + [x.to(dtype) for x in made[2:]]


def by_kernel(core: AttentionVariant, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask):
    """The core's answer, and a failure where the formula gave it."""
    calls = []
    original = blockwise._forward
    blockwise._forward = lambda *given: calls.append(1) or original(*given)  # type: ignore[assignment]
    try:
        out = core(q, k, v, mask)
    finally:
        blockwise._forward = original  # type: ignore[assignment]
    assert calls, "the kernel did not run"
    return out


def compare(
    core: AttentionVariant, B: int, N: int, mask: AttentionMask, *, tolerance: float, **how
) -> None:
    q, k, v, gradient = tensors(B, N, **how)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    if getattr(core, "relative_bias", None) is not None:
        with torch.no_grad():
            core.relative_bias.normal_(generator=torch.Generator().manual_seed(1))
        leaves.append(core.relative_bias)
    core = core.to(q.dtype)
    with torch.no_grad():
        untrained = by_kernel(core, q, k, v, mask)
    out = by_kernel(core, q, k, v, mask)
    assert torch.equal(out, untrained)
    found = torch.autograd.grad(out, leaves, gradient)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    core = core.double()
    if len(wide) == 4:
        core.relative_bias = torch.nn.Parameter(wide[3])
        wide[3] = core.relative_bias
    expected = oracle(core, *wide[:3], mask)
    gradients = torch.autograd.grad(expected, wide, gradient.double())
    names = ("out", "q", "k", "v", "bias")
    pairs = zip(names, (out, *found), (expected, *gradients), strict=False)
    for name, a, b in pairs:
        error = (a.double() - b).abs().max() / b.abs().max().clamp_min(0.1)
        assert error < tolerance, f"{name} is off by {error:.1e}"


def some_padding(B: int, N: int, seed: int) -> Tensor:
    """Right, left, scattered and total padding, by sample."""
    exists = torch.ones(B, N, dtype=torch.bool)
    for b in range(B):
        kind = (seed + b) % 5
        if kind == 0:
            exists[b, N - N // 3 :] = False
        elif kind == 1:
            exists[b, : N // 2] = False
        elif kind == 2:
            exists[b] = torch.rand(N, generator=torch.Generator().manual_seed(seed)) < 0.4
        elif kind == 3:
            exists[b] = False
    return exists


@given(
    B=st.integers(1, 3),
    left=st.integers(0, 9),
    right=st.integers(0, 9),
    more=st.integers(1, 40),
    causal=st.booleans(),
    padded=st.booleans(),
    slopes=st.booleans(),
    seed=st.integers(0, 4),
)
@settings(max_examples=80, deadline=None)
def test_a_sliding_window(B, left, right, more, causal, padded, slopes, seed):
    N = 2 * (left + right) + 16 + more
    mask = AttentionMask(
        causal,
        some_padding(B, N, seed) if padded else None,
        slopes=torch.tensor([0.5, 0.1]) if slopes else None,
    )
    core = make_core("local_window", H, D, window=(left, right))
    compare(core, B, N, mask, tolerance=2e-5, seed=seed)


@given(
    B=st.integers(1, 3),
    T=st.integers(1, 6),
    shift=st.integers(0, 5),
    N=st.integers(1, 30),
    causal=st.booleans(),
    padded=st.booleans(),
    slopes=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 4),
)
@settings(max_examples=80, deadline=None)
def test_windows_of_a_sequence(B, T, shift, N, causal, padded, slopes, bias, seed):
    mask = AttentionMask(
        causal,
        some_padding(B, N, seed) if padded else None,
        slopes=torch.tensor([0.5, 0.1]) if slopes else None,
    )
    core = make_core("shifted_window", H, D, window=T, shift=shift % T, relative_bias=bias)
    compare(core, B, N, mask, tolerance=2e-5, seed=seed)


@given(
    B=st.integers(1, 3),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    shift=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    padded=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 4),
)
@settings(max_examples=80, deadline=None)
def test_windows_of_a_grid(B, grid, window, shift, padded, bias, seed):
    N = grid[0] * grid[1]
    mask = AttentionMask(False, some_padding(B, N, seed) if padded else None)
    shift = tuple(s % w for s, w in zip(shift, window, strict=True))
    core = make_core(
        "shifted_window", H, D, window=window, shift=shift, grid=grid, relative_bias=bias
    )
    compare(core, B, N, mask, tolerance=2e-5, seed=seed)


CORES = {
    "sliding": ("local_window", {"window": (5, 3)}),
    "sequence": ("shifted_window", {"window": 5, "shift": 2, "relative_bias": True}),
    "grid": (
        "shifted_window",
        {"window": (2, 3), "shift": 1, "grid": (5, 8), "relative_bias": True},
    ),
}


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> AttentionVariant:
    name, options = CORES[request.param]
    return make_core(name, H, D, **options)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.02), (torch.float16, 0.004)])
def test_half_precision(core, dtype, tolerance):
    compare(core, 2, 40, AttentionMask(), tolerance=tolerance, dtype=dtype)


@pytest.mark.parametrize(("scale", "tolerance"), [(6.0, 1e-4), (30.0, 3e-3)])
def test_scores_far_apart(core, scale, tolerance):
    """Most weights underflow. Scores of thousands are rounded by a few ten-thousandths."""
    compare(core, 2, 40, AttentionMask(), tolerance=tolerance, scale=scale)


def test_any_memory_layout(core):
    q, k, v, gradient = tensors(2, 40)
    expected = core(q, k, v, AttentionMask())
    packed = torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], -1)
    packed = packed.clone().requires_grad_()
    split = [x.unflatten(-1, (H, D)).transpose(1, 2) for x in packed.chunk(3, -1)]
    out = by_kernel(core, *split, AttentionMask())
    torch.testing.assert_close(out, expected)
    (found,) = torch.autograd.grad(out, packed, gradient)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    for layout in (gradient, gradient.transpose(-1, -2).contiguous().transpose(-1, -2)):
        again = torch.autograd.grad(core(*leaves, AttentionMask()), leaves, layout)
        joined = torch.cat([x.transpose(1, 2).flatten(2) for x in again], -1)
        torch.testing.assert_close(found, joined)
    columns = [x.detach().transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v)]
    torch.testing.assert_close(core(*columns, AttentionMask()), expected)
    total = core(*leaves, AttentionMask()).sum()  # whose gradient has no strides
    assert all(x.isfinite().all() for x in torch.autograd.grad(total, leaves))


def test_only_some_inputs_want_gradients(core):
    q, k, v, gradient = tensors(1, 40)
    both = torch.autograd.grad(
        core(q.requires_grad_(), k, v.requires_grad_(), AttentionMask()), (q, v), gradient
    )
    (alone,) = torch.autograd.grad(core(q.detach(), k, v, AttentionMask()), (v,), gradient)
    torch.testing.assert_close(alone, both[1])


def test_gradients_of_gradients(core):
    core = core.double()
    q, k, v, _ = (x[:, :1, :, :2].contiguous() for x in tensors(1, 40, dtype=torch.float64))
    core = make_core(core.name, 1, 2, **vars(core.options)).double()
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def call(*given: Tensor) -> Tensor:
        return core(*given, AttentionMask())

    torch.autograd.gradcheck(call, leaves)
    torch.autograd.gradgradcheck(call, leaves)


def test_autocast_computes_in_half_precision_and_returns_gradients_in_full(core):
    q, k, v, gradient = tensors(2, 40)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = core(*leaves, AttentionMask())
    assert out.dtype == torch.bfloat16
    found = torch.autograd.grad(out, leaves, gradient.bfloat16())
    expected = torch.autograd.grad(core(*leaves, AttentionMask()), leaves, gradient)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


def test_what_a_sample_gives_does_not_depend_on_the_others(core):
    q, k, v, gradient = tensors(3, 40)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    exists = some_padding(3, 40, 0)
    out = core(*leaves, AttentionMask(key_padding=exists))
    found = torch.autograd.grad(out, leaves, gradient)
    for b in range(3):
        alone = [x[b : b + 1].detach().requires_grad_() for x in leaves]
        single = core(*alone, AttentionMask(key_padding=exists[b : b + 1]))
        torch.testing.assert_close(out[b : b + 1], single)
        again = torch.autograd.grad(single, alone, gradient[b : b + 1])
        for a, x in zip(again, found, strict=True):
            torch.testing.assert_close(a, x[b : b + 1])
