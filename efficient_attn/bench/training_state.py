"""How a training in another process goes on, as its reports tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass
class TrainingState:
    """One training at all its learning rates.

    steps: of each of `rates` learning rates. rate: number of the present one, from 0.
    losses: as reported at the present rate. validation: the last one taken at it.
    clock: seconds, as `time.monotonic`.
    """

    name: str
    steps: int
    rates: int
    clock: Callable[[], float] = time.monotonic
    rate: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)
    validation: float | None = None
    ended: bool = False
    _first: tuple[float, int] | None = None
    _last: tuple[float, int] | None = None

    def hear(self, rate: int, step: int, loss: float, validation: float | None) -> None:
        """Take in a report of `training.Report`."""
        if rate != self.rate:
            self.losses, self.validation = [], None
        self.rate, self.step = rate, step
        self.losses.append(loss)
        if validation is not None:
            self.validation = validation
        self._last = self.clock(), self.done
        self._first = self._first or self._last

    @property
    def running(self) -> bool:
        return self.step > 0 and not self.ended

    @property
    def done(self) -> int:
        """Steps made at all rates; a rate that diverged counts as if it had been run."""
        return self.rate * self.steps + self.step

    @property
    def share(self) -> float:
        return 1.0 if self.ended else self.done / (self.rates * self.steps)

    @property
    def steps_per_second(self) -> float | None:
        """Since the first report, validations included; None before there are two."""
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])

    @property
    def seconds_left(self) -> float | None:
        """At that pace, to the end of all rates."""
        pace = self.steps_per_second
        return (self.rates * self.steps - self.done) / pace if pace else None

    def words(self) -> list[str]:
        """Its cells in a line: name, rate, step, pace, time left, loss, last validation."""
        pace, left = self.steps_per_second, self.seconds_left
        return [
            self.name,
            f"rate {self.rate + 1}/{self.rates}" if self.rates > 1 else "",
            f"step {self.step}/{self.steps}",
            "" if pace is None else f"{pace:.3g} steps/s",
            "" if left is None else f"{duration(left)} left",
            f"loss {self.losses[-1]:.3g}" if self.losses else "",
            "" if self.validation is None else f"validation {self.validation:.3g}",
        ]


def duration(seconds: float) -> str:
    """Seconds below a minute and a half, then minutes."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in at most `width` blocks, each the mean of a stretch, from lowest to highest."""
    count = min(width, len(values))
    if not count:
        return ""
    ends = [len(values) * place // count for place in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
    low, high = min(means), max(means)
    reach = (high - low) or 1.0
    return "".join(_BLOCKS[round((mean - low) / reach * (len(_BLOCKS) - 1))] for mean in means)
