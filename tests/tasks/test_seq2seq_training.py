"""Tasks from sequence to sequence in training: causality of the decoder, details in the record."""

from dataclasses import asdict, dataclass, replace

import pytest
import torch
from shipped import SHIPPED, shipped

from efficient_attn.attention import (
    AttentionVariant,
    Capabilities,
    UnsupportedAttention,
    describe,
    register_variant,
    unregister_variant,
)
from efficient_attn.bench.causality import NotCausal, check_causality
from efficient_attn.bench.record import AccuracyResult
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


def test_cross_attention_of_a_contestant_learns_to_skip_distractors() -> None:
    task = replace(TASK, order="copy", distractors=1, contest="cross")
    training = Training(steps=150, batch_size=64, learning_rates=(5e-3,))
    result = fit(task, "performer", {}, SMALL, training, seed=0)
    assert result.value > 0.5 > 3 * max(result.baselines.values())


@pytest.mark.parametrize("decoding", ["autoregressive", "mask_predict"])
@pytest.mark.parametrize("contest", ["cross", "both"])
@pytest.mark.parametrize("variant", SHIPPED)
def test_who_cannot_stand_where_the_contest_is_is_refused(
    variant: str, contest: str, decoding: str
) -> None:
    task = replace(TASK, contest=contest, decoding=decoding, evaluation=2)
    can = describe(variant).capabilities
    fits = can.noncausal_cross and not can.equal_lengths
    if contest == "both":
        fits = fits and (can.causal_self if task.causal else can.noncausal_self)
    told: list[int] = []
    once = Training(steps=1, batch_size=2, learning_rates=(1e-3,))

    def train() -> AccuracyResult:
        return fit(task, variant, {}, SMALL, once, 0, lambda *heard: told.append(heard[1]))

    if fits:
        assert 0 <= train().value <= 1
        assert told == [1]
    else:
        with pytest.raises(UnsupportedAttention, match=variant):
            train()
        assert not told


@dataclass(frozen=True)
class NoOptions:
    pass


def leak_of_keys(q, k, v):
    return v + v.mean(2, keepdim=True)


def leak_of_queries(q, k, v):
    """Reads the memory's mean, and the mean of all queries, later ones among them."""
    return v.mean(2, keepdim=True) + q + q.mean(2, keepdim=True)


@pytest.mark.parametrize(
    ("contest", "leak"),
    [("self", leak_of_keys), ("cross", leak_of_queries)],
    ids=["self", "cross"],
)
def test_a_leaking_decoder_is_found_before_training(contest: str, leak) -> None:
    class Leaky(AttentionVariant):
        Options = NoOptions
        capabilities = Capabilities(causal_self=True, noncausal_self=True, noncausal_cross=True)

        def forward(self, q, k, v, mask, dropout_p=0.0):
            return leak(q, k, v)

    register_variant("leaky")(Leaky)
    told: list[int] = []
    try:
        with pytest.raises(NotCausal, match="leaky is not causal"):
            fit(
                replace(TASK, contest=contest),
                "leaky",
                {},
                SMALL,
                Training(steps=1),
                0,
                lambda *step: told.append(step[0]),
            )
    finally:
        unregister_variant("leaky")
    assert not told


def test_the_probe_leaves_the_memory_alone() -> None:
    """Target positions are not source positions: a source may be shorter than its target."""
    model = TASK.build_model("full", {}, SMALL)
    source, target = next(TASK.batches(0, 2))
    part, tokens = TASK.causal_view(model, (source[:, :1], target))
    check_causality(part, tokens, "full")
    assert torch.equal(tokens, target[:, 0])
