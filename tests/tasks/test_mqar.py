"""Multi-query associative recall: what is generated is what the docstring says."""

import numpy as np
import pytest
import torch

from efficient_attn.tasks import Mqar
from efficient_attn.tasks.recall import IGNORE


def drawn(task: Mqar, count: int = 50, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return next(task.batches(seed, count))


SIZES = [Mqar(), Mqar(length=24, pairs=8, vocab=18), Mqar(length=5, pairs=1, vocab=4)]


@pytest.mark.parametrize("task", SIZES, ids=lambda task: f"N{task.length}-P{task.pairs}")
def test_every_key_is_asked_once_after_the_pairs(task: Mqar) -> None:
    inputs, labels = drawn(task)
    for sample, wanted in zip(inputs.tolist(), labels.tolist(), strict=True):
        keys = sample[0 : 2 * task.pairs : 2]
        assert len(set(keys)) == task.pairs
        asked = [place for place, label in enumerate(wanted) if label != IGNORE]
        assert min(asked) >= 2 * task.pairs
        assert sorted(sample[place] for place in asked) == sorted(keys)
        rest = set(range(2 * task.pairs, task.length)) - set(asked)
        assert all(sample[place] == 0 for place in rest)


def test_keys_and_values_have_their_own_halves() -> None:
    task = Mqar()
    inputs, labels = drawn(task, 400)
    keys, values = inputs[:, 0:16:2], inputs[:, 1:16:2]
    assert (keys.min(), keys.max()) == (1, 31)
    assert (values.min(), values.max()) == (32, 63)
    assert labels[labels != IGNORE].min() >= 32


def test_gaps_follow_the_power_law() -> None:
    """One pair: P(gap) ∝ gap^(power − 1), compared with drawn frequencies."""
    task = Mqar(length=12, pairs=1, vocab=4, power=0.3)
    _, labels = drawn(task, 20_000)
    place = (labels != IGNORE).int().argmax(1)
    got = np.bincount(place, minlength=12)[2:] / 20_000
    expected = np.arange(1, 11) ** -0.7
    np.testing.assert_allclose(got, expected / expected.sum(), atol=0.015)


def test_baselines() -> None:
    baselines = Mqar().baselines()
    assert baselines["chance"] == 1 / 32
    assert 1 / 8 <= baselines["some_value_of_the_sample"] < 0.2


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"pairs": 40}, "vocab=82"),
        ({"length": 20}, "length=24"),
        ({"vocab": 7}, "even"),
        ({"power": 0.0}, "power"),
        ({"pairs": 0}, "at least 1"),
    ],
)
def test_impossible_sizes_say_what_would_do(fields, advice) -> None:
    with pytest.raises(ValueError, match=advice):
        Mqar(**fields)
