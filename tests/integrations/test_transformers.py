"""Models of transformers and ours with their weights: outputs and gradients agree."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from efficient_attn.integrations.transformers import BertEncoder, from_config, from_transformers
from efficient_attn.nn import SwinTransformer

transformers = pytest.importorskip("transformers")

VOCABULARY, LONGEST = 50, 20


def randomised(module: nn.Module) -> nn.Module:
    """Away from every initialisation: biases, relative biases and norms too."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in module.named_parameters():
        is_scale = "norm" in name.lower() and name.endswith("weight")
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2 + float(is_scale))
    return module.eval()


def swin_config(**settings):
    given = {"embed_dim": 8, "depths": (2, 2, 2), "num_heads": (1, 2, 4), "num_labels": 5}
    return transformers.SwinConfig(**{**given, "window_size": 4, **settings})


def bert_config(**settings):
    return transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=LONGEST,
        **settings,
    )


def theirs(module: nn.Module) -> nn.Module:
    """A fresh copy: one small image changes transformers' windows for all images after it."""
    return deepcopy(module)


@pytest.mark.parametrize(
    ("window", "size"),
    [
        (4, (224, 224)),
        (4, (200, 136)),
        (5, (200, 136)),  # the last stage is 13×9, no whole windows
        (5, (160, 77)),  # the last stage is one window wide: unshifted along both sides
        (7, (224, 112)),
        (7, (113, 225)),
    ],
    ids=str,
)
def test_swin_classifies_alike(window, size):
    published = randomised(transformers.SwinForImageClassification(swin_config(window_size=window)))
    ours = from_transformers(published)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    pair = []
    for each in (theirs(published), ours):
        x = images.clone().requires_grad_()
        out = each(x)
        out = out if isinstance(out, torch.Tensor) else out.logits
        out.sin().sum().backward()
        pair.append((out, x.grad))
    torch.testing.assert_close(pair[0][0], pair[1][0], atol=1e-5, rtol=0)
    scale = pair[0][1].abs().max()
    torch.testing.assert_close(pair[0][1] / scale, pair[1][1] / scale, atol=1e-5, rtol=0)


def test_gradients_of_swins_parameters():
    published = randomised(transformers.SwinForImageClassification(swin_config()))
    ours = from_transformers(published)
    x = torch.randn(2, 3, 60, 100)
    published(x).logits.square().sum().backward()
    ours(x).square().sum().backward()
    stages = published.swin.encoder.layers
    block, own = stages[1].blocks[1], ours.stages[1][1]
    projections = [getattr(block.attention, f"{name}_proj") for name in "qkv"]
    patches = published.swin.embeddings.patch_embeddings.projection
    table = block.attention.relative_position_bias.relative_position_bias_table
    for found, expected in (
        (own.self_attn.core.relative_bias, table.grad),
        (own.self_attn.in_proj_weight, torch.cat([each.weight.grad for each in projections])),
        (own.linear1.weight, block.mlp.fc1.weight.grad),
        (ours.merging[0].reduction.weight, stages[0].downsample.reduction.weight.grad),
        (ours.embed.projection.weight, patches.weight.grad),
    ):
        scale = expected.abs().max()
        torch.testing.assert_close(found.grad / scale, expected / scale, atol=1e-5, rtol=0)


def test_swin_model_gives_its_features():
    published = randomised(transformers.SwinModel(swin_config(patch_size=(2, 4))))
    ours = from_transformers(published)
    x = torch.randn(2, 3, 45, 81)
    expected = theirs(published)(x)
    torch.testing.assert_close(ours(x), expected.pooler_output, atol=1e-5, rtol=0)
    features = ours.features(x).flatten(1, 2)
    torch.testing.assert_close(features, expected.last_hidden_state, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["tiny", "small", "base", "large"])
def test_presets_are_of_the_size_of_theirs(name):
    with torch.device("meta"):
        made = SwinTransformer.preset(name, 1000)
        first = made.stages[0][0]
        config = transformers.SwinConfig(
            embed_dim=first.norm1.normalized_shape[0],
            depths=[len(stage) for stage in made.stages],
            num_heads=[stage[0].self_attn.num_heads for stage in made.stages],
            num_labels=1000,
        )
        published = transformers.SwinForImageClassification(config)
    counts = [sum(weight.numel() for weight in each.parameters()) for each in (made, published)]
    assert counts[0] == counts[1]


