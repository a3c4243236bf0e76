"""Who comes first on a task, and who cannot be told from the first."""

from __future__ import annotations

from dataclasses import dataclass

from efficient_attn.analysis.accuracy import Score, TaskScores, loss_against
from efficient_attn.bench.intervals import Interval


@dataclass(frozen=True)
class Standing:
    """The variants of one task, by their differences over the seeds they share.

    first: has the best mean. ties: those whose difference to it has 0 within its interval, by name,
    with the number of seeds. untold: those whose difference has no interval, for want of seeds.
    level: those not shown to be better than the no-mixing baseline, with the number of seeds.
    """

    first: str
    ties: dict[str, int]
    untold: tuple[str, ...]
    level: dict[str, int]


def standing(task: TaskScores) -> Standing | None:
    """None where no variant has a score."""
    scored = {score.contestant: score for score in task.scores if score.value is not None}
    if not scored:
        return None
    sign = 1.0 if task.higher_is_better else -1.0
    first = max(scored, key=lambda name: sign * _mean(scored[name]))
    behind = {
        name: loss
        for name, score in scored.items()
        if name != first and (loss := _loss(task, scored[first], score)) is not None
    }
    level: dict[str, int] = {}
    for control in task.controls:
        for name, score in scored.items():
            loss = _loss(task, control, score)  # below 0 throughout: better than the baseline
            if loss is not None and loss.known and loss.high >= 0:
                level[name] = loss.n
    return Standing(
        first,
        {name: loss.n for name, loss in behind.items() if loss.known and loss.encloses(0.0)},
        tuple(name for name, loss in behind.items() if not loss.known),
        level,
    )


def _loss(task: TaskScores, other: Score, mine: Score) -> Interval | None:
    return loss_against(other.by_seed, mine.by_seed, higher_is_better=task.higher_is_better)


def _mean(score: Score) -> float:
    assert score.value is not None
    return score.value.value
