"""What the recall tasks share: questions, their loss, the share right, seeds."""

import math

import pytest
import torch
from torch import Tensor, nn

from efficient_attn.tasks import Induction, Mqar, SelectiveCopying
from efficient_attn.tasks.recall import IGNORE, RecallTask

Row = list[int]


def mqar(task: Mqar, row: Row) -> dict[int, int]:
    """Place and answer of every question, read off a sample alone."""
    pairs = row[: 2 * task.pairs]
    bound = dict(zip(pairs[0::2], pairs[1::2], strict=True))
    return {
        place: bound[token]
        for place, token in enumerate(row)
        if place >= 2 * task.pairs and token in bound
    }


def induction(task: Induction, row: Row) -> dict[int, int]:
    first, last = [place for place, token in enumerate(row) if token == 0]
    return {last: row[first + 1]}


def selective_copying(task: SelectiveCopying, row: Row) -> dict[int, int]:
    said = [token for token in row if token > 1]
    markers = [place for place, token in enumerate(row) if token == 1]
    return dict(zip(markers, said, strict=True))


TASKS = [
    (Mqar(evaluation=300), mqar),
    (Mqar(length=24, pairs=8, vocab=18, evaluation=300), mqar),
    (Induction(evaluation=300), induction),
    (Induction(length=9, vocab=3, gap=0, evaluation=300), induction),
    (SelectiveCopying(evaluation=300), selective_copying),
    (SelectiveCopying(length=6, tokens=3, vocab=4, evaluation=300), selective_copying),
]
each = pytest.mark.parametrize(
    ("task", "answers"), TASKS, ids=[f"{task.name}-N{task.length}" for task, _ in TASKS]
)


class Reading(nn.Module):
    """Logits of a model that answers by `answers`, but wrongly in samples that begin odd."""

    def __init__(self, task: RecallTask, answers) -> None:
        super().__init__()
        self.task, self.answers = task, answers
        self.unused = nn.Parameter(torch.zeros(1))
        self.right = self.asked = 0

    def forward(self, tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, self.task.vocab)
        for index, row in enumerate(tokens.tolist()):
            for place, token in self.answers(self.task, row).items():
                self.asked += 1
                self.right += row[0] % 2 == 0
                logits[index, place, (token + row[0] % 2) % self.task.vocab] = 50.0
        return logits


@each
def test_labels_are_what_a_reader_would_answer(task, answers) -> None:
    inputs, labels = next(task.batches(0, 50))
    assert inputs.shape == labels.shape == (50, task.length)
    assert inputs.min() >= 0
    assert inputs.max() < task.vocab
    for row, wanted in zip(inputs.tolist(), labels.tolist(), strict=True):
        asked = {place: label for place, label in enumerate(wanted) if label != IGNORE}
        assert asked == answers(task, row)


@each
@pytest.mark.parametrize("split", ["validation", "test"])
def test_metric_is_the_share_of_right_answers(task, answers, split) -> None:
    model = Reading(task, answers)
    assert task.evaluate(model, split) == model.right / model.asked
    assert model.asked == (task.held(split)[1] != IGNORE).sum()


@each
def test_loss_is_the_cross_entropy_of_the_questions(task, answers) -> None:
    inputs, labels = next(task.batches(1, 5))
    torch.manual_seed(0)
    logits = torch.randn(5, task.length, task.vocab)
    nats = [
        math.log(sum(map(math.exp, logits[row, place].tolist()))) - logits[row, place, token].item()
        for row in range(5)
        for place, token in answers(task, inputs[row].tolist()).items()
    ]
    loss = task.loss(lambda tokens: logits, (inputs, labels))
    assert loss.item() == pytest.approx(sum(nats) / len(nats), rel=1e-5)


@each
def test_seeds_decide_and_nothing_global_moves(task, answers) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (next(task.batches(seed, 20)) for seed in (0, 0, 1))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(task.held("test")[0], task.held("test")[0])
    assert not torch.equal(task.held("test")[0], task.held("validation")[0])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="validation, test"):
        Induction().held("train")
