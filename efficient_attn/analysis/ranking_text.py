"""A ranking for the terminal: verdict, table of choices, rejections, snippet, command."""

from __future__ import annotations

from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from efficient_attn.analysis.choice import AccuracyEvidence, Choice, Ranking
from efficient_attn.analysis.overrides import quoted
from efficient_attn.analysis.ratios import Ratio
from efficient_attn.analysis.terminal import ABSENT, GIB, MIB, console, number
from efficient_attn.bench.intervals import Interval


def print_ranking(ranking: Ranking, file: TextIO | None = None) -> None:
    """Print a ranking. Predicted values carry ``≈`` and their kind of evidence, measured none."""
    out = console(file)
    _say(out, str(ranking.request))
    _say(out, ranking.verdict, style="bold")
    if ranking.choices:
        out.print(ranking_table(ranking))
    for rejection in ranking.rejections:
        _say(out, f"out: {rejection.contestant}: {rejection.reason}")
    for note in ranking.notes:
        _say(out, f"note: {note}")
    if ranking.advised is not None:
        _say(out, f"\nTo use {ranking.advised.contestant}:\n")
        _say(out, ranking.advised.snippet)
        _say(out, "The same as overrides of a sweep:")
        _say(out, f"  {' '.join(map(quoted, ranking.advised.overrides))}\n")
    _say(out, f"To measure this workload:\n  {ranking.command}")


def ranking_table(ranking: Ranking) -> Table:
    """Choices × evidence, time, ratio to full, memory, what it keeps, and scores on every task."""
    tasks = list(
        dict.fromkeys(evidence.task for choice in ranking.choices for evidence in choice.accuracy)
    )
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", justify="right")
    for title in ("contestant", "evidence"):
        table.add_column(title, overflow="fold")
    for title in ("ms (95 %)", "× full (95 %)", "peak memory"):
        table.add_column(title, justify="right", overflow="fold")
    needs = list(ranking.request.needs)
    if needs:
        table.add_column("keeps (95 %)", justify="right", overflow="fold")
    for need in needs:
        table.add_column(Text(f"of {need}"), justify="right", overflow="fold")
    for task in tasks:
        table.add_column(Text(task), justify="right", overflow="fold")
    for place, choice in enumerate(ranking.choices, start=1):
        cells = [
            "=1" if choice.tied else str(place),
            choice.contestant,
            choice.evidence + (", noisy" if choice.noisy else ""),
            _time(choice),
            _ratio(choice),
            _memory(choice),
            *_kept(choice),
            *(_accuracy(choice, task) for task in tasks),
        ]
        table.add_row(*map(Text, cells))
    if any(choice.tied for choice in ranking.choices):
        table.caption = Text("=1: tied with the first, the ratio does not exclude 1")
    return table


def _time(choice: Choice) -> str:
    return _mark(choice) + _with_ends(choice.time)


def _ratio(choice: Choice) -> str:
    if choice.contestant == "full":
        return "1"
    if choice.to_full is None:
        return ABSENT
    unpaired = choice.measured and not choice.to_full.paired
    return _mark(choice) + _with_ends(choice.to_full) + (" unpaired" if unpaired else "")


def _memory(choice: Choice) -> str:
    if choice.memory_bytes is None:
        return "unknown"
    if choice.memory_bytes >= GIB:
        return f"{_mark(choice)}{number(choice.memory_bytes / GIB)} GiB"
    return f"{_mark(choice)}{number(choice.memory_bytes / MIB)} MiB"


def _kept(choice: Choice) -> list[str]:
    """The weighted share and that of each capability; none where nothing was asked."""
    if choice.kept is None:
        return []
    shares = [choice.kept.share, *(one.share for one in choice.kept.by_capability)]
    return [
        "not measured"
        if share is None
        else f"{share.value:.0%}"
        if share.low == share.high
        else f"{share.value:.0%} ({share.low:.0%}–{share.high:.0%})"
        for share in shares
    ]


def _accuracy(choice: Choice, task: str) -> str:
    cells = [_score(evidence) for evidence in choice.accuracy if evidence.task == task]
    return "; ".join(cells) or ABSENT


def _score(evidence: AccuracyEvidence) -> str:
    value = evidence.score.value
    if value is None:
        return evidence.score.status
    reach = f" ± {value.high - value.value:.3f}" if value.known else ""
    return f"{value.value:.3f}{reach}" + (f" ({evidence.note})" if evidence.note else "")


def _with_ends(interval: Interval | Ratio) -> str:
    if not interval.known:
        return f"{number(interval.value)} (?)"
    return f"{number(interval.value)} ({number(interval.low)}–{number(interval.high)})"


def _mark(choice: Choice) -> str:
    return "" if choice.measured else "≈"


def _say(out: Console, text: str, style: str = "") -> None:
    """Text as it stands: no markup, and code lines are never folded."""
    out.print(Text(text, style=style), soft_wrap=True)