@given(
    lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=4),
    left=st.booleans(),
    segments=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_bert_reads_padded_batches_alike(lengths, left, segments):
    published = randomised(transformers.BertModel(bert_config()))
    ours = from_transformers(published)
    B, N = len(lengths), max(lengths)
    draw = torch.Generator().manual_seed(sum(lengths))
    ids = torch.randint(VOCABULARY, (B, N), generator=draw)
    kinds = torch.randint(2, (B, N), generator=draw) if segments else None
    exists = torch.arange(N) < torch.tensor(lengths)[:, None]
    exists = exists.flip(1) if left else exists
    expected = published(ids, exists.long(), kinds).last_hidden_state
    found = ours(ids, ~exists, kinds)
    torch.testing.assert_close(found[exists], expected[exists], atol=1e-5, rtol=0)


def test_gradients_of_berts_parameters():
    published = randomised(transformers.BertModel(bert_config(), add_pooling_layer=False))
    ours = from_transformers(published)
    ids = torch.randint(VOCABULARY, (3, 11))
    published(ids).last_hidden_state.sin().sum().backward()
    ours(ids).sin().sum().backward()
    layer = published.encoder.layer[1]
    for found, expected in (
        (ours.words, published.embeddings.word_embeddings),
        (ours.positions, published.embeddings.position_embeddings),
        (ours.norm, published.embeddings.LayerNorm),
        (ours.encoder.layers[1].linear2, layer.output.dense),
        (ours.encoder.layers[1].norm1, layer.attention.output.LayerNorm),
    ):
        torch.testing.assert_close(found.weight.grad, expected.weight.grad, atol=1e-4, rtol=1e-4)


def test_other_variants_take_the_weights_and_add_their_own():
    published = randomised(transformers.BertModel(bert_config()))
    wide = from_transformers(published, "local_window", {"window": LONGEST})
    ids = torch.randint(VOCABULARY, (2, LONGEST))
    expected = published(ids).last_hidden_state
    torch.testing.assert_close(wide(ids), expected, atol=1e-5, rtol=0)
    narrow = from_transformers(published, "local_window", {"window": 2})
    assert not torch.allclose(narrow(ids), expected, atol=1e-3)
    linformer = from_transformers(published, ["full", "linformer"], {"k": 4})
    assert linformer(ids).shape == expected.shape
    swin = randomised(transformers.SwinModel(swin_config()))
    assert from_transformers(swin, "performer")(torch.randn(1, 3, 64, 64)).shape == (1, 32)


def test_dtype_and_mode_are_kept():
    published = transformers.SwinModel(swin_config()).double().train()
    ours = from_transformers(published)
    assert ours.training
    assert {weight.dtype for weight in ours.parameters()} == {torch.float64}


def test_configs():
    swin = from_config(swin_config(window_size=3, image_size=64))
    assert isinstance(swin, SwinTransformer)
    assert swin.stages[0][0].self_attn.core.options.window == 3
    assert swin.grid == (16, 16)
    bert = from_config(bert_config(attention_probs_dropout_prob=0.25), "performer").eval()
    assert isinstance(bert, BertEncoder)
    assert bert.encoder.layers[0].self_attn.variant == "performer"
    assert bert.encoder.layers[0].self_attn.dropout == 0.25
    ids = torch.randint(VOCABULARY, (2, 7))
    assert torch.equal(bert(ids), bert(ids))


@pytest.mark.parametrize("variant", [None, "shifted_window"])
@pytest.mark.parametrize(("options", "window"), [(None, 3), ({"shift": 1}, 3), ({"window": 5}, 5)])
def test_windows_are_the_configs_unless_named(variant, options, window):
    """They were Swin's 7 where other options or the variant were named."""
    swin = from_config(swin_config(window_size=3), variant, options)
    assert swin.stages[0][0].self_attn.core.options.window == window


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (bert_config(is_decoder=True), "is_decoder=True has no counterpart"),
        (swin_config(use_absolute_embeddings=True), "use_absolute_embeddings=True"),
        (swin_config(qkv_bias=False), "qkv_bias=False"),
        (swin_config(hidden_act="wavy"), "hidden_act='wavy': allowed is .*gelu"),
        (bert_config(hidden_act="GELU"), "hidden_act='GELU': allowed is .*gelu"),
        (SimpleNamespace(model_type="gpt2"), "kind 'gpt2'; there are: bert, swin"),
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_what_has_no_counterpart_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        from_config(config)


def test_heads_are_not_dropped_in_silence():
    with pytest.raises(ValueError, match=r"no counterpart for .*cls\..*model\.bert"):
        from_transformers(transformers.BertForMaskedLM(bert_config()))


def test_bert_has_so_many_positions():
    with pytest.raises(ValueError, match="21 tokens is longer than the 20 positions"):
        from_config(bert_config())(torch.zeros(1, LONGEST + 1, dtype=torch.long))
