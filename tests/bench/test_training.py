"""Training and scoring small models."""

from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch
import yaml
from shipped import shipped

from efficient_attn.attention import (
    AttentionVariant,
    Capabilities,
    UnsupportedAttention,
    register_variant,
    unregister_variant,
)
from efficient_attn.bench.causality import NotCausal, check_causality
from efficient_attn.bench.training import Diverged, Training, fit, pace
from efficient_attn.tasks import TASKS, ByteLM, ModelConfig, Mqar

CONF = Path(__file__).parents[2] / "conf"
TASK = Mqar(length=16, pairs=2, vocab=8, evaluation=200)
SMALL = ModelConfig(d_model=32, nhead=2, num_layers=1, dim_feedforward=32)


def test_a_little_training_beats_chance_and_is_repeatable() -> None:
    training = Training(steps=60, batch_size=32, learning_rates=(1e-4, 1e-2))
    heard: list[tuple[int, int, float]] = []
    results = [
        fit(TASK, "full", {}, SMALL, training, seed=1, report=lambda *told: heard.append(told))
        for _ in range(2)
    ]
    result = results[0]
    assert result.value > 0.6 > 2 * result.baselines["chance"]
    assert result.learning_rate == 1e-2
    assert [trial["status"] for trial in result.trials] == ["ok", "ok"]
    assert result.validation == max(trial["validation"] for trial in result.trials)
    assert result.curve[0][0] == 1
    assert result.curve[-1][0] == 60
    assert [step for step, _, _ in heard[:120]] == list(range(1, 121))
    assert {total for _, total, _ in heard} == {120}
    repeated = asdict(results[1])
    assert {**asdict(result), "train_seconds": 0} == {**repeated, "train_seconds": 0}


def test_lower_is_better_where_the_task_says_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("abcdefgh" * 400)
    task = ByteLM(length=16, source=str(tmp_path / "text"), evaluation=8)
    training = Training(steps=40, batch_size=8, learning_rates=(1e-5, 1e-2))
    result = fit(task, "full", {}, SMALL, training, seed=0)
    assert result.learning_rate == 1e-2
    assert result.value < result.baselines["unigram"]


def test_global_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    fit(TASK, "full", {}, SMALL, Training(steps=1, learning_rates=(1e-3,)), seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_divergence_of_one_rate_is_a_trial_and_of_all_an_error() -> None:
    mixed = Training(steps=8, batch_size=8, learning_rates=(1e30, 1e-3), clip=1e30, warmup=0.0)
    result = fit(TASK, "full", {}, SMALL, mixed, seed=0)
    assert [trial["status"] for trial in result.trials] == ["diverged", "ok"]
    assert result.trials[0]["validation"] is None
    assert result.learning_rate == 1e-3
    hopeless = Training(steps=8, batch_size=8, learning_rates=(1e30,), clip=1e30, warmup=0.0)
    with pytest.raises(Diverged, match="smaller training"):
        fit(TASK, "full", {}, SMALL, hopeless, seed=0)


def test_variant_that_cannot_be_causal_is_refused() -> None:
    with pytest.raises(UnsupportedAttention, match="linformer"):
        fit(TASK, "linformer", {}, SMALL, Training(steps=1), seed=0)


@pytest.mark.parametrize("variant", shipped(causal=True))
def test_causal_variants_pass_the_probe(variant: str) -> None:
    model = TASK.build_model(variant, {}, SMALL)
    check_causality(model, next(TASK.batches(0, 2))[0], variant)


@dataclass(frozen=True)
class NoOptions:
    pass


def leak_of_the_maximum(q, k, v):
    """Keys scaled by their largest entry anywhere: small nudges of other tokens change nothing."""
    return v / (1.0 + k.abs().amax((-2, -1), keepdim=True))


def leak_of_the_length(q, k, v):
    """Depends on how many tokens there are, not on what they hold."""
    return v * (1.0 + 0.1 * k.shape[-2])


@pytest.mark.parametrize("leak", [leak_of_the_maximum, leak_of_the_length])
def test_leaks_are_found_before_training(leak) -> None:
    class Leaky(AttentionVariant):
        Options = NoOptions
        capabilities = Capabilities(causal_self=True)

        def forward(self, q, k, v, mask, dropout_p=0.0):
            return leak(q, k, v)

    register_variant("leaky")(Leaky)
    told: list[int] = []
    try:
        with pytest.raises(NotCausal, match="leaky is not causal"):
            fit(TASK, "leaky", {}, SMALL, Training(steps=1), 0, lambda *step: told.append(step[0]))
    finally:
        unregister_variant("leaky")
    assert not told


def test_pace_rises_then_falls_to_nothing() -> None:
    training = Training(steps=100, warmup=0.1)
    rates = [pace(step, training) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[100] == pytest.approx(0.0)
    assert pace(0, Training(steps=1, warmup=0.9)) == 1.0


@pytest.mark.parametrize("name", TASKS)
def test_shipped_training_is_valid(name: str) -> None:
    values = yaml.safe_load((CONF / "training" / f"{name}.yaml").read_text())
    assert Training(**values).learning_rates == tuple(values["learning_rates"])


def test_shipped_model_is_valid() -> None:
    assert ModelConfig(**yaml.safe_load((CONF / "model" / "small.yaml").read_text())).d_model == 64


@pytest.mark.parametrize(
    "field",
    [
        {"steps": 0},
        {"batch_size": True},
        {"learning_rates": ()},
        {"learning_rates": (0.0,)},
        {"warmup": 1.0},
        {"clip": 0.0},
    ],
    ids=str,
)
def test_impossible_settings_are_named(field) -> None:
    with pytest.raises(ValueError, match=f"training.{next(iter(field))}"):
        Training(**field)
