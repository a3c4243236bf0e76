"""Tasks from sequence to sequence in training: causality of the decoder, details in the record."""

from dataclasses import asdict, dataclass

import pytest
import torch
from shipped import shipped

from efficient_attn.attention import (
    AttentionVariant,
    Capabilities,
    UnsupportedAttention,
    register_variant,
    unregister_variant,
)
from efficient_attn.bench.causality import NotCausal, check_causality
from efficient_attn.bench.training import Training, fit
from efficient_attn.tasks import Copying, ModelConfig

SMALL = ModelConfig(d_model=32, nhead=2, num_layers=1, dim_feedforward=32)
TASK = Copying(tokens=3, symbols=4, evaluation=100, iterations=(1, 2))


@pytest.mark.parametrize("decoding", ["autoregressive", "mask_predict"])
def test_a_little_training_learns_to_reverse(decoding: str) -> None:
    task = Copying(**{**vars(TASK), "decoding": decoding})
    training = Training(steps=150, batch_size=64, learning_rates=(5e-3,))
    result = fit(task, "full", {}, SMALL, training, seed=0)
    assert result.value > 0.9 > 3 * max(result.baselines.values())
    ways = {"autoregressive": ["greedy"], "mask_predict": ["mask-predict, 1", "mask-predict, 2"]}
    assert list(asdict(result)["details"]) == ways[decoding]
    assert result.details[ways[decoding][-1]]["exact_match"] == result.value


@pytest.mark.parametrize("variant", shipped(causal=True))
def test_causal_variants_pass_the_probe(variant: str) -> None:
    model = TASK.build_model(variant, {}, SMALL)
    check_causality(*TASK.causal_view(model, next(TASK.batches(0, 2))), variant)


def test_parallel_decoding_takes_variants_that_are_never_causal() -> None:
    task = Copying(tokens=4, symbols=4, evaluation=4, decoding="mask_predict", iterations=(1,))
    once = Training(steps=1, batch_size=2, learning_rates=(1e-3,))
    assert fit(task, "linformer", {"k": 2}, SMALL, once, seed=0).value >= 0
    with pytest.raises(UnsupportedAttention, match="linformer"):
        fit(TASK, "linformer", {"k": 2}, SMALL, once, seed=0)


@dataclass(frozen=True)
class NoOptions:
    pass


def test_a_leaking_decoder_is_found_before_training() -> None:
    class Leaky(AttentionVariant):
        Options = NoOptions
        capabilities = Capabilities(causal_self=True, noncausal_self=True)

        def forward(self, q, k, v, mask, dropout_p=0.0):
            return v + v.mean(2, keepdim=True)

    register_variant("leaky")(Leaky)
    try:
        with pytest.raises(NotCausal, match="leaky is not causal"):
            fit(TASK, "leaky", {}, SMALL, Training(steps=1), seed=0)
    finally:
        unregister_variant("leaky")


def test_the_probe_leaves_the_memory_alone() -> None:
    """Target positions are not source positions: a source may be shorter than its target."""
    model = TASK.build_model("full", {}, SMALL)
    source, target = next(TASK.batches(0, 2))
    part, tokens = TASK.causal_view(model, (source[:, :1], target))
    check_causality(part, tokens, "full")
    assert torch.equal(tokens, target[:, 0])
