"""What `pick` answers with: choices with their evidence, rejections, and the ranking of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from efficient_attn.analysis.accuracy import Score
from efficient_attn.analysis.kept import Kept
from efficient_attn.analysis.ratios import Ratio
from efficient_attn.analysis.request import Request
from efficient_attn.bench.intervals import Interval

NINE_TO_ONE = 0.654
"""Half the width of the middle 80 % of a normal distribution over half that of the middle 95 %."""


@dataclass(frozen=True)
class AccuracyEvidence:
    """What a contestant reached on one task whose pattern is the request's.

    note: what to know before trusting it (other options, failed seeds); empty when nothing.
    """

    task: str
    length: int
    metric: str
    higher_is_better: bool
    baselines: dict[str, float]
    score: Score
    note: str = ""


@dataclass(frozen=True)
class Choice:
    """One contestant that honours the request.

    evidence: ``measured``, or ``interpolated`` or ``extrapolated`` by `fit`.
    time: ms of one pass; for predictions the ends are a range, with confidence 0.
    memory_bytes: peak above the inputs by the same kind of evidence, None when unknown.
    noisy: a measurement behind it missed its target precision.
    to_full, to_best: time over that of the contestant ``full``, and of the first choice; None for
        themselves and where there is none to compare with.
    tied: its ratio to the first choice does not exclude 1.
    pair_width: of a prediction, as in `predict`: two of them tell the range of their ratio.
    overrides: words for `efficient-attn sweep` that measure this choice alone.
    exact: it is softmax attention by definition at this size.
    kept: what it keeps of the capabilities that matter; None when the request names none.
    """

    contestant: str
    variant: str
    options: dict[str, Any]
    evidence: str
    time: Interval
    memory_bytes: float | None
    noisy: bool
    fit: str | None
    accuracy: tuple[AccuracyEvidence, ...]
    snippet: str
    to_full: Ratio | None = None
    to_best: Ratio | None = None
    tied: bool = False
    pair_width: float | None = None
    overrides: list[str] = field(default_factory=list)
    exact: bool = False
    kept: Kept | None = None

    @property
    def enough(self) -> bool:
        """Whether it keeps enough of what matters; True when the request names nothing."""
        return self.kept is None or self.kept.enough

    @property
    def measured(self) -> bool:
        return self.evidence == "measured"


@dataclass(frozen=True)
class Rejection:
    """A contestant that cannot be ranked, and why. options: those that were judged."""

    contestant: str
    variant: str
    reason: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranking:
    """The answer: choices in order, rejections, and the verdict in words.

    Choices that keep enough of what matters come first, then the others; each from fastest to
    slowest.

    notes: on what the evidence stands. command: measures the request for all the choices.
    """

    request: Request
    choices: tuple[Choice, ...]
    rejections: tuple[Rejection, ...]
    verdict: str
    notes: tuple[str, ...]
    command: str

    @property
    def best(self) -> Choice | None:
        """The first choice, None when nothing fits."""
        return self.choices[0] if self.choices else None

    @property
    def advised(self) -> Choice | None:
        """What the verdict advises: the first choice, or full, as rule 5 of `pick` says."""
        return advised(self.choices)

    def to_dict(self) -> dict[str, Any]:
        """Plain data fit for JSON; unknown interval ends are None."""
        return {name: _plain(value) for name, value in _items(self)}


def advised(choices: Sequence[Choice]) -> Choice | None:
    """Full rather than another that is not shown, or as a prediction not likely, to be faster."""
    if choices and choices[0].variant != "full":
        for choice in choices[1:]:
            if choice.tied and choice.contestant == "full" and not _likely(choices[0], choice):
                return choice
    return choices[0] if choices else None


def _likely(best: Choice, full: Choice) -> bool:
    """Whether predictions make full the slower one with odds of nine to one."""
    ratio = full.to_best
    if ratio is None or (best.measured and full.measured):
        return False
    return ratio.value * (ratio.low / ratio.value) ** NINE_TO_ONE > 1.0


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(item.name.rstrip("_"), getattr(value, item.name)) for item in fields(value)]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {name: _plain(inner) for name, inner in _items(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
