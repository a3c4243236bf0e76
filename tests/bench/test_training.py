"""Training and scoring small models."""

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
import torch
import yaml
from shipped import shipped
from torch import nn

from efficient_attn.attention import (
    AttentionVariant,
    Capabilities,
    UnsupportedAttention,
    register_variant,
    unregister_variant,
)
from efficient_attn.bench.causality import NotCausal, check_causality
from efficient_attn.bench.training import Diverged, Training, fit, pace, peak_of_update
from efficient_attn.tasks import TASKS, ByteLM, ModelConfig, Mqar

CONF = Path(__file__).parents[2] / "conf"
TASK = Mqar(length=16, pairs=2, vocab=8, evaluation=200)
SMALL = ModelConfig(d_model=32, nhead=2, num_layers=1, dim_feedforward=32)


def test_a_little_training_beats_chance_and_is_repeatable() -> None:
    training = Training(steps=60, batch_size=32, learning_rates=(1e-4, 1e-2))
    heard: list[tuple[int, int, float, float | None]] = []
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
    both = [(rate, step) for rate in range(2) for step in range(1, 61)]
    assert [told[:2] for told in heard[:120]] == both
    trials = [trial["validation"] for trial in result.trials]
    assert [told[3] for told in heard[:120] if told[3] is not None] == trials
    assert result.validations == [[60, result.validation]]
    repeated = asdict(results[1])
    assert {**asdict(result), "train_seconds": 0} == {**repeated, "train_seconds": 0}


def test_lower_is_better_where_the_task_says_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("abcdefgh" * 400)
    task = ByteLM(length=16, source=str(tmp_path / "text"), evaluation=8)
    training = Training(steps=40, batch_size=8, learning_rates=(1e-5, 1e-2))
    result = fit(task, "full", {}, SMALL, training, seed=0)
    assert result.learning_rate == 1e-2
    assert result.value < result.baselines["unigram"]


def test_updates_are_those_of_the_loop_written_out() -> None:
    """AdamW without decay on vectors and embeddings, the schedule by its formula, clipping."""
    training = Training(
        steps=12, batch_size=8, learning_rates=(3e-3,), warmup=0.25, weight_decay=0.1, clip=0.5
    )
    result = fit(TASK, "full", {}, SMALL, training, seed=4)
    torch.manual_seed(4)
    model = TASK.build_model("full", {}, SMALL)
    decayed, free = [], []
    for name, weight in model.named_parameters():
        embeds = weight.dim() < 2 or "embed" in name or "position" in name
        (free if embeds else decayed).append(weight)
    assert len(decayed) > 4
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}],
        lr=0.0,
        foreach=False,
    )
    batches = TASK.batches(4, 8)
    losses = []
    for step in range(12):
        share = (step + 1) / 3 if step < 3 else 0.5 * (1 + math.cos(math.pi * (step - 3) / 9))
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * share
        loss = TASK.loss(model, next(batches))
        model.zero_grad()
        loss.backward()
        norm = torch.cat([weight.grad.flatten() for weight in model.parameters()]).norm()
        for weight in model.parameters():
            weight.grad *= min(1.0, 0.5 / norm.item())
        optimiser.step()
        losses.append(loss.item())
    assert [loss for _, loss in result.curve] == pytest.approx(losses, rel=1e-4)
    assert result.value == TASK.evaluate(model, "test")


def test_looking_at_validation_on_the_way_changes_nothing() -> None:
    training = Training(steps=20, batch_size=8, learning_rates=(1e-2,))
    model = replace(SMALL, dropout=0.2)  # which would show a draw more or less
    blind = fit(TASK, "performer", {}, model, training, seed=2)
    seen = fit(TASK, "performer", {}, model, training, seed=2, validate_every=7)
    assert [step for step, _ in seen.validations] == [7, 14, 20]
    assert seen.validations[-1] == [20, seen.validation]
    timeless = {"train_seconds": 0, "validations": []}
    assert {**asdict(seen), **timeless} == {**asdict(blind), **timeless}
    shorter = Training(steps=7, batch_size=8, learning_rates=(1e-2,), warmup=0.0)
    longer = replace(shorter, steps=14)
    halfway = fit(TASK, "full", {}, SMALL, longer, seed=2, validate_every=7).validations[0]
    assert halfway[1] != fit(TASK, "full", {}, SMALL, shorter, seed=2).validation


class SumOfWeights(nn.Module):
    """Its update makes one gradient of 4 bytes for each weight, and nothing else of size."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))


class OnlyWeights(Mqar):
    def build_model(self, variant, options, model):
        return SumOfWeights(100_000)

    def loss(self, model, batch):
        return model.weight.sum()


def test_memory_of_an_update_is_counted_by_hand() -> None:
    """The gradient, but not the two moments that the optimiser keeps."""
    task = OnlyWeights(length=16, pairs=2, vocab=8, evaluation=8)
    peak = peak_of_update(task, "full", {}, SMALL, Training(batch_size=2), seed=0)
    assert peak is not None
    assert peak.method == "profiler"
    assert 400_000 <= peak.tensor_bytes < 400_000 + 4096


def test_memory_of_an_update_grows_with_the_batch_and_leaves_generators_alone() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    found = [
        peak_of_update(TASK, "full", {}, SMALL, Training(batch_size=size), seed=0)
        for size in (8, 16, 32)
    ]
    assert torch.equal(torch.random.get_rng_state(), before)
    sizes = [peak.tensor_bytes for peak in found if peak is not None]
    assert sizes[2] - sizes[1] == pytest.approx(2 * (sizes[1] - sizes[0]), rel=0.1)
    assert peak_of_update(TASK, "full", {}, SMALL, Training(), 0, device="meta") is None


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
            fit(TASK, "leaky", {}, SMALL, Training(steps=1), 0, lambda *step: told.append(step[1]))
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
