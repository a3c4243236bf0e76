"""Which options of a contestant are to be judged for a request: measured sets, and predicted ones.

Options in effect that were measured at the requested size are candidates all. Beyond them

    without a knob      its usual options, where they were not measured there
    no needs stated     the usual value of the knob; where a limit excludes it, the largest power of
                        two inside the measured range that fits, and nothing while a measured one
                        fits
    needs stated        of the usual value and the powers of two inside the measured range the
                        fastest that keeps enough, where no measured one that does is as fast; the
                        rule above where none keeps enough

The usual value is that of most records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from efficient_attn.analysis.choice import Choice, Rejection
from efficient_attn.analysis.knobs import KNOBS, grid_values, with_knob
from efficient_attn.analysis.matching import is_about
from efficient_attn.analysis.request import Request
from efficient_attn.analysis.rivals import Entrant
from efficient_attn.bench.record import Record

Options = dict[str, Any]
Judge = Callable[[Options], Choice | Rejection]


def judged(entrant: Entrant, request: Request, judge: Judge) -> list[Choice | Rejection]:
    """Verdicts on all candidates of an entrant. judge: tells one set of options."""
    found = [judge(options) for options in measured_options(entrant, request)]
    usual = entrant.usual
    if usual is None:
        return found or [judge(entrant.records[0].options)]
    known = {str(_own(entrant, one.options)) for one in found}

    def fresh(values: list[Options]) -> Iterator[Options]:
        return (options for options in values if str(_own(entrant, options)) not in known)

    others = [with_knob(entrant.variant, usual, value) for value in knob_grid(entrant)]
    if request.needs:
        verdicts = [judge(options) for options in fresh([usual, *others])]
        able = [one for one in verdicts if isinstance(one, Choice) and one.enough]
        rivals = [one for one in found if isinstance(one, Choice) and one.enough]
        fastest = min([*rivals, *able], key=lambda one: one.time.value, default=None)
        if fastest is not None:
            return [*found, fastest] if fastest in able else found
    if any(isinstance(one, Choice) for one in found):
        return found
    first = [judge(options) for options in fresh([usual])]
    if any(isinstance(one, Choice) for one in first):
        return [*found, *first]
    for options in fresh(others[::-1]):
        one = judge(options)
        if isinstance(one, Choice):
            return [*found, *first, one]
    return [*found, *first]


def measured_options(entrant: Entrant, request: Request) -> list[Options]:
    """Sets of options with a record, of any status, at every requested length; newest first."""
    return [records[0].options for records in _at_all_lengths(entrant, request)]


def measured_records(entrant: Entrant, request: Request, options: Options) -> list[Record]:
    """The newest record of these options at each requested length; empty when one is missing."""
    own = str(_own(entrant, options))
    for records in _at_all_lengths(entrant, request):
        if str(_own(entrant, records[0].options)) == own:
            return records
    return []


def runs_of(entrant: Entrant, request: Request, options: Options) -> list[Record]:
    """Every ok record of these options at the requested size, the newest first, of whatever cell;
    none for a distribution of lengths."""
    if request.lengths:
        return []
    own = str(_own(entrant, options))
    found = [
        record
        for record in entrant.done
        if is_about(record, request.workload) and str(_own(entrant, record.options)) == own
    ]
    return sorted(found, key=lambda record: record.created, reverse=True)


def _at_all_lengths(entrant: Entrant, request: Request) -> list[list[Record]]:
    sets: dict[str, dict[int, Record]] = {}
    lengths = [length for length, _ in request.shares]
    for length in lengths:
        work = request.at_length(length)
        for record in sorted(entrant.records, key=lambda one: one.created):
            if is_about(record, work):
                sets.setdefault(str(_own(entrant, record.options)), {})[length] = record
    return [
        [records[length] for length in lengths]
        for records in sets.values()
        if len(records) == len(lengths)
    ]


def _own(entrant: Entrant, options: Options) -> Any:
    """What tells sets of options of one entrant apart: the knob."""
    return options.get(KNOBS.get(entrant.variant, ""))


def knob_grid(entrant: Entrant) -> list[int]:
    """Powers of two inside the measured range of the knob, ascending; none for tokens on a grid."""
    name = entrant.knob
    if name is None or any(record.options.get("grid") for record in entrant.done):
        return []
    values = [record.options[name] for record in entrant.done]
    sizes = [max(one) if isinstance(one, (list, tuple)) else one for one in values]
    return grid_values(min(sizes), max(sizes))
