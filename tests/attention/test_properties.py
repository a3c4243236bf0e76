"""Properties that hold for any shape, drawn by hypothesis: small cases nobody thought of."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shipped import shipped
from torch import Tensor
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import Case, clear_module, qkv, through
from .oracles import dense

# Derandomised: a failure is the same for everyone, and no database of examples is written.
# The one fixture only seeds torch, which every draw here does for itself.
RELAXED = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
EXACT = {"rtol": 1e-7, "atol": 1e-8}

lengths = st.integers(1, 18)
seeds = st.integers(0, 2**20)
spreads = st.sampled_from([0.1, 1.0, 5.0])


@st.composite
def local_options(draw: st.DrawFn) -> dict[str, Any]:
    side = st.integers(0, 6)
    return {
        "window": draw(side | st.tuples(side, side)),
        "global_tokens": draw(st.integers(0, 3)),
    }


@st.composite
def shifted_options(draw: st.DrawFn, with_grid: bool) -> dict[str, Any]:
    size = st.integers(1, 5)
    if not with_grid:
        window = draw(size)
        return {"window": window, "shift": draw(st.integers(0, window - 1))}
    pair = draw(st.tuples(size, size))
    return {
        "window": pair,
        "shift": draw(st.integers(0, min(pair) - 1)),
        "grid": draw(st.tuples(st.integers(1, 7), st.integers(1, 7))),
        "relative_bias": draw(st.booleans()),
    }


def padding(draw: st.DataObject, batch: int, M: int) -> Tensor | None:
    """Any pattern of padding, all and none included, not only runs at an end."""
    if not draw.draw(st.booleans()):
        return None
    bits = st.lists(st.booleans(), min_size=M, max_size=M)
    return torch.tensor([draw.draw(bits) for _ in range(batch)])


def agrees(case: Case, q: Tensor, k: Tensor, v: Tensor, **masks: Any) -> None:
    """Output and weights are the oracle's, and each says the same as the other."""
    module = clear_module(case, heads=q.shape[1], width=q.shape[-1])
    want, want_weights = dense(case.variant, case.options, q, k, v, core=module.core, **masks)
    assert_close(through(module, q, k, v, **masks), want, **EXACT)
    if not case.can("weights"):
        return
    out, weights = through(module, q, k, v, need_weights=True, **masks)
    assert_close(weights, want_weights, **EXACT)
    assert_close(out, weights @ v, **EXACT)


@RELAXED
@given(N=lengths, M=lengths, causal=st.booleans(), seed=seeds, spread=spreads, data=st.data())
def test_full(N: int, M: int, causal: bool, seed: int, spread: float, data: st.DataObject) -> None:
    q, k, v = qkv(N, M, seed=seed, spread=spread)
    for implementation in ("fused", "naive"):
        case = Case("full", {"implementation": implementation})
        agrees(case, q, k, v, causal=causal, key_padding=padding(data, 2, M))


@RELAXED
@given(N=lengths, options=local_options(), causal=st.booleans(), seed=seeds, data=st.data())
def test_local_window(
    N: int, options: dict[str, Any], causal: bool, seed: int, data: st.DataObject
) -> None:
    q, k, v = qkv(N, seed=seed)
    agrees(Case("local_window", options), q, k, v, causal=causal, key_padding=padding(data, 2, N))


@RELAXED
@given(N=lengths, options=shifted_options(with_grid=False), causal=st.booleans(), data=st.data())
def test_shifted_window(N: int, options: dict[str, Any], causal: bool, data: st.DataObject) -> None:
    case = Case("shifted_window", options)
    agrees(case, *qkv(N), causal=causal, key_padding=padding(data, 2, N))


@RELAXED
@given(options=shifted_options(with_grid=True), data=st.data())
def test_shifted_window_on_a_grid(options: dict[str, Any], data: st.DataObject) -> None:
    N = options["grid"][0] * options["grid"][1]
    agrees(Case("shifted_window", options), *qkv(N), key_padding=padding(data, 2, N))


@RELAXED
@given(
    N=lengths,
    M=lengths,
    R=st.integers(1, 40),
    causal=st.booleans(),
    spread=spreads,
    seed=seeds,
    data=st.data(),
)
def test_performer(
    N: int, M: int, R: int, causal: bool, spread: float, seed: int, data: st.DataObject
) -> None:
    q, k, v = qkv(N, M, seed=seed, spread=spread)
    case = Case("performer", {"num_features": R, "seed": seed})
    agrees(case, q, k, v, causal=causal, key_padding=padding(data, 2, M))


@RELAXED
@given(
    N=lengths,
    M=lengths,
    K=st.integers(1, 20),
    share=st.sampled_from(["none", "heads", "kv"]),
    data=st.data(),
)
def test_linformer(N: int, M: int, K: int, share: str, data: st.DataObject) -> None:
    case = Case("linformer", {"k": K, "max_len": 18, "share": share})
    agrees(case, *qkv(N, M), key_padding=padding(data, 2, M))


@RELAXED
@given(N=lengths, seed=seeds, data=st.data())
def test_order_of_keys_means_nothing_to_full_and_performer(
    N: int, seed: int, data: st.DataObject
) -> None:
    order = torch.tensor(data.draw(st.permutations(range(N))))
    q, k, v = qkv(N, seed=seed)
    for variant in ("full", "performer"):
        want = ea.attention(q, k, v, variant=variant)
        got = ea.attention(q, k[:, :, order], v[:, :, order], variant=variant)
        assert_close(got, want, **EXACT)


@RELAXED
@given(
    N=st.integers(2, 18),
    variant=st.sampled_from(shipped(causal=True)),
    size=st.sampled_from([1e-3, 30.0, 1e3]),
    seed=seeds,
    data=st.data(),
)
def test_the_past_does_not_know_the_future(
    N: int, variant: str, size: float, seed: int, data: st.DataObject
) -> None:
    late = data.draw(st.integers(1, N - 1))
    q, k, v = qkv(N, seed=seed)
    before = ea.attention(q, k, v, variant=variant, is_causal=True)
    for x in (q, k, v):
        x[:, :, late:] *= size
    after = ea.attention(q, k, v, variant=variant, is_causal=True)
    assert_close(after[:, :, :late], before[:, :, :late], **EXACT)
