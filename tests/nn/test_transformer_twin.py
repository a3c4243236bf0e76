"""The Transformer against torch.nn's: same weights, same outputs, same gradients."""

import inspect
from typing import Any

import pytest
import torch
from shipped import shipped
from torch import nn as torch_nn
from torch.nn import functional as F

from efficient_attn.attention import OptionError, UnsupportedAttention
from efficient_attn.nn import Transformer, TransformerEncoder, TransformerEncoderLayer

# torch.nn's says when its encoder cannot take the fast path, which nothing here asks for.
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")

B, N, M, D, H, FF = 3, 6, 9, 16, 4, 24
SIZES = {
    "d_model": D,
    "nhead": H,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "dim_feedforward": FF,
}
CAUSAL = torch_nn.Transformer.generate_square_subsequent_mask(N)
SRC_PADDING = torch.arange(M) >= torch.tensor([[M], [4], [6]])
TGT_PADDING = torch.arange(N) >= torch.tensor([[3], [N], [5]])
BAND = (torch.arange(N)[:, None] - torch.arange(M)).abs() > 4

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"tgt_mask": CAUSAL},
    "causal_hint": {"tgt_mask": CAUSAL, "tgt_is_causal": True},
    "memory_mask": {"memory_mask": BAND},
    "source_mask": {"src_mask": torch.linspace(-2, 2, M * M).reshape(M, M)},
    "padding": {
        "tgt_mask": CAUSAL < 0,
        "src_key_padding_mask": SRC_PADDING,
        "tgt_key_padding_mask": TGT_PADDING,
        "memory_key_padding_mask": SRC_PADDING,
    },
}


def pair(**arguments: Any) -> tuple[torch_nn.Transformer, Transformer]:
    """Theirs and ours in eval, ours with their weights, drawn so that norms and biases matter."""
    theirs = torch_nn.Transformer(**SIZES, batch_first=True, **arguments).eval()
    for weight in theirs.parameters():
        torch_nn.init.normal_(weight, std=0.3)
    ours = Transformer(**SIZES, **arguments).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(B, M, D, generator=generator),
        torch.randn(B, N, D, generator=generator),
    )


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_agree(case: str, norm_first: bool) -> None:
    theirs, ours = pair(norm_first=norm_first, activation="gelu", layer_norm_eps=1e-3)
    outputs = []
    for model in (theirs, ours):
        sources = [x.requires_grad_() for x in inputs()]
        out = model(*sources, **CASES[case])
        (out * torch.linspace(-1, 1, D)).square().sum().backward()
        outputs.append((out, *(x.grad for x in sources), *(p.grad for p in model.parameters())))
    for got, want in zip(*outputs[::-1], strict=True):
        torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("side", "length"), [("src", M), ("tgt", N)])
def test_a_flag_alone_is_the_causal_mask(side: str, length: int) -> None:
    """torch.nn wants the mask beside it."""
    theirs, ours = pair()
    mask = torch_nn.Transformer.generate_square_subsequent_mask(length)
    want = theirs(*inputs(), **{f"{side}_mask": mask})
    got = ours(*inputs(), **{f"{side}_is_causal": True})
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_weights_load_both_ways(bias: bool) -> None:
    ours = Transformer(**SIZES, bias=bias).eval()
    theirs = torch_nn.Transformer(**SIZES, bias=bias, batch_first=True).eval()
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(*inputs()), theirs(*inputs()), atol=1e-5, rtol=1e-5)
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_signature_is_torchs_and_more() -> None:
    for method in ("__init__", "forward"):
        theirs = inspect.signature(getattr(torch_nn.Transformer, method)).parameters
        ours = inspect.signature(getattr(Transformer, method)).parameters
        assert list(ours)[: len(theirs)] == list(theirs)
        changed = {
            name for name in theirs if ours[name].default not in (theirs[name].default, F.relu)
        }
        assert changed <= {"batch_first"}


def test_defaults_are_the_base_model() -> None:
    with torch.device("meta"):
        theirs, ours = torch_nn.Transformer(), Transformer()
    shapes = [{k: v.shape for k, v in model.state_dict().items()} for model in (theirs, ours)]
    assert shapes[0] == shapes[1]


