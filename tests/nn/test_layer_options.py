"""What layers take beyond torch.nn's: SwiGLU, RMS norm, positions, stochastic depth."""

from typing import Any

import pytest
import torch
from shipped import SHIPPED
from torch import Tensor, nn
from torch.nn import functional as F

from efficient_attn.attention import OptionError, UnsupportedAttention, variant_class
from efficient_attn.nn import (
    StochasticDepth,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    make_positions,
)
from efficient_attn.nn.feedforward import swiglu

B, N, D, H, FF = 3, 11, 16, 2, 24


def stack(num_layers: int = 2, **arguments: Any) -> TransformerEncoder:
    """In eval and fp64, with weights that let every part of the layer matter."""
    layer = TransformerEncoderLayer(D, H, FF, dtype=torch.float64, **arguments)
    made = TransformerEncoder(layer, num_layers, same_weights=False)
    generator = torch.Generator().manual_seed(3)
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.4, generator=generator)
    return made.eval()


def tokens() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(B, N, D, generator=generator, dtype=torch.float64)


def test_a_llama_layer_is_one_of_ours() -> None:
    """RMS norm before, SwiGLU, rotary positions and no biases: transformers' with our weights."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=H,
        intermediate_size=FF,
        rms_norm_eps=1e-4,
        attn_implementation="eager",
    )
    theirs = llama.LlamaDecoderLayer(config, 0).eval()
    ours = TransformerEncoderLayer(
        D, H, FF, 0.0, "swiglu", 1e-4, norm_first=True, bias=False, norm="rms", positions="rotary"
    ).eval()
    for weight in ours.parameters():
        nn.init.normal_(weight, std=0.4)
    q, k, v = ours.self_attn.in_proj_weight.chunk(3)
    gate, value = ours.linear1.weight.chunk(2)
    theirs.load_state_dict(
        {
            "self_attn.q_proj.weight": q,
            "self_attn.k_proj.weight": k,
            "self_attn.v_proj.weight": v,
            "self_attn.o_proj.weight": ours.self_attn.out_proj.weight,
            "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": value,
            "mlp.down_proj.weight": ours.linear2.weight,
            "input_layernorm.weight": ours.norm1.weight,
            "post_attention_layernorm.weight": ours.norm2.weight,
        }
    )
    x = torch.randn(B, N, D)
    place = torch.arange(N)[None]
    causal = nn.Transformer.generate_square_subsequent_mask(N)[None, None]
    turned = llama.LlamaRotaryEmbedding(config)(x, place)
    want = theirs(x, attention_mask=causal, position_ids=place, position_embeddings=turned)
    torch.testing.assert_close(ours(x, is_causal=True), want, atol=1e-5, rtol=1e-5)


def test_two_thirds_of_the_width_give_swiglu_the_parameters_of_gelu() -> None:
    def weights(activation: str, width: int) -> int:
        layer = TransformerEncoderLayer(D, H, width, activation=activation, bias=False)
        return sum(weight.numel() for weight in layer.parameters())

    assert weights("swiglu", 32) == weights("gelu", 48)


def test_norms_read_the_same_epsilon() -> None:
    x = torch.randn(B, N, D) * 1e-2
    layer = TransformerDecoderLayer(D, H, FF, layer_norm_eps=0.5, norm="rms")
    assert not [name for name, _ in layer.named_parameters() if name.startswith("norm1.bias")]
    want = x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt()
    torch.testing.assert_close(layer.norm3(x), want)


# --- positions -------------------------------------------------------------------------------

ORDER = torch.randperm(N, generator=torch.Generator().manual_seed(1))


def moved(model: Any) -> float:
    """How far the outputs of permuted tokens lie from the permuted outputs."""
    x = tokens()
    return (model(x[:, ORDER]) - model(x)[:, ORDER]).abs().max().item()


def test_without_positions_the_encoder_is_permutation_equivariant() -> None:
    assert moved(stack()) < 1e-12


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_positions_added_to_tokens_tell_their_order(kind: str) -> None:
    positions = make_positions(kind, N, D)
    model = stack()
    assert moved(lambda x: model(positions(x))) > 1e-3


@pytest.mark.parametrize("kind", ["rotary", "alibi"])
def test_positions_within_attention_tell_their_order(kind: str) -> None:
    assert moved(stack(positions=kind)) > 1e-3


@pytest.mark.parametrize("kind", ["rotary", "alibi"])
@pytest.mark.parametrize("variant", SHIPPED)
def test_positions_within_attention_are_used_or_refused_when_built(variant: str, kind: str) -> None:
    options: dict[str, Any] = {"variant": variant, "max_len": N, "positions": kind}
    if not getattr(variant_class(variant).capabilities, kind):
        for layer in (TransformerEncoderLayer, TransformerDecoderLayer):
            with pytest.raises(UnsupportedAttention, match=variant):
                layer(D, H, FF, **options)
        return
    with_positions = stack(**options)
    without = stack(**{**options, "positions": None})
    without.load_state_dict(with_positions.state_dict())
    x = tokens()
    assert (with_positions(x) - without(x)).abs().max() > 1e-3


# --- stochastic depth ------------------------------------------------------------------------


def test_stochastic_depth_keeps_the_expectation_and_drops_whole_samples() -> None:
    torch.manual_seed(0)
    samples, p = 4000, 0.3
    got = StochasticDepth(p)(torch.ones(samples, 2, 3))
    assert got.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
    assert torch.equal(got, got[:, :1, :1].expand_as(got))
    deviation = (p / (1 - p) / samples) ** 0.5
    assert got.mean().item() == pytest.approx(1, abs=4 * deviation)


@pytest.mark.parametrize("kind", [TransformerEncoderLayer, TransformerDecoderLayer])
def test_a_dropped_update_leaves_the_sample_as_it_was(kind: Any) -> None:
    """With pre-norm and p near one almost every sample skips every sublayer; eval skips none."""
    torch.manual_seed(0)
    layer = kind(D, H, FF, dropout=0.0, norm_first=True, drop_path=0.95)
    x = torch.randn(64, N, D)
    inputs = (x,) if kind is TransformerEncoderLayer else (x, x)
    skipped = (layer(*inputs) == x).flatten(1).all(1)
    assert 0.6 < skipped.double().mean() < 1
    assert not (layer.eval()(*inputs) == x).flatten(1).all(1).any()


def test_eval_is_without_stochastic_depth() -> None:
    model = stack(drop_path=0.9)
    plain = stack()
    plain.load_state_dict(model.state_dict())
    x = tokens()
    torch.testing.assert_close(model(x), plain(x), rtol=0, atol=0)


def test_stochastic_depth_grows_linearly_with_depth() -> None:
    model = stack(num_layers=4, drop_path=0.2)
    rates = [layer.drop_path.p for layer in model.layers]
    assert rates == pytest.approx([0.05, 0.1, 0.15, 0.2])


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("norm", "batch", "'layer', 'rms'"),
        ("norm", None, "'layer', 'rms'"),
        ("positions", "learned", "'rotary', 'alibi'"),
        ("drop_path", 1.0, r"\[0, 1\)"),
        ("drop_path", -0.1, r"\[0, 1\)"),
        ("drop_path", "0.1", r"\[0, 1\)"),
        ("dim_feedforward", 0, "at least 1"),
        ("dropout", 1.0, "probability"),
        ("dropout", "0.1", "probability"),
    ],
)
@pytest.mark.parametrize("kind", [TransformerEncoderLayer, TransformerDecoderLayer])
def test_wrong_options_are_named(kind: Any, option: str, value: Any, words: str) -> None:
    with pytest.raises(OptionError, match=f"{option}={value!r}.*{words}"):
        kind(D, H, **{option: value})


@pytest.mark.parametrize("width", [-1, 2.0, "3"])
def test_a_wrong_short_convolution_is_named(width: Any) -> None:
    with pytest.raises(OptionError, match=f"short_conv={width!r}"):
        TransformerEncoderLayer(D, H, short_conv=width)


def test_rotary_positions_need_an_even_head() -> None:
    with pytest.raises(OptionError, match="head_dim=5"):
        TransformerEncoderLayer(15, 3, positions="rotary")


def test_swiglu_as_a_function_counts_its_width_alike() -> None:
    named, given = (TransformerEncoderLayer(D, H, FF, activation=a) for a in ("swiglu", swiglu))
    assert named.linear1.weight.shape == given.linear1.weight.shape == (2 * FF, D)
    x = torch.randn(4, 2 * FF)
    torch.testing.assert_close(swiglu(x), F.silu(x[:, :FF]) * x[:, FF:])
