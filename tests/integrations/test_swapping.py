"""Attention of a person's model replaced in place: same weights, same numbers, and back again."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import efficient_attn as ea
from efficient_attn.attention import OptionError
from efficient_attn.integrations.timm import attention_layer, is_attention
from efficient_attn.nn import LanguageModel

E, H, N = 16, 2, 9


def encoder(batch_first=True, **settings):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 32, 0.0, batch_first=batch_first, **settings)
    return nn.TransformerEncoder(layer, 2)


def tokens(batch_first=True):
    torch.manual_seed(1)
    x = torch.randn(3, N, E)
    return x if batch_first else x.transpose(0, 1).contiguous()


def right_padding():
    padding = torch.zeros(3, N, dtype=torch.bool)
    padding[1, 6:] = padding[2, 2:] = True
    return padding


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", ["none", "padding", "causal", "both"])
def test_full_attention_in_an_encoder_changes_nothing(training, batch_first, masks):
    """In eval torch.nn would take fused paths around the attention that stands there, with nested
    tensors for padding on the right."""
    model = encoder(batch_first).train(training)
    x = tokens(batch_first)
    asked = {}
    if masks in ("padding", "both"):
        asked["src_key_padding_mask"] = right_padding()
    if masks in ("causal", "both"):
        asked["mask"] = nn.Transformer.generate_square_subsequent_mask(N)
        asked["is_causal"] = True
    with torch.set_grad_enabled(training):
        expected = copy.deepcopy(model)(x, **asked)
        ea.swap(model, "full")
        found = model(x, **asked)
    real = torch.ones(3, N, dtype=torch.bool)
    if "src_key_padding_mask" in asked:
        real = ~asked["src_key_padding_mask"]
    if not batch_first:
        real = real.T
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_variant_is_what_runs(training):
    """A window of no neighbours: every token sees itself alone."""
    model = encoder().train(training)
    x = tokens()
    ea.swap(model, "local_window", window=0)
    alone = torch.cat([model(x[:, i : i + 1]) for i in range(N)], 1)
    torch.testing.assert_close(model(x), alone, atol=1e-5, rtol=1e-5)
    changed = model(x, src_key_padding_mask=right_padding())
    torch.testing.assert_close(changed[0], alone[0], atol=1e-5, rtol=1e-5)


def test_unswap_puts_the_same_modules_back_with_what_was_learnt():
    model = encoder()
    before = dict(model.named_modules())
    x = tokens()
    report = ea.swap(model, "performer", num_features=16)
    assert report.replaced == ["layers.0.self_attn", "layers.1.self_attn"]
    assert not report.left
    assert "layers.0.self_attn" in str(report)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().sum().backward()
    optimizer.step()
    learnt = model.layers[0].self_attn.in_proj_weight.clone()
    names = ea.unswap(model)
    assert names == report.replaced
    assert dict(model.named_modules()).keys() == before.keys()
    assert model.layers[0].self_attn is before["layers.0.self_attn"]
    assert torch.equal(model.layers[0].self_attn.in_proj_weight, learnt)
    fresh = encoder()
    assert model.use_nested_tensor == fresh.use_nested_tensor
    fresh.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), fresh.eval()(x))
    assert ea.unswap(model) == []


def test_parameters_that_were_made_anew_are_kept():
    """Loading with assign=True, or moving from meta, puts others in place of those that were."""
    for make in (encoder, lambda: nn.ModuleList([ea.MultiHeadAttention(E, H)])):
        model = make()
        ea.swap(model, "performer")
        state = {name: value + 1 for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        ea.swap(model, "full")
        for name, value in model.state_dict().items():
            assert torch.equal(value, state[name])
        state = {name: value + 1 for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        ea.unswap(model)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_unswap_loses_no_weights_that_it_cannot_give():
    model = encoder()
    ea.swap(model, "full")
    nn.utils.parametrizations.weight_norm(model.layers[1].self_attn.out_proj)
    stands = model.layers[0].self_attn
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn .*out_proj\.weight"):
        ea.unswap(model)
    assert model.layers[0].self_attn is stands


def test_a_second_swap_replaces_the_first_and_unswap_knows_the_original():
    model = encoder()
    original = model.layers[0].self_attn
    ea.swap(model, "performer")
    ea.swap(model, "local_window", window=3)
    assert model.layers[0].self_attn.variant == "local_window"
    ea.unswap(model)
    assert model.layers[0].self_attn is original


def test_where_chooses():
    model = nn.Transformer(E, H, 1, 1, 32, batch_first=True)
    found = ea.swap(model, "local_window", where="*self_attn", window=2)
    assert found.replaced == ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn"]
    assert type(model.decoder.layers[0].multihead_attn) is nn.MultiheadAttention
    ea.unswap(model)
    assert ea.swap(model, "performer", where=lambda name, module: "multihead" in name).replaced == [
        "decoder.layers.0.multihead_attn"
    ]


def test_what_depends_on_depth_follows_the_layers():
    model = encoder()
    ea.swap(model, "shifted_window", window=4)
    assert [layer.self_attn.core.options.shift for layer in model.layers] == [0, 2]
    ea.swap(model, "linformer", k=3, share="layers", max_len=N)
    first, second = (layer.self_attn.core for layer in model.layers)
    assert first.E is second.E


def test_a_module_that_stands_at_two_names_stays_one():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = self.b = nn.MultiheadAttention(E, H, batch_first=True)

    model = Twice()
    assert ea.swap(model, "full").replaced == ["a", "b"]
    assert model.a is model.b
    ea.unswap(model)
    assert type(model.a) is nn.MultiheadAttention
    assert model.a is model.b


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_called_as_torch_calls_it(batched, batch_first, average):
    torch.manual_seed(0)
    model = nn.ModuleList([nn.MultiheadAttention(E, H, batch_first=batch_first, kdim=6, vdim=4)])
    query, key, value = torch.randn(3, N, E), torch.randn(3, 5, 6), torch.randn(3, 5, 4)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[:, 4] = True
    inputs = [query, key, value]
    if not batched:
        inputs, padding = [x[0] for x in inputs], padding[0]
    elif not batch_first:
        inputs = [x.transpose(0, 1) for x in inputs]
    asked = {"key_padding_mask": padding, "average_attn_weights": average}
    expected = model[0](*inputs, **asked)
    ea.swap(model, "full")
    for ours, theirs in zip(model[0](*inputs, **asked), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    ea.swap(model, "full", give_weights=False)
    assert model[0](*inputs, **asked)[1] is None


def test_a_hint_that_is_wrong_is_not_believed():
    model = nn.ModuleList([nn.MultiheadAttention(E, H, batch_first=True)])
    x = tokens()
    mask = torch.zeros(N, N, dtype=torch.bool)
    mask[:, 0] = True
    expected = model[0](x, x, x, attn_mask=mask, need_weights=True)[0]
    ea.swap(model, "full")
    found = model[0](x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="attn_mask"):
        model[0](x, x, x, is_causal=True)


class OurAttention(ea.MultiHeadAttention):
    """A person's, which may compute something else."""


