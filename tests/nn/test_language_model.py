"""The language model over cached states beside itself read anew at every token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from shipped import shipped
from torch import Tensor
from torch.nn import functional as F

from efficient_attn.attention import OptionError, UnsupportedAttention, variant_class
from efficient_attn.nn import LanguageModel, generate

V = 11
OPTIONS: dict[str, dict[str, Any]] = {
    "local_window": {"window": 3},
    "performer": {"num_features": 16},
    "shifted_window": {"window": 4, "shift": 2},
}
CAUSAL = shipped(causal=True)
PROMPTS = [[1], [2, 3, 4, 5, 6, 7, 8], [5, 5, 5]]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam": {"num_beams": 3},
    "sampled": {"temperature": 1.2, "top_k": 6, "top_p": 0.9, "seed": 3},
}


class Reread:
    """A model without a cache: all tokens go through `forward` for each new one."""

    def __init__(self, model: LanguageModel, tokens: Tensor | None = None) -> None:
        self.model, self.tokens = model, tokens

    def select(self, index: Tensor) -> Reread:
        assert self.tokens is not None
        return Reread(self.model, self.tokens[index])

    def start(self, tokens: Tensor) -> tuple[Tensor, Reread]:
        return self.model(tokens)[:, -1], Reread(self.model, tokens)

    def advance(self, tokens: Tensor, state: Reread) -> tuple[Tensor, Reread]:
        assert state.tokens is not None
        return self.start(torch.cat([state.tokens, tokens.unsqueeze(1)], 1))


def small(variant: str | list[str], **settings: Any) -> LanguageModel:
    """A model in fp64 whose next token is far from certain, and depends on the context."""
    torch.manual_seed(0)
    options = OPTIONS.get(variant, {}) if isinstance(variant, str) else OPTIONS
    kept = options if isinstance(variant, str) else {v: OPTIONS.get(v, {}) for v in variant}
    settings = {"d_model": 16, "nhead": 2, "num_layers": 2, "positions": "sinusoidal", **settings}
    model = LanguageModel(V, max_len=32, variant=variant, variant_options=kept, **settings)
    with torch.no_grad():
        for weight in model.trunk.parameters():
            if weight.dim() > 1:
                weight.mul_(2)
        model.head.weight.mul_(3)
    return model.double().eval()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("variant", CAUSAL)
def test_the_same_tokens_with_cache_and_without(variant: str, way: str) -> None:
    model = small(variant, short_conv=3)
    cached = model.generate(PROMPTS, max_new_tokens=12, eos=9, **WAYS[way])
    uncached = generate(Reread(model), PROMPTS, max_new_tokens=12, eos=9, **WAYS[way])
    assert torch.equal(cached.tokens, uncached.tokens)
    torch.testing.assert_close(cached.scores, uncached.scores)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi", "none"])
@pytest.mark.parametrize("variant", CAUSAL)
def test_steps_equal_forward_with_all_positions(variant: str, positions: str) -> None:
    if positions == "alibi" and not variant_class(variant).capabilities.alibi:
        with pytest.raises(UnsupportedAttention, match="ALiBi"):
            small(variant, positions=positions)
        return
    model = small(variant, positions=positions, norm="rms", activation="swiglu", drop_path=0.5)
    tokens = torch.randint(V, (2, 13), generator=torch.Generator().manual_seed(0))
    state, made = model.init_state(2), []
    for piece in tokens.split([5, 1, 7], 1):
        logits, state = model.step(piece, state)
        made.append(logits)
    torch.testing.assert_close(torch.cat(made, 1), model(tokens))
    assert state.position == 13


def test_layers_of_different_variants_decode_together() -> None:
    model = small(["local_window", "full"])
    cached = model.generate(PROMPTS, max_new_tokens=8)
    uncached = generate(Reread(model), PROMPTS, max_new_tokens=8)
    assert torch.equal(cached.tokens, uncached.tokens)


@pytest.mark.parametrize("variant", [name for name in CAUSAL if name != "full"])
def test_the_state_does_not_grow_with_the_context(variant: str) -> None:
    model, sizes = small(variant), []
    state = model.init_state(1)
    for _ in range(12):
        _, state = model.step(torch.zeros(1, 2, dtype=torch.long), state)
        sizes.append(state.nbytes)
    assert max(sizes[6:]) <= max(sizes[:6])


def test_generation_is_in_eval_mode_and_leaves_the_mode() -> None:
    model = small("full", dropout=0.5).train()
    first = model.generate(PROMPTS, max_new_tokens=6)
    assert model.training
    assert torch.equal(first.tokens, model.generate(PROMPTS, max_new_tokens=6).tokens)
    assert torch.equal(first.tokens, model.eval().generate(PROMPTS, max_new_tokens=6).tokens)


def test_tied_embeddings_are_one_parameter() -> None:
    model = small("full", tied_embeddings=True)
    assert model.head.weight is model.embed.weight
    plain = small("full")
    count = sum(weight.numel() for weight in model.parameters())
    assert count == sum(weight.numel() for weight in plain.parameters()) - V * 16


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_tied_embeddings_start_near_chance(positions: str) -> None:
    torch.manual_seed(0)
    model = LanguageModel(99, max_len=64, d_model=256, positions=positions, tied_embeddings=True)
    tokens = torch.randint(99, (8, 65))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert float(loss.detach()) < 1.15 * math.log(99)


def test_learned_positions_end_before_anything_is_generated() -> None:
    model = small("full", positions="learned")
    assert model.generate([[1, 2]], max_new_tokens=31).lengths.tolist() == [31]
    with pytest.raises(ValueError, match=r"33 tokens.*32 learned.*max_len=33.*rotary"):
        model.generate([[1, 2]], max_new_tokens=32)
    assert small("full").generate([[1, 2]], max_new_tokens=40).lengths.tolist() == [40]


def test_unknown_settings_are_named() -> None:
    with pytest.raises(OptionError, match=r"positions='absolute'.*sinusoidal.*rotary"):
        small("full", positions="absolute")
    with pytest.raises(TypeError, match="heat"):
        small("full").generate([[1]], max_new_tokens=2, heat=1.0)
