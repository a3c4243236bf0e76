"""Selective copying: what is generated is what the docstring says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.tasks import SelectiveCopying


@given(
    tokens=st.integers(1, 12),
    blanks=st.integers(0, 30),
    vocab=st.integers(4, 20),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_tokens_among_blanks_then_as_many_markers(tokens, blanks, vocab, seed) -> None:
    task = SelectiveCopying(length=2 * tokens + blanks, tokens=tokens, vocab=vocab)
    inputs, labels = next(task.batches(seed, 20))
    for row, wanted in zip(inputs.tolist(), labels.tolist(), strict=True):
        assert row[-tokens:] == [1] * tokens
        before = row[:-tokens]
        said = [token for token in before if token != 0]
        assert len(said) == tokens
        assert all(2 <= token < vocab for token in said)
        assert wanted == [-100] * len(before) + said


def test_tokens_stand_anywhere_and_are_any() -> None:
    inputs, _ = next(SelectiveCopying(length=9, tokens=2, vocab=5).batches(0, 20_000))
    context = inputs[:, :7].numpy()
    np.testing.assert_allclose((context > 0).mean(0), 2 / 7, atol=0.015)
    shares = np.bincount(context[context > 0])[2:] / (2 * len(context))
    np.testing.assert_allclose(shares, 1 / 3, atol=0.015)
    first, second = np.sort(context, axis=1)[:, -2:].T
    assert (first == second).mean() == pytest.approx(1 / 3, abs=0.015)


def test_baselines_by_hand() -> None:
    task = SelectiveCopying(length=20, tokens=5, vocab=8, evaluation=300)
    shares = []
    for row in task.held("test")[1].tolist():
        said = row[-5:]
        shares += [said.count(token) / 5 for token in said]
    assert task.baselines() == {
        "chance": 1 / 6,
        "some_token_of_the_sample": pytest.approx(sum(shares) / len(shares)),
    }


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"length": 15}, "use length=16 or more"),
        ({"tokens": 0}, "tokens=0.*at least 1"),
        ({"vocab": 3}, "vocab=3.*at least 4"),
        ({"evaluation": True}, "evaluation=True.*whole"),
    ],
)
def test_impossible_sizes_say_what_would_do(fields, advice) -> None:
    with pytest.raises(ValueError, match=advice):
        SelectiveCopying(**fields)
