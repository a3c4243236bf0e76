"""Induction heads: where the answer stands, and what is asked of longer sequences."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from efficient_attn.tasks import Induction, ModelConfig

SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)


@given(
    length=st.integers(3, 40),
    vocab=st.integers(3, 20),
    gap=st.none() | st.integers(0, 37),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_the_special_token_stands_twice_and_the_answer_after_it(length, vocab, gap, seed) -> None:
    assume(gap is None or gap <= length - 3)
    task = Induction(length=length, vocab=vocab, gap=gap)
    inputs, labels = next(task.batches(seed, 20))
    for row, wanted in zip(inputs.tolist(), labels.tolist(), strict=True):
        first = row.index(0)
        assert row.count(0) == 2
        assert row[-1] == 0
        assert set(wanted[:-1]) == {-100}
        assert wanted[-1] == row[first + 1] > 0
        between = row[first + 2 : -1]
        if gap is None:
            assert first + 1 < length / 2
        else:
            assert len(between) >= gap


@pytest.mark.parametrize(("gap", "places"), [(0, 8), (5, 3), (None, 4)])
def test_every_allowed_place_is_equally_likely(gap: int | None, places: int) -> None:
    inputs, _ = next(Induction(length=10, gap=gap).batches(0, 20_000))
    first = (inputs == 0).int().argmax(1)
    shares = np.bincount(first.numpy(), minlength=places) / len(first)
    np.testing.assert_allclose(shares, 1 / places, atol=0.015)


class Remembering(nn.Module):
    """Answers sequences of at most `reach` tokens, and says 0 to longer ones."""

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.unused = nn.Parameter(torch.zeros(1))
        self.lengths: list[int] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.lengths.append(tokens.shape[1])
        logits = torch.zeros(*tokens.shape, 16)
        if tokens.shape[1] <= self.reach:
            answer = tokens.gather(1, (tokens == 0).int().argmax(1, keepdim=True) + 1)
            logits[:, -1] = nn.functional.one_hot(answer.squeeze(1), 16).float()
        return logits


@pytest.mark.parametrize(
    ("test_length", "lengths"),
    [
        (None, [20, 40, 80]),
        (20, [20]),
        (50, [20, 40, 50]),
        (160, [20, 40, 80, 160]),
    ],
)
def test_details_tell_of_longer_sequences(test_length: int | None, lengths: list[int]) -> None:
    task = Induction(length=20, test_length=test_length, evaluation=40)
    model = Remembering(reach=40)
    assert task.evaluate(model, "test") == 1.0
    assert set(model.lengths) == {20}
    found = task.details(model, "test")
    assert found == {f"N={n}": {"accuracy": float(n <= 40)} for n in lengths}
    assert sorted(set(model.lengths)) == lengths


@pytest.mark.parametrize("positions", [None, "learned", "rotary"])
@pytest.mark.parametrize("gap", [None, 3])
def test_models_take_the_longest_sequence(positions: str | None, gap: int | None) -> None:
    task = Induction(length=8, gap=gap, evaluation=4)
    config = ModelConfig(d_model=16, nhead=2, num_layers=1, positions=positions)
    model = task.build_model("full", {}, config)
    assert list(task.details(model, "validation")) == ["N=8", "N=16", "N=32"]


def test_baselines_by_hand() -> None:
    task = Induction(length=12, vocab=6, evaluation=300)
    inputs, _ = task.held("test")
    chance = []
    for row in inputs.tolist():
        candidates = [token for token in row if token != 0]
        answer = row[row.index(0) + 1]
        chance.append(candidates.count(answer) / len(candidates))
    assert task.baselines() == {
        "chance": 1 / 5,
        "some_token_of_the_sample": pytest.approx(sum(chance) / len(chance)),
    }


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"length": 2}, "length=2.*at least 3"),
        ({"vocab": 2}, "vocab=2.*at least 3"),
        ({"evaluation": 0}, "evaluation=0.*at least 1"),
        ({"gap": -1}, "gap=-1.*at least 0"),
        ({"gap": 62}, "gap=61 or less"),
        ({"gap": 1.5}, "gap=1.5.*whole"),
        ({"test_length": 63}, "test_length=63.*at least 64"),
    ],
)
def test_impossible_sizes_say_what_would_do(fields, advice) -> None:
    with pytest.raises(ValueError, match=advice):
        Induction(**fields)
