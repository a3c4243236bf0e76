"""The function and the module: shapes, arguments, defaults and grouped heads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import (
    CASES,
    ONE_EACH,
    Case,
    attend,
    direction,
    qkv,
    select,
    suggests_an_alternative,
)

EACH_CASE = pytest.mark.parametrize("case", CASES, ids=str)


# --- the function ------------------------------------------------------------------------------


@EACH_CASE
def test_function_shapes(case: Case) -> None:
    q, k, v = qkv(case.length or 6, value_width=5, dtype=torch.float32)
    out = attend(case, q, k, v, is_causal=direction(case))
    assert out.shape == (2, 2, q.shape[2], 5)
    assert out.dtype == torch.float32


@select("weights")
def test_weights_times_values_are_the_output(case: Case) -> None:
    q, k, v = qkv(case.length or 7, value_width=3)
    for causal in (False, True):
        if case.can("causal_self" if causal else "noncausal_self"):
            out, weights = attend(case, q, k, v, need_weights=True, is_causal=causal)
            assert_close(weights @ v, out, rtol=1e-8, atol=1e-9)
            assert_close(attend(case, q, k, v, is_causal=causal), out, rtol=1e-8, atol=1e-9)


@EACH_CASE
def test_scale_is_a_scaling_of_queries(case: Case) -> None:
    q, k, v = qkv(case.length or 6)
    scale = 0.7
    assert_close(
        attend(case, q, k, v, scale=scale, is_causal=direction(case)),
        attend(case, q * scale * q.shape[-1] ** 0.5, k, v, is_causal=direction(case)),
        rtol=1e-8,
        atol=1e-9,
    )


@EACH_CASE
def test_strides_mean_nothing(case: Case) -> None:
    """Views of one packed tensor, and one value broadcast over heads, in inference mode."""
    N = case.length or 11
    packed = torch.randn(2, N, 3, 2, 8, dtype=torch.float64)
    q, k, _ = (x.transpose(1, 2) for x in packed.unbind(2))
    v = torch.randn(2, 1, N, 8, dtype=torch.float64).expand(-1, 2, -1, -1)
    with torch.inference_mode():
        got = attend(case, q, k, v, is_causal=direction(case))
    want = attend(case, *(x.contiguous() for x in (q, k, v)), is_causal=direction(case))
    assert_close(got, want)


def shares_across_heads(case: Case) -> bool:
    """Whether nothing learned belongs to single key/value heads, so that they can be repeated."""
    return case.options.get("share") != "none"


@pytest.mark.parametrize("kv_heads", [1, 2])
@select(where=shares_across_heads)
def test_grouped_heads_equal_repeated_heads(case: Case, kv_heads: int) -> None:
    """Query head h reads key/value head h // (H / G), as in F.scaled_dot_product_attention."""
    q, k, v = qkv(case.length or 6, heads=4, kv_heads=kv_heads)
    repeated = [x.repeat_interleave(4 // kv_heads, dim=1) for x in (k, v)]
    assert_close(
        attend(case, q, k, v, is_causal=direction(case)),
        attend(case, q, *repeated, is_causal=direction(case)),
        rtol=1e-8,
        atol=1e-9,
    )


def test_dropout_of_the_function_keeps_the_mean() -> None:
    q, k, v = qkv(6, batch=1, heads=1)
    torch.manual_seed(0)
    outs = torch.stack([ea.attention(q, k, v, dropout_p=0.3) for _ in range(3000)])
    assert not torch.equal(outs[0], outs[1])
    assert_close(outs.mean(0), ea.attention(q, k, v), rtol=0, atol=0.08)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 2, 5, 8), (2, 2, 5, 4), (2, 2, 5, 8)),
        ((2, 2, 5, 8), (2, 2, 5, 8), (2, 2, 6, 8)),
        ((2, 2, 5, 8), (3, 2, 5, 8), (3, 2, 5, 8)),
        ((2, 4, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8)),
        ((2, 5, 8), (2, 5, 8), (2, 5, 8)),
    ],
    ids=["head_dim", "key_value_length", "batch", "heads", "rank"],
)
def test_shapes_that_do_not_fit_are_said_plainly(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError):
        ea.attention(*(torch.randn(s) for s in shapes))


# --- the module --------------------------------------------------------------------------------


@EACH_CASE
def test_module_shapes_and_no_weights_unless_asked(case: Case) -> None:
    module = ea.MultiHeadAttention(16, 2, case.variant, **case.options)
    x = torch.randn(3, case.length or 5, 16)
    out, weights = module(x, is_causal=direction(case))
    assert out.shape == x.shape
    assert weights is None


@EACH_CASE
def test_key_defaults_to_query_and_value_to_key(case: Case) -> None:
    module = ea.MultiHeadAttention(16, 2, case.variant, **case.options).eval()
    x = torch.randn(3, case.length or 5, 16)
    want = module(x, x, x, is_causal=direction(case))[0]
    assert_close(module(x, is_causal=direction(case))[0], want)
    assert_close(module(x, x, is_causal=direction(case))[0], want)


