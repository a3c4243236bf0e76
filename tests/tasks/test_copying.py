"""Copy, reverse and sort: what is generated is what the docstring says."""

import numpy as np
import pytest
import torch
from torch import Tensor

from efficient_attn.attention import MultiHeadAttention
from efficient_attn.nn import MaskPredict, Seq2Seq
from efficient_attn.nn.seq2seq import BOS, EOS, MASK, PAD, SPECIALS
from efficient_attn.tasks import Copying, ModelConfig
from efficient_attn.tasks.seq2seq import padded, unpadded

SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)
TASKS = [
    Copying(order=order, tokens=9, shortest=shortest, distractors=distractors, symbols=5)
    for order in ("copy", "reverse", "sort")
    for shortest in (None, 3)
    for distractors in (0, 4)
]


def drawn(task: Copying, count: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Sources and targets of a training batch without their padding."""
    return list(zip(*map(unpadded, next(task.pairs(seed, count))), strict=True))


@pytest.mark.parametrize(
    "task", TASKS, ids=lambda task: f"{task.order}-{task.shortest}-D{task.distractors}"
)
def test_targets_are_the_sources_tokens_in_order(task: Copying) -> None:
    lengths = set()
    for source, target in drawn(task, 200):
        said = [token for token in source if token < SPECIALS + task.symbols]
        assert len(source) - len(said) == task.distractors
        wanted = {"copy": said, "reverse": said[::-1], "sort": sorted(said)}[task.order]
        assert target == wanted
        assert SPECIALS <= min(source)
        assert max(source) < task.vocab_size
        lengths.add(len(target))
    assert lengths == (set(range(3, 10)) if task.shortest else {9})
    assert task.target_length == 9
    assert task.length == 9 + task.distractors


def test_padding_is_put_on_and_taken_off() -> None:
    rows = [[7, 5], [], [9, 4, 4]]
    assert padded(rows).tolist() == [[7, 5, PAD], [PAD] * 3, [9, 4, 4]]
    assert unpadded(padded(rows)) == rows


def test_distractors_stand_anywhere() -> None:
    task = Copying(tokens=4, distractors=2, symbols=3)
    sources = np.array([source for source, _ in drawn(task, 3000)])
    shares = (sources >= SPECIALS + 3).mean(0)
    np.testing.assert_allclose(shares, 1 / 3, atol=0.04)


def test_autoregressive_batches_are_teacher_forcing() -> None:
    task = Copying(tokens=6, shortest=2)
    (source, target), pairs = next(task.batches(4, 8)), drawn(task, 8, seed=4)
    given, wanted = target.unbind(1)
    for index, (asked, answer) in enumerate(pairs):
        assert [t for t in source[index].tolist() if t != PAD] == asked
        assert [t for t in given[index].tolist() if t != PAD] == [BOS, *answer]
        assert [t for t in wanted[index].tolist() if t != PAD] == [*answer, EOS]


def test_parallel_batches_hide_tokens_by_the_seed() -> None:
    task = Copying(tokens=6, decoding="mask_predict")
    source, target = next(task.batches(4, 8))
    given, wanted = target.unbind(1)
    assert torch.equal(torch.where(given == MASK, wanted, given), source.flip(1))
    assert torch.equal(next(task.batches(4, 8))[1], target)
    assert not torch.equal(next(task.batches(5, 8))[1], target)


@pytest.mark.parametrize(
    ("decoding", "kind"), [("autoregressive", Seq2Seq), ("mask_predict", MaskPredict)]
)
def test_every_decoding_has_its_model_and_details(decoding: str, kind: type) -> None:
    task = Copying(tokens=4, evaluation=6, decoding=decoding, num_beams=3, iterations=[1, 2])
    model = task.build_model("full", {}, SMALL)
    assert isinstance(model, kind)
    details = task.details(model, "test")
    ways = {
        "autoregressive": ["greedy", "beam search, 3"],
        "mask_predict": ["mask-predict, 1", "mask-predict, 2"],
    }[decoding]
    assert list(details) == ways
    assert all(figures["ms per sequence"] > 0 for figures in details.values())
    assert details[ways[-1]]["exact_match"] == task.evaluate(model, "test")
    assert model.training


@pytest.mark.parametrize("decoding", ["autoregressive", "mask_predict"])
@pytest.mark.parametrize("contest", ["self", "cross", "both"])
def test_the_contestant_stands_where_the_contest_is(contest: str, decoding: str) -> None:
    task = Copying(tokens=4, distractors=3, contest=contest, decoding=decoding)
    model = task.build_model("performer", {"num_features": 24}, SMALL)
    found: dict[bool, set[object]] = {False: set(), True: set()}
    for name, part in model.named_modules():
        if isinstance(part, MultiHeadAttention):
            features = getattr(part.core.options, "num_features", None)
            found[name.endswith("multihead_attn")].add(features)
    assert found == {
        False: {24 if contest in ("self", "both") else None},
        True: {24 if contest in ("cross", "both") else None},
    }
    if contest == "cross":
        assert task.pattern == "noncausal_cross"
    else:
        assert task.pattern == f"{'causal' if decoding == 'autoregressive' else 'noncausal'}_self"
    assert task.causal == (decoding == "autoregressive")


class Knowing(Seq2Seq):
    """Says the source backwards, whatever its weights."""

    def generate(self, source: Tensor, **search: object):
        class Answer:
            def sequences(self) -> list[Tensor]:
                rows = [row[row != PAD].flip(0) for row in source]
                return [torch.cat([row, torch.tensor([EOS])]) for row in rows]

        return Answer()


def test_a_model_that_knows_scores_one_and_one_that_does_not_zero() -> None:
    task = Copying(tokens=6, shortest=2, evaluation=50)
    model = Knowing(task.vocab_size, max_len=6, max_target_len=7)
    assert task.evaluate(model, "test") == task.evaluate(model, "validation") == 1.0
    backwards = Copying(order="copy", tokens=6, shortest=6, evaluation=50)
    assert backwards.evaluate(model, "test") == 0.0


def test_scores_by_hand() -> None:
    task = Copying(tokens=3, evaluation=2)
    (_, first), (_, second) = task.held("test")
    wrong = [token + 1 for token in second]
    scores = task.score([first, [*second[:2], *wrong[2:], 4]], "test")
    assert scores == {"exact_match": 0.5, "token_accuracy": 5 / 7}


def test_baselines() -> None:
    task = Copying(tokens=2, symbols=4, evaluation=4000)
    assert task.baselines()["chance"] == 1 / 16
    assert task.baselines()["copy_source"] == pytest.approx(1 / 4, abs=0.03)  # palindromes


def test_splits_and_seeds_differ() -> None:
    task = Copying()
    assert task.held("test") == task.held("test") != task.held("validation")
    assert drawn(task, 3) == drawn(task, 3) != drawn(task, 3, seed=1)


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"order": "shuffle"}, "copy, reverse, sort"),
        ({"tokens": 0}, "at least 1"),
        ({"shortest": 40}, "tokens=32"),
        ({"distractors": -1}, "at least 0"),
        ({"decoding": "diffusion"}, "autoregressive, mask_predict"),
        ({"contest": "encoder"}, "self, cross, both"),
        ({"contest": "cross", "cross": "performer"}, "leave cross out"),
        ({"iterations": []}, "iterations"),
        ({"iterations": [0]}, "at least 1"),
        ({"num_beams": 0}, "num_beams"),
    ],
)
def test_impossible_settings_say_what_would_do(fields, advice) -> None:
    with pytest.raises(ValueError, match=advice):
        Copying(**fields)