def test_matrices_are_drawn_as_in_torch() -> None:
    """Xavier's bound for each matrix by its own size, not that of a linear layer; and no two
    layers alike."""
    model = Transformer(**SIZES)
    first, second = (layer.linear1.weight for layer in model.encoder.layers)
    bound = (6 / (D + FF)) ** 0.5
    assert 0.9 * bound < first.abs().max() <= bound
    assert not torch.equal(first, second)


def test_what_a_variant_drew_itself_stays() -> None:
    options = {"variant": "linformer", "variant_options": {"k": 2}, "decoder_variant": "full"}
    model = Transformer(**SIZES, **options, max_len=M)
    layer = TransformerEncoderLayer(
        D, H, FF, variant="linformer", variant_options={"k": 2}, max_len=M
    )
    expected = TransformerEncoder(layer, 2).layers[1].self_attn.core.state_dict()
    for name, value in model.encoder.layers[1].self_attn.core.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_square_mask_is_torchs() -> None:
    for arguments in ({}, {"dtype": torch.float64}):
        got = Transformer.generate_square_subsequent_mask(N, **arguments)
        want = torch_nn.Transformer.generate_square_subsequent_mask(N, **arguments)
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


def test_variants_by_place_and_depth() -> None:
    model = Transformer(
        **SIZES,
        variant=["linformer", "local_window"],
        variant_options={"linformer": {"k": 3}, "local_window": {"window": 2}},
        decoder_variant=["performer", "full"],
        cross_variant="performer",
        cross_variant_options={"num_features": 8},
        max_len=M,
    )
    out = model(*inputs(), tgt_mask=CAUSAL)
    out.square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
    layers = model.decoder.layers
    assert [layer.self_attn.variant for layer in model.encoder.layers] == [
        "linformer",
        "local_window",
    ]
    assert [layer.self_attn.variant for layer in layers] == ["performer", "full"]
    assert {layer.multihead_attn.variant for layer in layers} == {"performer"}
    assert layers[0].multihead_attn.core.options.num_features == 8


@pytest.mark.parametrize("variant", shipped(causal=True))
def test_one_variant_serves_both_sides(variant: str) -> None:
    model = Transformer(**SIZES, variant=variant).eval()
    source, target = inputs()
    later = target.clone()
    later[:, 4:] *= 30
    before, after = (model(source, x, tgt_mask=CAUSAL)[:, :4] for x in (target, later))
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)


def test_custom_parts_are_taken_as_they_are() -> None:
    encoder = torch_nn.TransformerEncoder(
        torch_nn.TransformerEncoderLayer(D, H, FF, batch_first=True), 1, enable_nested_tensor=False
    )
    model = Transformer(**SIZES, custom_encoder=encoder)
    assert model.encoder is encoder
    assert model(*inputs()).shape == (B, N, D)


def test_options_reach_every_layer() -> None:
    model = Transformer(
        **SIZES, activation="swiglu", norm="rms", positions="rotary", drop_path=0.2, bias=False
    )
    for layer in (*model.encoder.layers, *model.decoder.layers):
        assert layer.linear1.out_features == 2 * FF
        assert isinstance(layer.norm2, torch_nn.RMSNorm)
        assert layer.self_attn.positions == "rotary"
    assert isinstance(model.encoder.norm, torch_nn.RMSNorm)
    assert [layer.drop_path.p for layer in model.decoder.layers] == pytest.approx([0.1, 0.2])
    assert model(*inputs(), tgt_is_causal=True).shape == (B, N, D)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="batch_first=False"):
        Transformer(**SIZES, batch_first=False)
    with pytest.raises(UnsupportedAttention, match=r"shifted_window.*full"):
        Transformer(**SIZES, cross_variant="shifted_window")
    with pytest.raises(OptionError, match=r"norm='batch'.*'layer', 'rms'"):
        Transformer(**SIZES, norm="batch")
    causal_linformer = Transformer(**SIZES, variant="linformer", max_len=M)
    with pytest.raises(UnsupportedAttention, match="linformer"):
        causal_linformer(*inputs(), tgt_mask=CAUSAL)
