"""Classifiers and language model around the encoder."""

import pytest
import torch
from shipped import SHIPPED, shipped
from torch import nn

from efficient_attn import UnsupportedAttention, describe
from efficient_attn.nn import ImageClassifier, LanguageModel, SequenceClassifier

SMALL = {"d_model": 16, "nhead": 2, "num_layers": 2}


def all_have_gradients(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name


@pytest.mark.parametrize("variant", SHIPPED)
def test_sequence_classifier_of_tokens(variant: str) -> None:
    model = SequenceClassifier(3, max_len=12, vocab_size=20, variant=variant, **SMALL)
    out = model(torch.randint(20, (4, 9)))
    assert out.shape == (4, 3)
    out.square().sum().backward()
    all_have_gradients(model)


def test_sequence_classifier_of_features_ignores_padding() -> None:
    model = SequenceClassifier(3, max_len=12, in_features=5, **SMALL).eval()
    x = torch.randn(2, 12, 5)
    padding = torch.zeros(2, 12, dtype=torch.bool)
    padding[:, 8:] = True
    torch.testing.assert_close(model(x, padding), model(x[:, :8]), atol=1e-5, rtol=1e-5)


def test_sample_that_is_all_padding_gives_finite_logits() -> None:
    model = SequenceClassifier(3, max_len=6, vocab_size=20, **SMALL)
    padding = torch.tensor([[True] * 6, [False] * 6])
    out = model(torch.zeros(2, 6, dtype=torch.long), padding)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


def test_sequence_classifier_wants_one_kind_of_input() -> None:
    with pytest.raises(ValueError, match="vocab_size"):
        SequenceClassifier(3, max_len=6, **SMALL)
    with pytest.raises(ValueError, match="not both"):
        SequenceClassifier(3, max_len=6, vocab_size=2, in_features=2, **SMALL)


@pytest.mark.parametrize("variant", SHIPPED)
def test_image_classifier(variant: str) -> None:
    # Windows as wide as by default would be 64×64 tokens on this grid.
    options = {"window": 2} if "window" in describe(variant).options else None
    model = ImageClassifier(
        5,
        image_size=(8, 12),
        patch_size=2,
        variant=variant,
        variant_options=options,
        **SMALL,
    )
    assert model.grid == (4, 6)
    out = model(torch.randn(3, 3, 8, 12))
    assert out.shape == (3, 5)
    out.square().sum().backward()
    all_have_gradients(model)


def test_image_classifier_tells_windows_their_grid() -> None:
    model = ImageClassifier(
        5,
        image_size=(8, 12),
        patch_size=2,
        variant="shifted_window",
        variant_options={"window": 2},
        **SMALL,
    )
    options = [layer.self_attn.core.options for layer in model.trunk.encoder.layers]
    assert all(tuple(each.grid) == (4, 6) for each in options)
    assert options[0].shift != options[1].shift


def test_image_sizes_must_fit() -> None:
    with pytest.raises(ValueError, match="patch_size='2'"):
        ImageClassifier(5, image_size=(8, 12), patch_size="2", **SMALL)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="patch_size=3"):
        ImageClassifier(5, image_size=(8, 12), patch_size=3, **SMALL)
    with pytest.raises(ValueError, match=r"image_size=\(8, 12\)"):
        ImageClassifier(5, image_size=(8, 12), **SMALL)(torch.randn(1, 3, 12, 8))


@pytest.mark.parametrize("variant", shipped(causal=True))
@pytest.mark.parametrize("short_conv", [0, 3])
def test_language_model_is_causal(variant: str, short_conv: int) -> None:
    model = LanguageModel(20, max_len=16, variant=variant, short_conv=short_conv, **SMALL).eval()
    tokens = torch.randint(20, (2, 13))
    logits = model(tokens)
    assert logits.shape == (2, 13, 20)
    torch.testing.assert_close(model(tokens[:, :7]), logits[:, :7], atol=1e-5, rtol=1e-5)
    model(tokens).square().sum().backward()
    all_have_gradients(model)


@pytest.mark.parametrize("variant", ["linformer", ["full", "linformer"]], ids=str)
def test_language_model_refuses_when_it_is_built(variant) -> None:
    with pytest.raises(UnsupportedAttention, match=r"linformer.*full"):
        LanguageModel(20, max_len=16, variant=variant, **SMALL)


def test_unknown_setting_is_refused() -> None:
    with pytest.raises(TypeError, match=r"n_head; allowed are .*nhead"):
        LanguageModel(20, max_len=16, n_head=2)  # type: ignore[call-arg]
