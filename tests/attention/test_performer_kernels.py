"""Performer's kernels against the dense estimate in float64, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from efficient_attn.attention import make_core
from efficient_attn.attention.kernels import performer as noncausal_kernel
from efficient_attn.attention.kernels import performer_causal, performer_pieces
from efficient_attn.attention.masks import AttentionMask
from efficient_attn.attention.variants import performer

H, D, R = 2, 8, 16
BF16 = torch.bfloat16
DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["noncausal", "causal"])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for every length, in chunks of 16 tokens and pieces of at most 64."""
    monkeypatch.setattr(performer, "_large", lambda N, M, causal: not causal or N >= M)
    monkeypatch.setattr(performer_causal, "CHUNK", 16)
    monkeypatch.setattr(performer_pieces, "ROWS", 64)


@pytest.fixture
def no_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel must do it alone."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        raise AssertionError("the formula ran")

    monkeypatch.setattr(performer.Performer, "_formula", refuse)


def inputs(
    N: int, M: int, *, B: int = 2, dtype: torch.dtype = torch.float32, spread: float = 1.0
) -> list[Tensor]:
    """q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(N + 31 * M)
    sizes = (N, M, M, N)
    drawn = [torch.randn(B, H, n, D, generator=generator, dtype=torch.float64) for n in sizes]
    drawn[:2] = [x * spread for x in drawn[:2]]
    return [x.to(dtype) for x in drawn]


def dense(core: Any, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
    """The estimate written out: weights [B, H, N, M] from all features at once."""
    W = core.features.double()
    q, k = q * D**-0.25, k * D**-0.25
    scores = (q @ W.T)[..., :, None, :] + (k @ W.T - k.square().sum(-1, keepdim=True) / 2)[
        ..., None, :, :
    ]
    log_weights = scores.logsumexp(-1)
    keep = mask.keep(q.shape[-2], k.shape[-2], q.device)
    if keep is None:
        return log_weights.softmax(-1) @ v
    alive = keep.any(-1, keepdim=True)
    log_weights = log_weights.masked_fill(~keep, float("-inf")).masked_fill(~alive, 0.0)
    return (log_weights.softmax(-1) * alive) @ v


def with_gradients(function: Any, tensors: list[Tensor], mask: AttentionMask) -> list[Tensor]:
    *qkv, gradient = tensors
    leaves = [x.clone().requires_grad_() for x in qkv]
    out = function(*leaves, mask)
    out.backward(gradient)
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


def require_same(
    tensors: list[Tensor], mask: AttentionMask, *, tolerance: float, features: int = R
) -> None:
    core = make_core("performer", H, D, num_features=features)
    found = with_gradients(core, tensors, mask)
    wide = [x.double() for x in tensors]
    want = with_gradients(lambda *args: dense(core, *args), wide, mask)
    for one, other in zip(found, want, strict=True):
        assert one.isfinite().all()
        scale = max(float(other.abs().max()), 1.0)
        assert_close(one.double(), other, rtol=0, atol=tolerance * scale)


def padding(N: int, *lengths: int) -> Tensor:
    """Left-padded where a length is negative."""
    rows = [torch.arange(N) < n if n >= 0 else torch.arange(N) >= N + n for n in lengths]
    return torch.stack(rows)


@pytest.mark.usefixtures("no_formula")
@pytest.mark.parametrize("N", [1, 2, 15, 16, 17, 31, 64, 65, 97, 131])
@DIRECTIONS
def test_lengths_around_chunks_and_pieces(causal: bool, N: int) -> None:
    require_same(inputs(N, N), AttentionMask(causal=causal), tolerance=2e-5)


@pytest.mark.usefixtures("no_formula")
@pytest.mark.parametrize(("N", "M"), [(70, 33), (5, 1), (130, 64)])
@DIRECTIONS
def test_more_queries_than_keys(causal: bool, N: int, M: int) -> None:
    mask = AttentionMask(causal=causal, key_padding=padding(M, M // 2, -((M + 1) // 2)))
    require_same(inputs(N, M), mask, tolerance=2e-5)


@pytest.mark.parametrize(("N", "M"), [(33, 70), (1, 65)])
def test_more_keys_than_queries(N: int, M: int) -> None:
    require_same(inputs(N, M), AttentionMask(), tolerance=2e-5)


@pytest.mark.usefixtures("no_formula")
@pytest.mark.parametrize("lengths", [(0, 90), (33, -40), (-1, 1)])
@DIRECTIONS
def test_padding_on_either_side_and_a_sample_of_nothing_else(
    causal: bool, lengths: tuple[int, int]
) -> None:
    mask = AttentionMask(causal=causal, key_padding=padding(90, *lengths))
    require_same(inputs(90, 90), mask, tolerance=5e-5)


@pytest.mark.usefixtures("no_formula")
@pytest.mark.parametrize("N", [17, 131])
@DIRECTIONS
def test_half_precision(causal: bool, N: int) -> None:
    mask = AttentionMask(causal=causal, key_padding=padding(N, N - 3, N))
    require_same(inputs(N, N, dtype=BF16), mask, tolerance=0.03)
    require_same(inputs(N, N, dtype=torch.float16), mask, tolerance=5e-3)


@pytest.mark.parametrize("spread", [3.0, 6.0])
@DIRECTIONS
def test_large_queries_and_keys(causal: bool, spread: float) -> None:
    """A stabiliser over the whole sequence fails here."""
    tensors = inputs(131, 131, spread=spread)
    require_same(tensors, AttentionMask(causal=causal), tolerance=2e-3, features=64)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_shape_and_mask(data: st.DataObject) -> None:
    causal = data.draw(st.booleans())
    N = data.draw(st.integers(1, 140))
    M = N if causal else data.draw(st.integers(1, 140))
    seen = None
    if data.draw(st.booleans()):
        seed = data.draw(st.integers(0, 99))
        seen = torch.rand(2, M, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask = AttentionMask(causal=causal, key_padding=seen)
    require_same(inputs(N, M), mask, tolerance=5e-5, features=data.draw(st.integers(1, 40)))


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
@DIRECTIONS
def test_views_give_what_their_copies_give(causal: bool, dtype: torch.dtype) -> None:
    core, mask = make_core("performer", H, D, num_features=R), AttentionMask(causal=causal)
    copies = inputs(70, 70, dtype=dtype)
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in copies]
    for one, other in zip(
        with_gradients(core, views, mask), with_gradients(core, copies, mask), strict=True
    ):
        assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wanted", [0, 1, 2])
@DIRECTIONS
def test_a_gradient_of_one_input_alone(causal: bool, wanted: int) -> None:
    core, mask = make_core("performer", H, D, num_features=R), AttentionMask(causal=causal)
    *qkv, gradient = inputs(40, 40)
    alone = [x.clone().requires_grad_(i == wanted) for i, x in enumerate(qkv)]
    core(*alone, mask).backward(gradient)
    want = with_gradients(core, [*qkv, gradient], mask)[1 + wanted]
    assert_close(alone[wanted].grad, want)
    assert all(x.grad is None for i, x in enumerate(alone) if i != wanted)


@DIRECTIONS
def test_gradients_of_gradients(causal: bool) -> None:
    core = make_core("performer", H, D, num_features=5, dtype=torch.float64)
    mask = AttentionMask(causal=causal, key_padding=padding(19, 19, 7))
    leaves = [x.requires_grad_() for x in inputs(19, 19, dtype=torch.float64)[:3]]
    assert torch.autograd.gradcheck(lambda *x: core(*x, mask), leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *x: core(*x, mask), leaves, fast_mode=True)


@DIRECTIONS
def test_samples_and_later_tokens_touch_nothing(causal: bool) -> None:
    core, mask = make_core("performer", H, D, num_features=R), AttentionMask(causal=causal)
    q, k, v, _ = inputs(100, 100)
    out = core(q, k, v, mask)
    assert_close(core(q[:1], k[:1], v[:1], mask), out[:1], rtol=1e-5, atol=1e-6)
    if causal:
        k, v = k.clone(), v.clone()
        k[:, :, 90:] *= 30
        v[:, :, 90:] *= 30
        assert_close(core(q, k, v, mask)[:, :, :90], out[:, :, :90], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("no_formula")
def test_a_late_key_larger_than_all_before_takes_nothing_from_them() -> None:
    """Relative to a maximum over the piece, the sums of the first queries would vanish."""
    q, k, v, gradient = inputs(40, 40)
    k[:, :, :30] *= 12
    k[:, :, 30:] = 0
    require_same([q, k, v, gradient], AttentionMask(causal=True), tolerance=1e-4)


def test_queries_whose_normaliser_is_lost_are_computed_again() -> None:
    """Opposite queries and keys, so far out that fp32 loses the sum: forward and backward."""
    q, k, v, gradient = inputs(40, 40, spread=0.1)
    q[..., 20:, 0] += 100
    k[..., 0] -= 100
    mask = AttentionMask(causal=True)
    core = make_core("performer", H, D, num_features=4)
    normalisers = performer_causal.causal(q, k, v, core.features, None, core._formula)[1]
    assert bool((normalisers < performer.LOST).any())
    require_same([q, k, v, gradient], mask, tolerance=1e-4, features=4)


def test_denormal_numbers_are_avoided() -> None:
    """They slow products down a hundredfold: padding and the empty first sums make none."""
    tiny = torch.finfo(torch.float32).tiny
    lost = torch.tensor([-1e30, -300.0, -87.4, -80.0, -1.0, 0.0])
    assert (performer_pieces.exp_(lost.clone()) >= tiny).all()
    decayed = performer_pieces.decay_(lost.clone())
    assert_close(decayed[-2:], lost[-2:].exp())
    assert (decayed[:4] == 0).all()


@pytest.mark.usefixtures("no_formula")
@pytest.mark.parametrize("N", [40, 64, 131])
def test_products_as_counted(N: int) -> None:
    """Over several pieces, as the benchmark's lengths are not."""
    core = make_core("performer", H, D, num_features=R)
    for causal, kernel in (
        (False, noncausal_kernel.noncausal_products),
        (True, performer_causal.causal_products),
    ):
        with FlopCounterMode(display=False) as counter:
            with_gradients(core, inputs(N, N, B=1), AttentionMask(causal=causal))
        assert counter.get_total_flops() == 2 * H * kernel(N, N, D, R, backward=True)
