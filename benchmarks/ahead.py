"""Ours beside the fastest correct public implementation, from the records of a peers sweep.

    efficient-attn sweep +experiment=peers results=results/peers-cpu
    python benchmarks/ahead.py results/peers-cpu

prints, for each variant, pass, pattern and length, our time and the times of those peers that
compute the same thing, with the paired ratio peer / ours (above 1: ours is faster) and its 95 %
interval, peak memory, share of the machine's peak and the distance to the floor, which is the
arithmetic at the best rate of a matrix product. Peers that failed a probe carry a dagger, with the
probe below; those wrong for the pattern do not count as the fastest correct one. Verdicts are kept
in the folder; peers without one are probed first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from efficient_attn.analysis.ratios import Ratio, ratio
from efficient_attn.analysis.report_text import crossover_table
from efficient_attn.analysis.roofline import roofline
from efficient_attn.analysis.select import (
    PASS_NAMES,
    PATTERN_NAMES,
    PEER,
    Setting,
    by_setting,
    entry_name,
    length_of,
    pass_of,
    passes_in,
    pattern_of,
    patterns_in,
    setting_names,
)
from efficient_attn.analysis.terminal import ABSENT, MIB, console, number
from efficient_attn.attention import variant_class
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.peers import conform


@dataclass(frozen=True)
class Row:
    """One peer beside ours in one cell; peer is None where no correct one was measured.

    ratio: time of the peer over ours. fastest: it is the fastest correct one of the cell.
    """

    setting: Setting
    pattern: str
    pass_: str
    length: int
    ours: Record
    peer: Record | None
    ratio: Ratio | None
    correct: bool
    fastest: bool

    def to_dict(self) -> dict[str, Any]:
        peer = None if self.peer is None else _facts(self.peer)
        return {
            "setting": asdict(self.setting),
            "pattern": self.pattern,
            "pass": self.pass_,
            "length": self.length,
            "ours": _facts(self.ours),
            "peer": peer,
            "ratio": None if self.ratio is None else {**self.ratio.to_dict()},
            "correct": self.correct,
            "fastest": self.fastest,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; 0 when the records hold at least one peer beside ours."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="folder of records")
    parser.add_argument("--every", action="store_true", help="every peer, not the fastest alone")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("--markdown", type=int, metavar="N", help="print rows of that length alone")
    chosen = parser.parse_args(arguments)
    records = Store(chosen.results).read()
    verdicts = conform.verdicts(chosen.results, records)
    rows = list(compare(records, verdicts))
    shown = [row for row in rows if chosen.every or row.fastest or row.peer is None]
    if chosen.json:
        print(json.dumps([row.to_dict() for row in shown], indent=1))
        return 0 if rows else 1
    if chosen.markdown:
        print("\n".join(markdown(shown, chosen.markdown)))
        return 0 if rows else 1
    out = console()
    for setting, name in setting_names(dict.fromkeys(row.setting for row in shown)).items():
        out.print(table([row for row in shown if row.setting == setting], name, verdicts))
    out.print(crossover_table(conform.marked(records, verdicts)))
    for line in conform.remarks(verdicts):
        out.print(Text(line), soft_wrap=True)
    return 0 if any(row.peer for row in rows) else 1


def compare(records: Iterable[Record], verdicts: Mapping[str, conform.Verdict]) -> Iterator[Row]:
    """Rows by setting, variant, pattern, pass and length; within a cell the fastest peer first."""
    peers = [one for one in records if one.contestant.startswith(PEER)]
    counterparts = {one.contestant: _counterpart(one) for one in peers}
    for setting, members in by_setting(records).items():
        for ours in dict.fromkeys(filter(None, counterparts.values())):
            for pattern in patterns_in(members):
                for pass_ in passes_in(members):
                    here = [
                        record
                        for record in members
                        if record.ok and (pattern_of(record), pass_of(record)) == (pattern, pass_)
                    ]
                    yield from _cells(here, setting, ours, counterparts, verdicts)


def _cells(
    records: Sequence[Record],
    setting: Setting,
    ours: str,
    counterparts: Mapping[str, str | None],
    verdicts: Mapping[str, conform.Verdict],
) -> Iterator[Row]:
    mine = sorted((one for one in records if entry_name(one.contestant) == ours), key=length_of)
    for own in mine:
        rivals = [
            record
            for record in records
            if length_of(record) == length_of(own)
            and counterparts.get(entry_name(record.contestant)) == ours
        ]
        place = (setting, pattern_of(own), pass_of(own), length_of(own), own)
        fastest = None
        for rival in sorted(rivals, key=lambda record: record.result["median_ms"]):
            correct = conform.counts(verdicts.get(entry_name(rival.contestant)), rival)
            fastest = fastest or (rival if correct else None)
            yield Row(*place, rival, ratio(rival, own), correct, rival is fastest)
        if fastest is None:
            yield Row(*place, None, None, False, False)


def _counterpart(record: Record) -> str | None:
    return getattr(variant_class(record.variant), "counterpart", None)


def table(rows: Sequence[Row], setting: str, verdicts: Mapping[str, conform.Verdict]) -> Table:
    made = Table(
        title=Text(f"ours beside the fastest correct public one; {setting}", style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("variant", "pattern", "pass"):
        made.add_column(heading)
    for heading in ("N", "ms", "MiB", "of peak", "× floor"):
        made.add_column(heading, justify="right")
    made.add_column("peer")
    for heading in ("ms", "MiB", "of peak", "peer / ours", "95 %"):
        made.add_column(heading, justify="right")
    for row in rows:
        names = row.ours.contestant, PATTERN_NAMES[row.pattern], PASS_NAMES[row.pass_]
        own = (*_numbers(row.ours), _times_floor(row.ours))
        made.add_row(*names, str(row.length), *own, *_rival(row, verdicts))
    return made


def _rival(row: Row, verdicts: Mapping[str, conform.Verdict]) -> list[str]:
    if row.peer is None or row.ratio is None:
        return ["none correct", *[ABSENT] * 5]
    verdict = verdicts.get(entry_name(row.peer.contestant))
    marked = row.peer.contestant + (
        f" {conform.DAGGER}" if verdict is None or verdict.fails else ""
    )
    if not row.correct:
        marked += " wrong"
    ends = f"{number(row.ratio.low)}–{number(row.ratio.high)}"
    apart = "" if row.ratio.paired else " (unpaired)"
    return [marked, *_numbers(row.peer), number(row.ratio.value), ends + apart]


def markdown(rows: Iterable[Row], length: int) -> list[str]:
    """Rows of a table of those lengths: what was measured, ours, the peer, and the ratio."""
    lines = []
    for row in rows:
        if row.length != length or row.peer is None or row.ratio is None:
            continue
        mine, theirs = row.ours.result, row.peer.result
        what = f"`{row.ours.contestant}`, {row.setting.scope}"
        if row.setting.dtype != "float32":
            what += f", {row.setting.dtype}"
        which = f"{PATTERN_NAMES[row.pattern]}, {PASS_NAMES[row.pass_]}"
        ends = f"{number(row.ratio.low)}–{number(row.ratio.high)}"
        peaks = (
            ABSENT if x is None else number(x / MIB)
            for x in (mine["peak_tensor_bytes"], theirs["peak_tensor_bytes"])
        )
        cells = [
            what,
            which,
            number(mine["median_ms"]),
            f"{row.peer.contestant.removeprefix(PEER)} {number(theirs['median_ms'])}",
            f"{number(row.ratio.value)} ({ends})",
            " / ".join(peaks),
            _times_floor(row.ours),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _numbers(record: Record) -> list[str]:
    """Median, peak memory and share of the machine's limit."""
    peak, reached = record.result["peak_tensor_bytes"], roofline(record)
    noisy = "~" if record.result["noisy"] else ""
    return [
        noisy + number(record.result["median_ms"]),
        ABSENT if peak is None else number(peak / MIB),
        ABSENT if reached is None else f"{reached.share:.0%}",
    ]


def _times_floor(record: Record) -> str:
    floor = floor_ms(record)
    return ABSENT if not floor else number(record.result["median_ms"] / floor)


def floor_ms(record: Record) -> float | None:
    """The record's arithmetic at the machine's best rate of matrix products."""
    peak = (record.environment.get("machine_peak") or {}).get("flops_per_s")
    flops = record.result["flops"]
    return flops / peak * 1e3 if flops and peak else None


def _facts(record: Record) -> dict[str, Any]:
    peak = record.result["peak_tensor_bytes"]
    floor = floor_ms(record)
    return {
        "contestant": record.contestant,
        "median_ms": record.result["median_ms"],
        "peak_mib": None if peak is None else peak / MIB,
        "floor_ms": floor,
        "options": record.options,
    }


if __name__ == "__main__":
    sys.exit(main())
