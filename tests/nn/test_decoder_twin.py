"""The decoder against torch.nn's: same weights, same outputs."""

import pytest
import torch
from torch import nn as torch_nn

from efficient_attn import UnsupportedAttention
from efficient_attn.nn import TransformerDecoder, TransformerDecoderLayer

B, N, M, D, H, FF = 3, 7, 10, 32, 4, 48
CAUSAL = torch_nn.Transformer.generate_square_subsequent_mask(N)
TGT_PADDING = torch.arange(N).expand(B, N) >= torch.tensor([[N], [4], [6]])
MEMORY_PADDING = torch.arange(M).expand(B, M) >= torch.tensor([[3], [M], [8]])
MEMORY_MASK = (torch.arange(N)[:, None] * 2 - torch.arange(M)).abs() > 3

CASES = {
    "plain": {},
    "causal": {"tgt_mask": CAUSAL},
    "causal_hint": {"tgt_mask": CAUSAL, "tgt_is_causal": True},
    "memory_mask": {"memory_mask": MEMORY_MASK[:, :M]},
    "memory_float": {"memory_mask": MEMORY_MASK.float() * -3},
    "padding": {
        "tgt_mask": CAUSAL < 0,
        "tgt_key_padding_mask": TGT_PADDING,
        "memory_key_padding_mask": MEMORY_PADDING,
    },
}


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("case", CASES)
def test_stack_agrees_with_torch(case: str, norm_first: bool) -> None:
    theirs = torch_nn.TransformerDecoder(
        torch_nn.TransformerDecoderLayer(D, H, FF, batch_first=True, norm_first=norm_first), 2
    ).eval()
    ours = TransformerDecoder(TransformerDecoderLayer(D, H, FF, norm_first=norm_first), 2).eval()
    for weight in theirs.parameters():
        torch_nn.init.normal_(weight, std=0.3)
    ours.load_state_dict(theirs.state_dict())
    tgt, memory = torch.randn(B, N, D), torch.randn(B, M, D)
    expected, got = theirs(tgt, memory, **CASES[case]), ours(tgt, memory, **CASES[case])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_weights_load_back_into_torch() -> None:
    theirs = torch_nn.TransformerDecoderLayer(D, H, FF, batch_first=True).eval()
    ours = TransformerDecoderLayer(D, H, FF).eval()
    theirs.load_state_dict(ours.state_dict())
    tgt, memory = torch.randn(B, N, D), torch.randn(B, M, D)
    expected = theirs(tgt, memory, CAUSAL, memory_is_causal=False, tgt_is_causal=True)
    got = ours(tgt, memory, CAUSAL, memory_is_causal=False, tgt_is_causal=True)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_own_and_cross_variants_train() -> None:
    layer = TransformerDecoderLayer(
        D,
        H,
        FF,
        variant=["local_window", "performer"],
        variant_options={"local_window": {"window": 3}, "performer": {"num_features": 16}},
        cross_variant="linformer",
        cross_variant_options={"k": 4},
        memory_max_len=M,
    )
    stack = TransformerDecoder(layer, 2)
    out = stack(torch.randn(B, N, D), torch.randn(B, M, D), tgt_mask=CAUSAL)
    assert out.shape == (B, N, D)
    out.square().sum().backward()
    for name, weight in stack.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
    assert [each.self_attn.variant for each in stack.layers] == ["local_window", "performer"]


def test_cross_variant_that_cannot_cross_is_refused_when_built() -> None:
    with pytest.raises(UnsupportedAttention, match=r"shifted_window.*full"):
        TransformerDecoderLayer(D, H, cross_variant="shifted_window")


def test_batch_first_false_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_first=False"):
        TransformerDecoderLayer(D, H, batch_first=False)
