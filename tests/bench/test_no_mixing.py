"""The baseline whose tokens see themselves alone: what it computes, and where it trains."""

from pathlib import Path

import pytest
import torch
import yaml

import efficient_attn as ea
from efficient_attn.bench.training import Training, fit
from efficient_attn.tasks import ByteLM, Copying, Digits, DigitsGrid, ModelConfig, Mqar, Task

CONF = Path(__file__).parents[2] / "conf" / "attention" / "no_mixing.yaml"
OPTIONS = yaml.safe_load(CONF.read_text())
VARIANT = OPTIONS.pop("variant")
SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)
SHORT = {"tokens": 4, "evaluation": 4}
TASKS: list[Task] = [
    Mqar(length=12, pairs=2, vocab=8, evaluation=8),
    ByteLM(length=16, max_bytes=20_000, evaluation=4),
    Digits(),
    DigitsGrid(),
    Copying(**SHORT),
    Copying(decoding="mask_predict", **SHORT),
]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("N", [1, 7, 300])
def test_it_is_the_projected_value_of_each_token(N: int, is_causal: bool) -> None:
    torch.manual_seed(0)
    attention = ea.MultiHeadAttention(16, 2, variant=VARIANT, **OPTIONS)
    x = torch.randn(2, N, 16)
    weight, bias = attention.in_proj_weight[32:], attention.in_proj_bias[32:]
    expected = attention.out_proj(x @ weight.T + bias)
    output, _ = attention(x, is_causal=is_causal)
    torch.testing.assert_close(output, expected)


def test_it_decodes_what_it_computes_at_once() -> None:
    attention = ea.MultiHeadAttention(16, 2, variant=VARIANT, **OPTIONS).eval()
    x = torch.randn(2, 9, 16)
    state = attention.init_state(batch=2)
    pieces = []
    for piece in x.split([4, 1, 4], 1):
        output, state = attention.step(piece, state)
        pieces.append(output)
    torch.testing.assert_close(torch.cat(pieces, 1), attention(x, is_causal=True)[0])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.name}-{task.pattern}")
def test_it_trains_with_as_many_parameters_as_full(task: Task) -> None:
    training = Training(steps=2, batch_size=4, learning_rates=(1e-3,))
    bare = fit(task, VARIANT, OPTIONS, SMALL, training, seed=0)
    full = fit(task, "full", {}, SMALL, training, seed=0)
    assert bare.parameters == full.parameters
    assert bare.curve[0][1] != full.curve[0][1]