def test_what_would_be_lost_is_left_and_said():
    def backward(module):
        module.register_full_backward_hook(lambda *_: None)

    def before_backward(module):
        module.register_full_backward_pre_hook(lambda *_: None)

    def normed(module):
        nn.utils.parametrizations.weight_norm(module.out_proj)

    def replaced(module):
        module.out_proj = nn.Sequential(module.out_proj)

    for change, why in (
        (backward, "hooks"),
        (before_backward, "hooks"),
        (normed, "parametrized"),
        (replaced, "parametrized"),
    ):
        model = encoder()
        change(model.layers[0].self_attn)
        report = ea.swap(model, "full")
        assert report.replaced == ["layers.1.self_attn"]
        assert why in report.left["layers.0.self_attn"]
    model = nn.ModuleList([OurAttention(E, H), ea.MultiHeadAttention(E, H)])
    report = ea.swap(model, "performer")
    assert report.replaced == ["1"]
    assert "class of its own" in report.left["0"]


def test_a_model_of_transformers_within_another():
    class Inner(nn.Module):
        config = None

        def __init__(self, within=None):
            super().__init__()
            self.within = within

        def set_attn_implementation(self, name): ...

    model = nn.ModuleList([Inner(Inner()), nn.MultiheadAttention(E, H)])
    report = ea.swap(model, "full")
    assert report.left == {"0": "a model of transformers: swap it by itself"}
    assert report.replaced == ["1"]
    with pytest.raises(ValueError, match="0: a model of transformers: swap it by itself"):
        ea.swap(nn.ModuleList([Inner()]), "full")


def test_nested_tensors_are_refused():
    model = nn.ModuleList([nn.MultiheadAttention(E, H, batch_first=True)])
    ea.swap(model, "full")
    x = torch.nested.nested_tensor([torch.randn(3, E), torch.randn(2, E)])
    with pytest.raises(ValueError, match=r"pad them.*key_padding_mask"):
        model[0](x, x, x)


class OwnAttention(nn.MultiheadAttention):
    """As people write them."""


def test_what_cannot_be_replaced_is_named_and_left():
    model = encoder()
    model.own = OwnAttention(E, H)
    model.with_bias = nn.MultiheadAttention(E, H, add_bias_kv=True)
    model.hooked = nn.MultiheadAttention(E, H)
    model.hooked.register_forward_hook(lambda *_: None)
    report = ea.swap(model, "full")
    assert len(report.replaced) == 2
    assert report.left.keys() == {"own", "with_bias", "hooked"}
    assert "OwnAttention" in report.left["own"]
    assert "hooks" in report.left["hooked"]
    assert type(model.own) is OwnAttention


