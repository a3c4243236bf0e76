"""The encoder against torch.nn's: same weights, same outputs, same gradients."""

import pytest
import torch
from shipped import SHIPPED, shipped
from torch import nn as torch_nn
from torch.nn import functional as F

from efficient_attn import UnsupportedAttention
from efficient_attn.nn import TransformerEncoder, TransformerEncoderLayer

B, N, D, H, FF = 3, 11, 32, 4, 48


def padding() -> torch.Tensor:
    mask = torch.zeros(B, N, dtype=torch.bool)
    mask[0, 7:] = True
    mask[2, 3:] = True
    return mask


def causal_matrix() -> torch.Tensor:
    return torch_nn.Transformer.generate_square_subsequent_mask(N)


def band() -> torch.Tensor:
    place = torch.arange(N)
    return (place[:, None] - place).abs() > 2


CASES = {
    "plain": {},
    "padding": {"src_key_padding_mask": padding()},
    "float_padding": {"src_key_padding_mask": padding().float() * -5.0},
    "causal": {"mask": causal_matrix()},
    "causal_bool": {"mask": causal_matrix() < 0},
    "causal_hint": {"mask": causal_matrix(), "is_causal": True},
    "band": {"mask": band()},
    "float_mask": {"mask": torch.linspace(-2, 2, N * N).reshape(N, N)},
    "per_head": {"mask": band().repeat(B * H, 1, 1)},
    "causal_padding": {
        "mask": causal_matrix(),
        "src_key_padding_mask": padding().float().masked_fill(padding(), float("-inf")),
    },
}


def stacks(**arguments) -> tuple[torch_nn.Module, TransformerEncoder]:
    theirs = torch_nn.TransformerEncoder(
        torch_nn.TransformerEncoderLayer(D, H, FF, batch_first=True, **arguments),
        2,
        torch_nn.LayerNorm(D),
        enable_nested_tensor=False,
    )
    ours = TransformerEncoder(
        TransformerEncoderLayer(D, H, FF, **arguments), 2, torch_nn.LayerNorm(D)
    )
    for weight in theirs.parameters():
        torch_nn.init.normal_(weight, std=0.3)
    return theirs.eval(), ours.eval()


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("case", CASES)
def test_stack_agrees_with_torch(case: str, norm_first: bool) -> None:
    theirs, ours = stacks(norm_first=norm_first)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(B, N, D)
    expected, got = theirs(x, **CASES[case]), ours(x, **CASES[case])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "activation",
    ["relu", "gelu", F.silu, torch_nn.Tanh()],
    ids=["relu", "gelu", "function", "module"],
)
def test_activations_and_gradients_agree(activation) -> None:
    theirs, ours = stacks(activation=activation, norm_first=True, layer_norm_eps=1e-3)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(B, N, D)
    for model in (theirs, ours):
        model(x, src_key_padding_mask=padding())[~padding()].square().sum().backward()
    for (name, a), b in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, atol=1e-4, rtol=1e-4, msg=name)


def test_layer_alone_agrees_and_weights_load_back() -> None:
    theirs = torch_nn.TransformerEncoderLayer(D, H, FF, batch_first=True, bias=False).eval()
    ours = TransformerEncoderLayer(D, H, FF, bias=False).eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(B, N, D)
    with torch.no_grad():
        expected = theirs(x, src_mask=band(), src_key_padding_mask=None)
    torch.testing.assert_close(ours(x, src_mask=band()), expected, atol=1e-5, rtol=1e-5)


def test_positional_arguments_are_torchs() -> None:
    arguments = (D, H, FF, 0.0, "gelu", 1e-4, True, True, True, None, torch.float64)
    theirs = torch_nn.TransformerEncoderLayer(*arguments)
    ours = TransformerEncoderLayer(*arguments)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(B, N, D, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))


def test_stack_copies_the_layers_weights_as_torch_does() -> None:
    layer = TransformerEncoderLayer(D, H, FF).double()
    stack = TransformerEncoder(layer, 2)
    for name, value in layer.state_dict().items():
        torch.testing.assert_close(stack.state_dict()[f"layers.1.{name}"], value)
    fresh = TransformerEncoder(layer, 2, same_weights=False)
    assert not torch.equal(fresh.layers[0].linear1.weight, fresh.layers[1].linear1.weight)


def test_batch_first_false_is_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_first=False.*\[batch, length, d_model\]"):
        TransformerEncoderLayer(D, H, batch_first=False)


