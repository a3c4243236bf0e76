"""Weights of one model around another attention."""

from __future__ import annotations

import pytest
import torch

from efficient_attn.nn import LanguageModel, Seq2Seq
from efficient_attn.nn.weights import take_weights

SIZES = {"max_len": 24, "d_model": 16, "nhead": 2, "num_layers": 2, "short_conv": 3}


def model(variant: str = "full", **options):
    return LanguageModel(12, variant=variant, variant_options=options, **SIZES).eval()


def test_full_to_full_is_exact_and_a_window_over_everything_nearly() -> None:
    tokens = torch.randint(12, (3, 24), generator=torch.Generator().manual_seed(0))
    trained = model()
    for other, slack in ((model(), 0.0), (model("local_window", window=24), 1e-5)):
        assert not torch.allclose(other(tokens), trained(tokens), atol=1e-3)
        take_weights(other, trained.state_dict())
        torch.testing.assert_close(other(tokens), trained(tokens), atol=slack, rtol=0)


def test_cores_keep_what_is_their_own() -> None:
    performer = model("performer", num_features=8)
    name = "trunk.encoder.layers.1.self_attn.core.features"
    before = performer.state_dict()[name].clone()
    take_weights(performer, model().state_dict())
    assert torch.equal(performer.state_dict()[name], before)
    back = model()
    take_weights(back, performer.state_dict())  # and what is a core's own is left behind
    assert torch.equal(back.embed.weight, performer.embed.weight)


def test_another_model_is_refused() -> None:
    small = LanguageModel(12, **{**SIZES, "num_layers": 1})
    with pytest.raises(ValueError, match=r"(?s)than this LanguageModel.*layers\.1"):
        take_weights(model(), small.state_dict())
    with pytest.raises(ValueError, match="another model than this Seq2Seq"):
        take_weights(Seq2Seq(12, max_len=8), small.state_dict())
