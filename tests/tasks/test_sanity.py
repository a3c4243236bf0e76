"""Recall tasks tell attention that reaches from attention that does not."""

import pytest

from efficient_attn.bench.training import Training, fit
from efficient_attn.tasks import Induction, ModelConfig, Mqar
from efficient_attn.tasks.recall import RecallTask

MODEL = ModelConfig(d_model=32, nhead=2, num_layers=1, dim_feedforward=32)
TRAINING = Training(steps=200, batch_size=64, learning_rates=(1e-2,))
TASKS = [
    Mqar(length=48, pairs=4, vocab=16, power=1.0),
    Induction(length=32, vocab=8),
]
by_name = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


@by_name
def test_full_attention_recalls_everything(task: RecallTask) -> None:
    result = fit(task, "full", {}, MODEL, TRAINING, seed=0)
    assert result.value > 0.99
    assert all(figures["accuracy"] > 0.99 for figures in result.details.values())


@by_name
def test_a_window_that_does_not_reach_the_answers_guesses(task: RecallTask) -> None:
    result = fit(task, "local_window", {"window": 8}, MODEL, TRAINING, seed=0)
    assert result.value < result.baselines["chance"] + 0.15