@select("noncausal_cross", where=lambda c: not c.can("equal_lengths"))
def test_module_with_other_widths(case: Case) -> None:
    module = ea.MultiHeadAttention(
        16, 4, case.variant, kdim=12, vdim=20, head_dim=6, num_kv_heads=2, **case.options
    )
    out, _ = module(torch.randn(2, 5, 16), torch.randn(2, 9, 12), torch.randn(2, 9, 20))
    assert out.shape == (2, 5, 16)


@EACH_CASE
def test_module_with_grouped_heads_trains(case: Case) -> None:
    module = ea.MultiHeadAttention(16, 4, case.variant, num_kv_heads=2, **case.options)
    out, _ = module(torch.randn(2, case.length or 5, 16), is_causal=direction(case))
    out.square().sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@select(where=shares_across_heads)
def test_module_with_grouped_heads_equals_repeated_projections(case: Case) -> None:
    grouped = ea.MultiHeadAttention(16, 4, case.variant, num_kv_heads=2, **case.options).eval()
    whole = ea.MultiHeadAttention(16, 4, case.variant, **case.options).eval()
    state = {**whole.state_dict(), **grouped.state_dict()}
    for name in ("in_proj_weight", "in_proj_bias"):
        q, k, v = getattr(grouped, name).detach().split([16, 8, 8])
        repeated = [
            x.unflatten(0, (2, 4)).repeat_interleave(2, dim=0).flatten(0, 1) for x in (k, v)
        ]
        state[name] = torch.cat([q, *repeated])
    whole.load_state_dict(state)
    x = torch.randn(2, case.length or 7, 16)
    want, _ = whole(x, is_causal=direction(case))
    assert_close(grouped(x, is_causal=direction(case))[0], want)


def test_grouped_heads_have_fewer_parameters() -> None:
    def count(kv_heads: int) -> int:
        module = ea.MultiHeadAttention(16, 4, num_kv_heads=kv_heads)
        return sum(p.numel() for p in module.parameters())

    assert count(1) < count(2) < count(4)


@pytest.mark.parametrize("bias", [True, False])
def test_bias_and_dtype_reach_every_parameter(bias: bool) -> None:
    module = ea.MultiHeadAttention(16, 2, bias=bias, dtype=torch.float64)
    assert all(p.dtype == torch.float64 for p in module.parameters())
    assert any("bias" in n for n, _ in module.named_parameters()) is bias
    with torch.device("meta"):
        on_meta = ea.MultiHeadAttention(16, 2)
    assert all(p.is_meta for p in on_meta.parameters())


@EACH_CASE
def test_device_is_accepted(case: Case) -> None:
    module = ea.MultiHeadAttention(16, 2, case.variant, device="cpu", **case.options)
    assert {t.device.type for t in module.state_dict().values()} <= {"cpu"}


def test_unknown_arguments_of_forward_are_not_swallowed() -> None:
    with pytest.raises(TypeError):
        ea.MultiHeadAttention(16, 2)(torch.randn(1, 3, 16), key_padding_msk=None)


@pytest.mark.parametrize("shape", [(2, 5, 12), (2, 5), (5,)], ids=str)
def test_an_input_of_the_wrong_shape_is_said_plainly(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        ea.MultiHeadAttention(16, 2)(torch.randn(shape))


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_from_config_reads_hugging_face_names(case: Case) -> None:
    config = SimpleNamespace(hidden_size=16, num_attention_heads=2)
    module = ea.MultiHeadAttention.from_config(config, variant=case.variant, **case.options)
    x = torch.randn(2, case.length or 5, 16)
    assert module(x, is_causal=direction(case))[0].shape == x.shape


def test_from_config_says_what_is_missing() -> None:
    with pytest.raises((ValueError, TypeError, AttributeError), match="num_attention_heads"):
        ea.MultiHeadAttention.from_config(SimpleNamespace(hidden_size=16))


def test_from_torch_copies_rather_than_shares() -> None:
    theirs = nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64)
    mine = ea.MultiHeadAttention.from_torch(theirs, variant="full").eval()
    assert all(p.dtype == torch.float64 for p in mine.parameters())
    x = torch.randn(1, 4, 16, dtype=torch.float64)
    before = mine(x)[0].detach().clone()
    with torch.no_grad():
        theirs.in_proj_weight.zero_()
        theirs.out_proj.weight.zero_()
    assert_close(mine(x)[0], before)


def test_causal_of_linformer_is_refused_with_reasons() -> None:
    with pytest.raises(ea.UnsupportedAttention) as caught:
        attend(Case("linformer", {"k": 4, "max_len": 64}), *qkv(5), is_causal=True)
    assert "linformer" in str(caught.value)
    assert suggests_an_alternative(caught.value, "causal_self")