def test_unknown_activation_names_the_known() -> None:
    with pytest.raises(ValueError, match="relu, gelu"):
        TransformerEncoderLayer(D, H, activation="swishy")


def test_stack_of_a_foreign_layer_is_refused() -> None:
    with pytest.raises(TypeError, match="TransformerEncoderLayer"):
        TransformerEncoder(torch_nn.TransformerEncoderLayer(D, H), 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", SHIPPED)
def test_gradients_reach_every_parameter_of_every_variant(variant: str) -> None:
    layer = TransformerEncoderLayer(D, H, FF, variant=variant, max_len=N, short_conv=3)
    stack = TransformerEncoder(layer, 2)
    stack(torch.randn(B, N, D)).square().sum().backward()
    for name, weight in stack.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name


@pytest.mark.parametrize("variant", shipped(key_padding=True))
def test_padded_content_moves_nothing(variant: str) -> None:
    layer = TransformerEncoderLayer(D, H, FF, variant=variant, max_len=N, short_conv=3)
    stack = TransformerEncoder(layer, 2).eval()
    x = torch.randn(B, N, D)
    other = x.masked_fill(padding()[..., None], 7.0)
    kept = [stack(inputs, src_key_padding_mask=padding())[~padding()] for inputs in (x, other)]
    torch.testing.assert_close(*kept)


@pytest.mark.parametrize("variant", shipped(causal=True))
@pytest.mark.parametrize("spelled", ["flag", "float", "bool", "both"])
def test_causality_in_every_spelling(variant: str, spelled: str) -> None:
    """torch.nn's stacks are told by a matrix; variants without pairwise masks must understand."""
    masks = {
        "flag": {"is_causal": True},
        "float": {"mask": causal_matrix()},
        "bool": {"mask": causal_matrix() < 0},
        "both": {"mask": causal_matrix(), "is_causal": True},
    }
    layer = TransformerEncoderLayer(D, H, FF, variant=variant, max_len=N, norm_first=True)
    stack = TransformerEncoder(layer, 2).eval()
    x = torch.randn(B, N, D)
    later = x.clone()
    later[:, 6:] = torch.randn(B, N - 6, D) * 30
    before, after = (stack(inputs, **masks[spelled])[:, :6] for inputs in (x, later))
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)


def test_variants_repeat_over_depth() -> None:
    layer = TransformerEncoderLayer(
        D, H, FF, variant=["local_window", "local_window", "full"], variant_options={"window": 2}
    )
    stack = TransformerEncoder(layer, 5)
    names = [layer.self_attn.variant for layer in stack.layers]
    assert names == ["local_window", "local_window", "full", "local_window", "local_window"]
    assert stack.layers[3].self_attn.core.options.window == 2
    assert stack(torch.randn(B, N, D)).shape == (B, N, D)


def test_windows_shift_in_every_second_layer() -> None:
    layer = TransformerEncoderLayer(
        D, H, FF, variant="shifted_window", variant_options={"window": 4}
    )
    shifts = [each.self_attn.core.options.shift for each in TransformerEncoder(layer, 4).layers]
    assert shifts == [0, 2, 0, 2]


def test_projections_shared_between_layers_are_one_parameter() -> None:
    layer = TransformerEncoderLayer(
        D, H, FF, variant="linformer", variant_options={"k": 4, "share": "layers"}, max_len=N
    )
    stack = TransformerEncoder(layer, 3)
    cores = [[id(p) for p in each.self_attn.core.parameters()] for each in stack.layers]
    assert cores[0]
    assert cores[0] == cores[1] == cores[2]


def test_causal_linformer_is_refused() -> None:
    layer = TransformerEncoderLayer(D, H, FF, variant="linformer", max_len=N)
    with pytest.raises(UnsupportedAttention, match="linformer"):
        layer(torch.randn(B, N, D), is_causal=True)


def test_short_convolution_sees_only_the_past_and_is_off_by_default() -> None:
    assert not any("short_conv" in name for name in TransformerEncoderLayer(D, H).state_dict())
    layer = TransformerEncoderLayer(D, H, FF, short_conv=3).eval()
    x = torch.randn(B, N, D)
    other = x.clone()
    other[:, 5:] = 0
    before, after = (layer(inputs, is_causal=True)[:, :5] for inputs in (x, other))
    torch.testing.assert_close(before, after)
