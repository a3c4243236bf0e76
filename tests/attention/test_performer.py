"""The random features of performer: how they are drawn, redrawn and saved, and what they do."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import (
    qkv,
)


def performer_features(module: Any) -> Tensor:
    features: Tensor = module.core.features
    return features.clone()


def test_performer_features_come_from_their_own_seed() -> None:
    torch.manual_seed(1)
    one = performer_features(ea.MultiHeadAttention(16, 2, "performer", num_features=16, seed=5))
    torch.manual_seed(2)
    same = performer_features(ea.MultiHeadAttention(16, 2, "performer", num_features=16, seed=5))
    other = performer_features(ea.MultiHeadAttention(16, 2, "performer", num_features=16, seed=6))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_performer_features_are_orthogonal_in_blocks() -> None:
    """Rows of each block of D features are orthogonal (FAVOR+), also in the last, short block."""
    features = performer_features(
        ea.MultiHeadAttention(16, 2, "performer", num_features=20, dtype=torch.float64)
    )
    assert features.shape == (20, 8)
    for block in features.split(8):
        gram = block @ block.T
        assert_close(gram - torch.diag(gram.diagonal()), torch.zeros_like(gram))


def test_performer_redraws_in_training_only() -> None:
    x = torch.randn(2, 5, 16)
    module = ea.MultiHeadAttention(16, 2, "performer", num_features=16, redraw_interval=1)
    drawn = [performer_features(module)]
    for _ in range(3):
        module(x)
        drawn.append(performer_features(module))
    assert not torch.equal(drawn[-1], drawn[-2])
    module.eval()
    for _ in range(3):
        module(x)
    assert torch.equal(performer_features(module), drawn[-1])
    frozen = ea.MultiHeadAttention(16, 2, "performer", num_features=16)
    before = performer_features(frozen)
    frozen(x)
    assert torch.equal(performer_features(frozen), before)


@pytest.mark.parametrize("how", ["state_dict", "deepcopy", "pickle"])
def test_performer_redraws_go_on_after_a_checkpoint(how: str) -> None:
    """The generator's place is part of the state: a resumed run draws what the other drew."""
    x = torch.randn(2, 5, 16)

    def build() -> Any:
        return ea.MultiHeadAttention(16, 2, "performer", num_features=16, redraw_interval=2)

    first = build()
    for _ in range(3):
        first(x)
    if how == "state_dict":
        second = build()
        second.load_state_dict(first.state_dict())
    else:
        second = copy.deepcopy(first) if how == "deepcopy" else pickle.loads(pickle.dumps(first))
    for _ in range(4):
        torch.manual_seed(0)
        first(x)
        torch.manual_seed(1)
        second(x)
        assert torch.equal(performer_features(second), performer_features(first))


def test_performer_converges_to_softmax_with_features() -> None:
    """At a small scale, where FAVOR+ can; the error falls as the features grow."""
    q, k, v = qkv(24, spread=0.5)
    want = ea.attention(q, k, v, variant="full")

    def error(R: int) -> float:
        outs = [
            ea.attention(q, k, v, variant="performer", num_features=R, seed=s) for s in range(6)
        ]
        return sum(float((o - want).norm() / want.norm()) for o in outs) / len(outs)

    few, many = error(16), error(1024)
    assert many < few / 3
    assert many < 0.1
