"""What one fault did: a row of the campaign's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.table import Table


@dataclass
class Outcome:
    """status, reason: of the record that the fault left, or the exit code and message of the sweep.

    others: what became of the contestant beside it. lost: records, files or processes that should
    be there or should not. problems: every expectation that was not met.
    """

    fault: str
    status: str = ""
    reason: str = ""
    others: str = ""
    lost: str = "nothing"
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def verdict(self) -> str:
        return "ok" if self.ok else "; ".join(self.problems)

    def expect(self, condition: bool, otherwise: str) -> None:
        if not condition:
            self.problems.append(otherwise)


def table(outcomes: Sequence[Outcome]) -> Table:
    shown = Table("fault", "reported", "reason", "others", "lost", "verdict")
    for one in outcomes:
        style = None if one.ok else "red"
        cells = (one.fault, one.status, short(one.reason), one.others, one.lost, one.verdict)
        shown.add_row(*cells, style=style)
    return shown


def short(text: str, width: int = 70) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
