"""Multi-query associative recall: what is generated is what the docstring says."""

import numpy as np
import pytest
import torch
from torch import nn

from efficient_attn.tasks import Mqar
from efficient_attn.tasks.mqar import IGNORE


def drawn(task: Mqar, count: int = 50, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return next(task.batches(seed, count))


SIZES = [Mqar(), Mqar(length=24, pairs=8, vocab=18), Mqar(length=5, pairs=1, vocab=4)]


@pytest.mark.parametrize("task", SIZES, ids=lambda task: f"N{task.length}-P{task.pairs}")
def test_every_question_has_its_answer_before_it(task: Mqar) -> None:
    inputs, labels = drawn(task)
    assert inputs.shape == labels.shape == (50, task.length)
    for sample, wanted in zip(inputs.tolist(), labels.tolist(), strict=True):
        keys, values = sample[0 : 2 * task.pairs : 2], sample[1 : 2 * task.pairs : 2]
        bound = dict(zip(keys, values, strict=True))
        assert len(bound) == task.pairs
        asked = [place for place, label in enumerate(wanted) if label != IGNORE]
        assert min(asked) >= 2 * task.pairs
        assert {sample[place] for place in asked} == set(bound)
        assert all(wanted[place] == bound[sample[place]] for place in asked)
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


def test_seeds_decide_and_nothing_global_moves() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    task = Mqar()
    first, again, other = drawn(task), drawn(task), drawn(task, seed=1)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(torch.random.get_rng_state(), before)


class Oracle(nn.Module):
    """Logits that know the rule."""

    def __init__(self, task: Mqar) -> None:
        super().__init__()
        self.task = task
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        keys, values = (
            tokens[:, 0 : 2 * self.task.pairs : 2],
            tokens[:, 1 : 2 * self.task.pairs : 2],
        )
        found = (tokens[:, :, None] == keys[:, None]).int().argmax(-1)
        return nn.functional.one_hot(values.gather(1, found), self.task.vocab) * 50.0


def test_metric_and_loss_of_a_model_that_knows() -> None:
    task = Mqar(evaluation=300)
    assert task.evaluate(Oracle(task), "test") == 1.0
    assert task.evaluate(Oracle(task), "validation") == 1.0
    assert task.loss(Oracle(task), drawn(task)).item() < 1e-6


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
