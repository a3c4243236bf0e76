"""`efficient_attn.pick`: from a described workload to a ranking, by stored or fresh records."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efficient_attn.analysis.lengths import joined, read_lengths
from efficient_attn.analysis.overrides import sweep_words
from efficient_attn.analysis.pick import NothingMeasured, Ranking, Request
from efficient_attn.analysis.pick import pick as rank
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store

if TYPE_CHECKING:
    from rich.console import Console

REFERENCE = "results/reference-cpu"
MEASURED = "results/pick"
SHORT_LIST = 3
_VARIANTS = ("full", "local_window", "linformer", "performer", "shifted_window")


def pick(
    length: int | None = None,
    *,
    lengths: str | Path | Sequence[int] | None = None,
    results: str | Path | None = None,
    measure: bool = False,
    into: str | Path = MEASURED,
    **request: Any,
) -> Ranking:
    """Rank the attention variants for a workload; ``print(ranking.verdict)`` says it in words.

    length: queries N; or `lengths`: a file (see `lengths.read_lengths`) or a sequence of lengths
    that occur. results: folder of records, by default the reference results of the checkout.
    measure: time the first of the ranking, and full, on this machine now, store that in `into`, and
    rank by it. Every other keyword is a field of `Request`: pattern, batch, heads, head_dim, pass_,
    dtype, padding, memory_gb, time_ms, need_weights, exact_only, needs, ...

    ValueError for what cannot be asked, NothingMeasured (a LookupError) when the results are not
    about it.
    """
    asked = make_request(length, lengths, **request)
    records = read_records(results)
    return measured(records, asked, into) if measure else rank(records, asked)


def make_request(
    length: int | None, lengths: str | Path | Sequence[int] | None = None, **request: Any
) -> Request:
    """The request of one length, or of a file or sequence of them."""
    if (length is None) == (lengths is None):
        raise ValueError("give either a length or lengths (a file of those that occur)")
    if lengths is None:
        return Request(length, **request)  # type: ignore[arg-type]
    shares = read_lengths(lengths) if isinstance(lengths, (str, Path)) else joined(Counter(lengths))
    return Request(max(n for n, _ in shares), lengths=shares, **request)


def read_records(results: str | Path | None) -> list[Record]:
    """Records of a folder, warnings on stderr; ValueError when there are none."""
    folder = _reference() if results is None else Path(results)
    store = Store(folder)
    records = store.read()
    for warning in store.warnings:
        print(warning, file=sys.stderr)
    if not records:
        hint = "measure some first, e.g. efficient-attn sweep +experiment=demo"
        if results is None:
            hint = (
                "the reference results lie in the project's repository, not in the installed "
                f"package. Name a folder of records (--from), or {hint}"
            )
        raise ValueError(f"no records in {folder}; {hint}")
    return records


def _reference() -> Path:
    """Beside the working directory, else in the checkout that this package runs from."""
    here = Path(REFERENCE)
    checkout = Path(__file__).parents[2] / REFERENCE
    return checkout if not here.is_dir() and checkout.is_dir() else here


def measured(records: Iterable[Record], request: Request, into: str | Path) -> Ranking:
    """The ranking by measurements that are taken now, accuracy as the records tell it.

    The first `SHORT_LIST` of the ranking by stored records and full are measured, or the five
    variants where the records do not help. Progress goes to stderr.
    """
    from rich.console import Console

    known = list(records)
    request = replace(request, machine=None)
    try:
        choices = rank(known, request).choices
    except NothingMeasured:
        choices = ()
    listed = [
        choice
        for place, choice in enumerate(choices)
        if place < SHORT_LIST or choice.contestant == "full"
    ]
    candidates = [(one.contestant, one.variant, one.options) for one in listed]
    words = sweep_words(candidates or [(name, name, {}) for name in _VARIANTS], request)
    fresh = _sweep(words, Path(into), Console(stderr=True))
    accuracy = [record for record in known if record.measure == "accuracy"]
    ranking = rank([*fresh, *accuracy], request)
    return replace(ranking, notes=(*ranking.notes, f"measured now; records: {into}"))


def _sweep(words: Sequence[str], into: Path, console: Console) -> list[Record]:
    """Records of the plan of these words, measured where the folder lacks them."""
    from efficient_attn.bench.cell import start_server
    from efficient_attn.bench.progress import SweepProgress
    from efficient_attn.bench.sweep import launch, make_plan

    plan = make_plan([*words, f"results={into}", "measure.budget_s=5"])
    store = plan.store
    missing = plan.missing()
    if missing:
        start_server()
        with SweepProgress(missing, console) as progress:
            for problem in launch(plan, progress):
                console.print(f"Lost: {problem}", markup=False)
    return [record for key in plan.keys if (record := store.get(key)) is not None]
