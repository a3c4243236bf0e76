"""Mask-predict: the search against a written-out loop, what it is trained on, the whole model."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shipped import shipped
from test_seq2seq import MASK, PAD, SPECIALS, M, N, V, build, sources
from torch import Tensor

from efficient_attn.nn import MaskPredict
from efficient_attn.nn.mask_predict import mask_at_random, refine


@pytest.mark.parametrize("iterations", [1, 4, 10])
def test_a_model_that_knows_the_answer_gives_it(iterations: int) -> None:
    answer = torch.tensor([[4, 5, 6, 7, 4], [7, 6, PAD, PAD, PAD]])
    passes = []

    def predict(tokens: Tensor) -> Tensor:
        passes.append(tokens)
        return torch.nn.functional.one_hot(answer, V) * 50.0

    tokens, scores = refine(predict, torch.tensor([5, 2]), iterations)
    assert torch.equal(tokens, answer)
    assert len(passes) == iterations
    torch.testing.assert_close(scores, torch.zeros(2), atol=1e-6, rtol=0.0)
    assert passes[0].tolist() == [[MASK] * 5, [MASK] * 2 + [PAD] * 3]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    iterations=st.integers(1, 8),
    seed=st.integers(0, 10**6),
)
def test_refinement_against_a_loop_for_one_sample(lengths, iterations, seed) -> None:
    """predict depends on all tokens of a sample, masks included, and on nothing else."""
    table = torch.randn(V, V, generator=torch.Generator().manual_seed(seed))
    place = torch.randn(6, V, generator=torch.Generator().manual_seed(seed + 1))

    def predict(tokens: Tensor) -> Tensor:
        real = (tokens != PAD).unsqueeze(2)
        seen = (table[tokens] * real * (1 + place[: tokens.shape[1], :1])).sum(1, keepdim=True)
        return seen + place[: tokens.shape[1]]

    tokens, scores = refine(predict, torch.tensor(lengths), iterations)
    for row, score, length in zip(tokens, scores, lengths, strict=True):
        wanted, rating = one_sample(predict, length, iterations)
        assert row.tolist() == wanted + [PAD] * (max(lengths) - length)
        assert score.item() == pytest.approx(rating, rel=1e-4)


def one_sample(predict, length: int, iterations: int) -> tuple[list[int], float]:
    """Ghazvininejad et al. 2019, section 3, with lists."""
    tokens, chances = [MASK] * length, [0.0] * length
    for t in range(iterations):
        count = length * (iterations - t) // iterations
        unsure = sorted(range(length), key=lambda i: chances[i])[:count]
        seen = [MASK if i in unsure else token for i, token in enumerate(tokens)]
        logits = predict(torch.tensor([seen]))[0].log_softmax(-1)
        for i in unsure:
            tokens[i], chances[i] = int(logits[i].argmax()), float(logits[i].max())
    return tokens, sum(chances)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5), seed=st.integers(0, 10**6))
def test_random_masks_hide_what_they_ask_for(lengths, seed) -> None:
    target = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(target, lengths, strict=True):
        row[:length] = torch.arange(length) % (V - SPECIALS) + SPECIALS
    masked_target, labels = mask_at_random(target, torch.Generator().manual_seed(seed))
    masked = masked_target == MASK
    assert torch.equal(torch.where(masked, labels, masked_target), target)
    assert torch.equal(labels != PAD, masked)
    assert (masked.sum(1) >= 1).all()


def test_numbers_of_masks_are_uniform() -> None:
    target = torch.full((12_000, 4), 5)
    counts = (mask_at_random(target, torch.Generator().manual_seed(0))[0] == MASK).sum(1)
    shares = torch.bincount(counts, minlength=5) / len(target)
    torch.testing.assert_close(shares, torch.tensor([0, 0.25, 0.25, 0.25, 0.25]), atol=0.02, rtol=0)


@pytest.mark.parametrize("variant", shipped())
def test_targets_do_not_depend_on_the_batch(variant) -> None:
    model, lengths = build(MaskPredict, variant), (9, 4, 1)
    source = sources(*lengths)
    together = model.generate(source, iterations=3, length_candidates=2)
    for index, (tokens, length) in enumerate(zip(together.sequences(), lengths, strict=True)):
        alone = model.generate(source[[index], :length], iterations=3, length_candidates=2)
        assert alone.sequences()[0].tolist() == tokens.tolist()
        torch.testing.assert_close(alone.scores, together.scores[[index]])
        assert tokens.min() >= SPECIALS


def test_the_likeliest_candidate_is_taken() -> None:
    """Against each of the model's first three lengths on its own."""
    model, source = build(MaskPredict), sources(6)
    memory, padding = model.encode(source)
    likeliest = model.length_logits(source, memory)[0].log_softmax(-1).topk(3)

    def predict(tokens: Tensor) -> Tensor:
        logits = model.decode(tokens, memory, padding)
        logits[..., :SPECIALS] = float("-inf")
        return logits

    found = []
    for index, chance in zip(likeliest.indices, likeliest.values, strict=True):
        tokens, score = refine(predict, index[None] + 1, 4)
        found.append(((score + chance).item() / tokens.shape[1], tokens[0].tolist()))
    rating, tokens = max(found)
    got = model.generate(source, iterations=4, length_candidates=3)
    assert got.sequences()[0].tolist() == tokens
    assert got.scores.item() == pytest.approx(rating * len(tokens), rel=1e-5)


def test_a_length_that_the_model_rules_out_never_wins() -> None:
    """A target of a length never trained on may look likelier, token by token."""
    model, source = build(MaskPredict), sources(6)
    with torch.no_grad():
        for weight in (model.length_head.weight, model.source_length.weight):
            weight.zero_()
        model.length_head.bias.copy_(torch.full((N,), -1000.0))
        for length in range(1, N + 1):
            model.length_head.bias[length - 1] = 0.0
            made = model.generate(source, iterations=2, length_candidates=N)
            assert made.lengths.item() == length
            model.length_head.bias[length - 1] = -1000.0


def test_decoder_looks_both_ways() -> None:
    model, source = build(MaskPredict), sources(6)
    target = torch.full((1, N), 5)
    changed = target.clone()
    changed[0, -1] = 6
    first, second = (model(source, one)[0][0, 0] for one in (target, changed))
    assert not torch.allclose(first, second)


def test_loss_is_of_masked_tokens_and_of_the_length() -> None:
    model, source = build(MaskPredict), sources(6)
    masked_target, labels = torch.tensor([[5, MASK, 6]]), torch.tensor([[PAD, 7, PAD]])
    logits, lengths = model(source, masked_target)
    by_hand = -logits.log_softmax(-1)[0, 1, 7] - 0.1 * lengths.log_softmax(-1)[0, 2]
    torch.testing.assert_close(model.loss(source, masked_target, labels), by_hand)


@pytest.mark.parametrize("option", ["iterations", "length_candidates"])
@pytest.mark.parametrize("value", [0, 1.5, True])
def test_impossible_options(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        build(MaskPredict).generate(sources(3), **{option: value})


def test_more_candidates_than_lengths_are_all_lengths() -> None:
    model = build(MaskPredict)
    got = model.generate(sources(M), iterations=2, length_candidates=100)
    assert 1 <= got.lengths.item() <= N