@pytest.mark.parametrize(
    ("variant", "options", "error"),
    [
        ("fulll", {}, ValueError),
        ("local_window", {"windou": 3}, OptionError),
        ("linformer", {}, ValueError),  # without a longest length
    ],
)
def test_a_refused_swap_leaves_the_model_as_it_was(variant, options, error):
    model = encoder()
    with pytest.raises(error):
        ea.swap(model, variant, **options)
    assert all(type(layer.self_attn) is nn.MultiheadAttention for layer in model.layers)


def test_nothing_to_replace_is_an_error():
    with pytest.raises(ValueError, match="nothing to replace"):
        ea.swap(nn.Linear(2, 2), "full")
    with pytest.raises(ValueError, match="from_torch"):
        ea.swap(nn.MultiheadAttention(E, H), "full")
    with pytest.raises(ValueError, match=r"build MultiHeadAttention.*strict=False"):
        ea.swap(ea.MultiHeadAttention(E, H), "full")
    with pytest.raises(ValueError, match=r"build integrations\.timm.*strict=False"):
        ea.swap(Attention(E, H, False), "full")


def test_a_model_of_this_package():
    torch.manual_seed(0)
    model = LanguageModel(20, max_len=N, d_model=E, nhead=H).eval()
    x = torch.randint(20, (2, N))
    expected = model(x)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    ea.swap(model, "local_window", window=64)
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)
    ea.swap(model, "local_window", window=1)
    assert not torch.allclose(model(x), expected, atol=1e-3)
    ea.unswap(model)
    assert torch.equal(model(x), expected)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


class Attention(nn.Module):
    """With the parts, the names and the formula of timm's."""

    __module__ = "timm.layers.attention"

    def __init__(self, dim, num_heads, qk_norm):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.attn_drop, self.proj_drop = nn.Dropout(0.0), nn.Dropout(0.0)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, attn_mask=None):
        B, length, dim = x.shape
        qkv = self.qkv(x).reshape(B, length, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = self.q_norm(q) @ self.k_norm(k).transpose(-1, -2) * self.head_dim**-0.5
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, length, dim))


@pytest.mark.parametrize("qk_norm", [True, False])
def test_attention_of_timm(qk_norm):
    torch.manual_seed(0)
    model = nn.Sequential(Attention(E, H, qk_norm), nn.Linear(E, E))
    assert is_attention(model[0])
    x, mask = tokens(), torch.rand(N, N) < 0.7
    mask.fill_diagonal_(True)
    attention, names = model[0], set(model.state_dict())
    ea.swap(model, "full")
    torch.testing.assert_close(model[0](x), attention(x))
    torch.testing.assert_close(model[0](x, mask), attention(x, mask))
    assert set(model.state_dict()) == names
    ea.swap(model, "local_window", window=1)
    with pytest.raises(ea.UnsupportedAttention):
        model[0](x, mask)
    ea.unswap(model)
    assert model[0] is attention


def test_the_layer_that_timm_is_given():
    made = attention_layer("local_window", window=2)(E, num_heads=H, qkv_bias=True, qk_norm=True)
    assert made(tokens()).shape == (3, N, E)
    assert made.core.options.window == 2
    with pytest.raises(ValueError, match="multiple"):
        attention_layer("full")(E, num_heads=3)


def test_a_model_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=E,
        num_attention_heads=H,
        num_hidden_layers=2,
        intermediate_size=9,
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    x = torch.randint(1, 30, (2, N))
    before = model.config._attn_implementation
    with torch.no_grad():
        expected = model(x).last_hidden_state
        report = ea.swap(model, "local_window", window=1)
        assert "BertModel" in str(report)
        assert not torch.allclose(model(x).last_hidden_state, expected, atol=1e-4)
        ea.swap(model, "local_window", window=2 * N)
        torch.testing.assert_close(model(x).last_hidden_state, expected, atol=1e-5, rtol=1e-5)
        ea.unswap(model)
        assert model.config._attn_implementation == before
        assert torch.equal(model(x).last_hidden_state, expected)
    with pytest.raises(ValueError, match="whole"):
        ea.swap(model, "full", where="*")


def test_what_a_variant_added_to_a_model_of_transformers_goes_with_it():
    transformers = pytest.importorskip("transformers")
    from efficient_attn.integrations.transformers import make_cores

    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=E,
        num_attention_heads=H,
        num_hidden_layers=1,
        intermediate_size=9,
    )
    model = transformers.BertModel(config).eval()
    names = set(model.state_dict())
    x = torch.randint(1, 30, (2, N))
    for leave in (ea.unswap, lambda model: ea.swap(model, "local_window", window=1)):
        ea.swap(model, "linformer", k=4)
        make_cores(model, input_ids=x)
        assert set(model.state_dict()) > names
        leave(model)
        assert set(model.state_dict()) == names
