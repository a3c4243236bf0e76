"""Accuracy as the terminal shows it: scores beside baselines, what training took, who ties."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from efficient_attn.analysis.accuracy import Score, TaskScores
from efficient_attn.analysis.select import NO_MIXING, contestant_order, entry_name
from efficient_attn.analysis.standing import standing
from efficient_attn.analysis.terminal import ABSENT, MIB, new_table, number, number_column
from efficient_attn.bench.intervals import Interval

EDGE = "*"
TIE = "tie"


def accuracy_parts(tasks: Sequence[TaskScores]) -> list[RenderableType]:
    """The scores, what training took, what to read from both, and every task's details."""
    parts: list[RenderableType] = [accuracy_table(tasks), training_table(tasks)]
    parts += [Text(remark) for remark in remarks(tasks)]
    return parts + [details_table(task) for task in tasks if any(s.details for s in task.scores)]


def accuracy_table(tasks: Sequence[TaskScores]) -> Table:
    """Contestants × tasks, then the baselines of each task, in parentheses."""
    table = new_table("accuracy: mean ± half of the 95 % interval over seeds")
    for task in tasks:
        arrow = "↑" if task.higher_is_better else "↓"
        number_column(table, f"{task.label}\n{task.metric} {arrow}")
    for name in _names([score for task in tasks for score in task.scores]):
        table.add_row(Text(name), *(Text(_score_cell(task.of(name))) for task in tasks))
    table.add_section()
    for name in _names([score for task in tasks for score in task.controls]):
        cells = [_score_cell(task.of(name)) for task in tasks]
        table.add_row(Text(f"({name})", style="dim"), *(Text(cell, style="dim") for cell in cells))
    for name in sorted({name for task in tasks for name in task.baselines}):
        cells = [_plain(task.baselines.get(name)) for task in tasks]
        table.add_row(Text(f"({name})", style="dim"), *(Text(cell, style="dim") for cell in cells))
    return table


def training_table(tasks: Sequence[TaskScores]) -> Table:
    """Tasks × contestants: the difference to full, and what training took, median over seeds."""
    table = new_table("accuracy: training of the picked rate, median over seeds")
    table.add_column("task", overflow="fold")
    for title in (
        "worse than full by (95 %)",
        "learning rate",
        "parameters",
        "to full",
        "training, s",
        "update, MiB",
        "process, MiB",
    ):
        number_column(table, title)
    for task in tasks:
        full = task.of("full")
        for score in (*task.scores, *task.controls):
            if score.value is not None:
                name = f"({score.contestant})" if score in task.controls else score.contestant
                table.add_row(
                    Text(name),
                    Text(task.label),
                    _price_cell(score.price),
                    _rates_cell(score),
                    ABSENT if score.parameters is None else _count(score.parameters),
                    _parameters_to(full, score),
                    ABSENT if score.train_seconds is None else number(score.train_seconds),
                    _mebibytes(score.peak_tensor_bytes),
                    _mebibytes(score.peak_rss_bytes),
                )
        table.add_section()
    table.caption = Text(
        "update: peak of tensor bytes of one update above model, optimiser and batch; "
        "process: peak resident memory of the training above its start; "
        f"{EDGE}: an end of the rates tried was picked, and a better one may lie beyond"
    )
    return table


def details_table(task: TaskScores) -> Table:
    """Contestants and the ways their models were used × further figures of one task."""
    table = new_table(f"{task.label}: test split in detail, mean over seeds")
    table.add_column("decoding")
    uses = [
        (score.contestant, use, figures)
        for score in (*task.scores, *task.controls)
        for use, figures in score.details.items()
    ]
    columns = list(dict.fromkeys(name for _, _, figures in uses for name in figures))
    for name in columns:
        number_column(table, name)
    for contestant, use, figures in uses:
        table.add_row(Text(contestant), use, *(_plain(figures.get(name)) for name in columns))
    return table


def remarks(tasks: Sequence[TaskScores]) -> list[str]:
    """What is missing for a comparison, ties, and who does no better than without attention."""
    said = []
    without_full = [task.label for task in tasks if task.of("full") is None]
    if without_full:
        said.append(
            f"No full to compare with on {_listed(without_full)}: add attention=[full,...]."
        )
    bare = [task.label for task in tasks if not task.controls]
    if bare:
        said.append(
            f"No model without attention beside the others on {_listed(bare)}: "
            f"add attention=[{NO_MIXING},...]."
        )
    for task in tasks:
        said += _standing_words(task)
    return said


def _standing_words(task: TaskScores) -> list[str]:
    found = standing(task)
    if found is None:
        return []
    said = []
    ties = [f"{name} ({_seeds(n)})" for name, n in found.ties.items()]
    if ties:
        said.append(
            f"{task.label}: tied with {found.first}, the best mean, as the 95 % interval of the "
            f"difference includes 0: {', '.join(ties)}."
        )
    if found.untold:
        said.append(
            f"{task.label}: one seed: no interval tells {_listed(found.untold)} from {found.first}."
        )
    level = [f"{name} ({_seeds(n)})" for name, n in found.level.items()]
    if level:
        said.append(f"{task.label}: not shown to be better than {NO_MIXING}: {', '.join(level)}.")
    return said


def _names(scores: Sequence[Score]) -> list[str]:
    """Every contestant once, in the order in which tables list them."""
    return sorted({score.contestant for score in scores}, key=contestant_order)


def _score_cell(score: Score | None) -> str:
    if score is None:
        return ABSENT
    if score.value is None:
        return score.status
    reach = score.value.high - score.value.value
    cell = f"{score.value.value:.3f} ± {reach:.3f}" if score.value.known else ""
    cell = cell or f"{score.value.value:.3f} (1 seed)"
    total = len(score.by_seed) + sum(score.failures.values())
    failed = [f"{count} of {total} {status}" for status, count in sorted(score.failures.items())]
    return f"{cell} ({', '.join(failed)})" if failed else cell


def _price_cell(price: Interval | None) -> str:
    if price is None:
        return ABSENT
    if not price.known:
        return f"{price.value:.3f} (?)"
    cell = f"{price.value:.3f} ({price.low:.3f} to {price.high:.3f})"
    return f"{cell} {TIE}" if price.encloses(0.0) else cell


def _rates_cell(score: Score) -> str:
    """The picked rates from lowest to highest, and how many seeds picked an end of the grid."""
    picked = sorted(set(score.learning_rates.values()))
    cell = "–".join(f"{rate:g}" for rate in dict.fromkeys((picked[0], picked[-1])))
    if not score.at_edge:
        return cell
    count, seeds = score.at_edge, len(score.learning_rates)
    return f"{cell} {EDGE}" if count == seeds else f"{cell} {EDGE}{count} of {seeds}"


def _parameters_to(full: Score | None, score: Score) -> str:
    if full is None or full.parameters is None or score.parameters is None:
        return ABSENT
    if entry_name(score.contestant) == "full":
        return ABSENT
    more = score.parameters - full.parameters
    if not more:
        return "same"
    sign = "+" if more > 0 else "−"
    return f"{sign}{_count(abs(more))} ({sign}{_percent(abs(more) / full.parameters)})"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def _count(parameters: int) -> str:
    if parameters < 1000:
        return str(parameters)
    if parameters < 999_950:
        return f"{parameters / 1000:.1f} k"
    return f"{parameters / 1e6:.2f} M"


def _mebibytes(size: float | None) -> str:
    return "unknown" if size is None else number(size / MIB)


def _plain(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"


def _seeds(n: int) -> str:
    return f"{n} seed" + ("" if n == 1 else "s")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
