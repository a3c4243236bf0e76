"""Is the pick right? Workloads drawn at random, picked from stored records, then measured whole.

    python benchmarks/regret.py                                   # 40 workloads, some 20 minutes
    python benchmarks/regret.py --from results/reference-cpu --into results/regret --json

Each workload (length 200 to 12000, batch 1 to 8, heads 4 to 16, head_dim 32 to 128, a pattern and a
pass) is answered by `pick` from the stored records alone. Then every contestant that it ranked is
measured, interleaved in one cell. Regret is the time of the advised contestant over that of the
fastest, both of that cell; beside it stand the error of each predicted time and whether its range
held the measurement. Workloads whose predicted full attention exceeds the bound on time or memory
are left out, and counted. Measurements are stored: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from efficient_attn.analysis.ask import read_records
from efficient_attn.analysis.overrides import sweep_words
from efficient_attn.analysis.pick import Choice, Ranking, Request, pick
from efficient_attn.analysis.ratios import ratio, time_interval
from efficient_attn.bench.record import Record
from efficient_attn.bench.workload import PATTERNS

HEADS = (4, 6, 8, 12, 16)
HEAD_DIMS = (32, 48, 64, 80, 96, 128)
PASSES = ("forward", "forward_backward")


@dataclass(frozen=True)
class Outcome:
    """One workload. regret: time of the advised over the fastest; place: of the advised by time.

    errors: log of predicted over measured time by contestant; covered: whether the range held it.
    """

    workload: str
    advised: str
    best: str
    regret: float
    place: int
    errors: dict[str, float]
    covered: dict[str, bool]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 when every workload was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="results", help="records that pick answers from")
    parser.add_argument("--into", default="results/regret", help="folder of what is measured")
    parser.add_argument("--workloads", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="default: as the records were taken")
    parser.add_argument("--longest", type=int, default=12000, help="length (default: 12000)")
    parser.add_argument(
        "--most-ms", type=float, default=3000.0, help="of full attention, predicted"
    )
    parser.add_argument("--most-gb", type=float, default=6.0, help="of full, predicted")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    chosen = parser.parse_args(arguments)
    out = Console(width=150)
    records = [one for one in read_records(chosen.results) if one.contestant != "full_naive"]
    kept, left_out = _workloads(records, chosen)
    outcomes, lost = [], []
    for number, ranking in enumerate(kept, start=1):
        print(f"{number}/{len(kept)}  {ranking.request}", file=sys.stderr)
        outcome = _race(ranking, Path(chosen.into))
        if outcome is None:
            lost.append(str(ranking.request))
        else:
            outcomes.append(outcome)
    summary = _summary(outcomes)
    if chosen.json:
        listed = [asdict(one) for one in outcomes]
        answer = {"workloads": listed, "summary": summary, "left_out": left_out, "lost": lost}
        print(json.dumps(answer, indent=1))
    else:
        out.print(_table(outcomes))
        for name, value in summary.items():
            out.print(f"{name}: {value:.3g}", highlight=False)
        out.print(f"left out as too large: {left_out}", highlight=False)
        for one in lost:
            out.print(f"not measured: {one}", highlight=False)
    return 1 if lost else 0


def _workloads(records: list[Record], chosen: argparse.Namespace) -> tuple[list[Ranking], int]:
    """Rankings of the first workloads drawn that keep to the bounds, and how many did not."""
    rng = np.random.default_rng(chosen.seed)
    kept: list[Ranking] = []
    left_out = 0
    while len(kept) < chosen.workloads:
        request = _draw(rng, chosen)
        ranking = pick(records, request)
        full = next((one for one in ranking.choices if one.contestant == "full"), None)
        if full is None or full.time.value > chosen.most_ms or _too_large(full, chosen.most_gb):
            left_out += 1
            if left_out > 50 * chosen.workloads:
                raise SystemExit("hardly any workload keeps to the bounds: raise --most-ms")
        else:
            kept.append(ranking)
    return kept, left_out


def _draw(rng: np.random.Generator, chosen: argparse.Namespace) -> Request:
    length = int(math.exp(rng.uniform(math.log(200), math.log(chosen.longest))))
    return Request(
        length,
        pattern=PATTERNS[rng.integers(len(PATTERNS))],
        batch=int(rng.integers(1, 9)),
        heads=HEADS[rng.integers(len(HEADS))],
        head_dim=HEAD_DIMS[rng.integers(len(HEAD_DIMS))],
        pass_=PASSES[rng.integers(len(PASSES))],  # type: ignore[arg-type]
        threads=chosen.threads,
    )


def _too_large(choice: Choice, most_gb: float) -> bool:
    return choice.memory_bytes is not None and choice.memory_bytes > most_gb * 2**30


def _race(ranking: Ranking, into: Path) -> Outcome | None:
    """The outcome of a workload, None when its contestants could not all be measured."""
    from efficient_attn.bench.progress import Mute
    from efficient_attn.bench.sweep import launch, make_plan

    choices = ranking.choices
    words = sweep_words(
        [(one.contestant, one.variant, one.options) for one in choices], ranking.request
    )
    settings = ("measure.target=0.03", "measure.budget_s=4", "measure.warm_up_s=0.1")
    plan = make_plan([*words, f"results={into}", *settings])
    if plan.missing():
        launch(plan, Mute())
    found = [record for key in plan.keys if (record := plan.store.get(key)) is not None]
    times = {record.contestant: record for record in found if record.ok}
    if len(times) < len(choices) or ranking.advised is None:
        return None
    return _outcome(ranking, ranking.advised, times)


def _outcome(ranking: Ranking, advised: Choice, times: dict[str, Record]) -> Outcome:
    to_full = {name: ratio(record, times["full"]).value for name, record in times.items()}
    order = sorted(to_full, key=lambda name: to_full[name])
    known = {one.contestant: one for one in ranking.choices if not one.measured}
    truth = {name: time_interval(times[name]).value for name in known}
    return Outcome(
        workload=str(ranking.request),
        advised=advised.contestant,
        best=order[0],
        regret=ratio(times[advised.contestant], times[order[0]]).value,
        place=order.index(advised.contestant) + 1,
        errors={name: math.log(one.time.value / truth[name]) for name, one in known.items()},
        covered={name: one.time.encloses(truth[name]) for name, one in known.items()},
    )


def _summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    if not outcomes:
        return {}
    regrets = [one.regret for one in outcomes]
    errors = [abs(error) for one in outcomes for error in one.errors.values()]
    covered = [inside for one in outcomes for inside in one.covered.values()]
    return {
        "workloads": len(outcomes),
        "median regret": float(np.median(regrets)),
        "95th percentile of regret": float(np.quantile(regrets, 0.95)),
        "share of picks that were fastest": float(np.mean([one.place == 1 for one in outcomes])),
        "median error of predicted times": math.expm1(float(np.median(errors))),
        "95th percentile of their errors": math.expm1(float(np.quantile(errors, 0.95))),
        "coverage of their ranges": float(np.mean(covered)),
    }


def _table(outcomes: Sequence[Outcome]) -> Table:
    made = Table(box=None, pad_edge=False)
    made.add_column("workload", overflow="fold")
    for heading in ("advised", "fastest"):
        made.add_column(heading, no_wrap=True)
    for heading in ("regret", "largest error", "in range"):
        made.add_column(heading, justify="right", no_wrap=True)
    for one in sorted(outcomes, key=lambda one: -one.regret):
        worst = max((abs(error) for error in one.errors.values()), default=0.0)
        made.add_row(
            one.workload,
            one.advised,
            one.best,
            f"{one.regret:.2f}",
            f"{math.expm1(worst):.0%}",
            f"{sum(one.covered.values())}/{len(one.covered)}",
        )
    return made


if __name__ == "__main__":
    sys.exit(main())
