"""The same numbers as torch's own attention, and as Swin in transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import kept, qkv


@pytest.mark.parametrize("implementation", ["fused", "naive"])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float", "broadcast", "padding"])
def test_full_equals_torch_sdpa(mask: str, implementation: str) -> None:
    q, k, v = qkv(7, 7, dtype=torch.float32, value_width=5)
    generator = torch.Generator().manual_seed(3)
    bias = torch.randn(7, 7, generator=generator)
    allowed = (bias > -0.5) | torch.eye(7, dtype=torch.bool)
    present = kept([7, 4], 7)
    mine: dict[str, Any] = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": allowed},
        "float": {"attn_mask": bias},
        "broadcast": {"attn_mask": present[:, None, None, :]},
        "padding": {"key_padding_mask": present},
    }[mask]
    theirs = {"attn_mask": present[:, None, None, :]} if mask == "padding" else mine
    assert_close(
        ea.attention(q, k, v, variant="full", implementation=implementation, scale=0.3, **mine),
        F.scaled_dot_product_attention(q, k, v, scale=0.3, **theirs),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("average", [True, False], ids=["averaged", "per_head"])
@pytest.mark.parametrize("widths", [{}, {"kdim": 12, "vdim": 20}], ids=["same", "kdim_vdim"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize(
    "mask", ["none", "bool", "float", "padding", "float_padding", "both", "3d"]
)
def test_full_equals_torch_multihead_attention(
    mask: str, bias: bool, widths: dict[str, int], average: bool
) -> None:
    E, N, M = 16, 5, 7
    theirs = nn.MultiheadAttention(E, 4, bias=bias, batch_first=True, **widths).eval()
    if bias:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    mine = ea.MultiHeadAttention.from_torch(theirs, variant="full").eval()
    query = torch.randn(2, N, E)
    key = torch.randn(2, M, widths.get("kdim", E))
    value = torch.randn(2, M, widths.get("vdim", E))
    blocked = torch.rand(N, M) > 0.6
    blocked[:, 0] = False
    padding = torch.zeros(2, M, dtype=torch.bool)
    padding[1, 5:] = True
    masks: dict[str, Any] = {
        "none": {},
        "bool": {"attn_mask": blocked},
        "float": {"attn_mask": torch.randn(N, M)},
        "padding": {"key_padding_mask": padding},
        "float_padding": {"key_padding_mask": torch.zeros(2, M).masked_fill(padding, -torch.inf)},
        "both": {"attn_mask": blocked, "key_padding_mask": padding},
        "3d": {"attn_mask": torch.randn(2 * 4, N, M)},
    }[mask]
    kwargs = {"need_weights": True, "average_attn_weights": average, **masks}
    got, got_weights = mine(query, key, value, **kwargs)
    want, want_weights = theirs(query, key, value, **kwargs)
    assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert_close(got_weights, want_weights, rtol=1e-5, atol=1e-6)


def test_from_torch_reads_a_sequence_first_module() -> None:
    """The weights do not know where the batch stands; ours is batch first whatever theirs was."""
    theirs = nn.MultiheadAttention(16, 4, batch_first=False).eval()
    mine = ea.MultiHeadAttention.from_torch(theirs, variant="full").eval()
    x = torch.randn(2, 5, 16)
    t = x.transpose(0, 1)
    want = theirs(t, t, t)[0].transpose(0, 1)
    assert_close(mine(x)[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("extra", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_from_torch_refuses_what_it_cannot_carry(extra: dict[str, bool]) -> None:
    theirs = nn.MultiheadAttention(16, 4, batch_first=True, **extra)
    with pytest.raises((ValueError, ea.UnsupportedAttention), match=next(iter(extra))):
        ea.MultiHeadAttention.from_torch(theirs, variant="full")


def test_wide_window_is_full_attention() -> None:
    theirs = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 9, 16)
    for variant, options in [
        ("local_window", {"window": 9}),
        ("shifted_window", {"window": 9, "shift": 0}),
        ("local_window", {"window": 0, "global_tokens": 9}),
    ]:
        mine = ea.MultiHeadAttention.from_torch(theirs, variant=variant, **options).eval()
        assert_close(mine(x)[0], theirs(x, x, x)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("grid", [(8, 8), (8, 12)], ids=str)
@pytest.mark.parametrize("shift", [0, 2])
def test_shifted_window_equals_transformers_swin(grid: tuple[int, int], shift: int) -> None:
    """Swin's own layer with everything around the attention taken away; grids that divide,
    because Swin lets real tokens attend to its padding."""
    swin = pytest.importorskip("transformers.models.swin.modeling_swin")
    config = swin.SwinConfig(window_size=4, hidden_dropout_prob=0.0)
    config._attn_implementation = "eager"
    E, heads = 16, 4
    layer = swin.SwinLayer(config, E, grid, heads, shift_size=shift).eval()
    q, k, v, out = [m for m in layer.attention.modules() if isinstance(m, nn.Linear)]
    (table,) = [p for n, p in layer.named_parameters() if "relative_position_bias_table" in n]
    nn.init.normal_(table)
    layer.layernorm_before = layer.layernorm_after = nn.Identity()
    x = torch.randn(2, grid[0] * grid[1], E)
    seen: list[Tensor] = []
    layer.mlp = nn.Identity()
    layer.layernorm_after.register_forward_hook(lambda m, i, o: seen.append(i[0]))
    layer(x, grid)
    # Both norms are the same Identity: the last call's input is shortcut + attention.
    want = seen[-1] - x

    twin = nn.MultiheadAttention(E, heads, batch_first=True)
    with torch.no_grad():
        twin.in_proj_weight.copy_(torch.cat([q.weight, k.weight, v.weight]))
        twin.in_proj_bias.copy_(torch.cat([q.bias, k.bias, v.bias]))
        twin.out_proj.weight.copy_(out.weight)
        twin.out_proj.bias.copy_(out.bias)
        mine = ea.MultiHeadAttention.from_torch(
            twin, variant="shifted_window", window=4, shift=shift, grid=grid, relative_bias=True
        ).eval()
        mine.core.relative_bias.copy_(table)
    assert_close(mine(x)[0], want, rtol=1e-4, atol=1e-5)
