"""`efficient-attn fit`: the largest length or batch that fits a given memory, by measured runs."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import resources

from omegaconf import OmegaConf
from rich import box
from rich.table import Table

from efficient_attn.analysis.terminal import ABSENT, GIB, console
from efficient_attn.attention import list_variants, variant_class
from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.fit import FitResult, Probe, Vary, largest
from efficient_attn.bench.worker import Limits
from efficient_attn.bench.workload import Workload


def main(arguments: argparse.Namespace) -> int:
    """Print the answers; 0 when there is one for every variant asked about."""
    workload = Workload(
        batch=arguments.batch,
        heads=arguments.heads,
        head_dim=arguments.head_dim,
        length=arguments.length,
        pattern=arguments.pattern,
        dtype=arguments.dtype,
        device=arguments.device,
        pass_=arguments.pass_,
        scope=arguments.scope,
    )
    results = [
        largest(
            contestant,
            workload,
            int(arguments.memory_gb * GIB),
            vary=arguments.vary,
            multiple_of=arguments.multiple_of,
            most=arguments.max,
            resolution=arguments.resolution,
            limits=Limits(timeout_s=arguments.timeout_s),
            report=_progress,
        )
        for contestant in contestants(arguments.variants)
    ]
    if arguments.json:
        asked = {**workload.to_dict(), arguments.vary: None}
        found = [result.to_dict() for result in results]
        print(json.dumps({"workload": asked, "results": found}, indent=1))
    else:
        _print(results, workload, arguments.vary)
    return 0 if all(result.answer != "failed" for result in results) else 1


def contestants(names: str | None) -> list[Contestant]:
    """Those of these names, separated by commas: contestants of conf/attention, other registered
    variants, or module:Class. All that are shipped or registered when None."""
    shipped = _shipped()
    if names is None:
        others = [name for name in list_variants() if name not in shipped]
        return [*shipped.values(), *(Contestant(name, name, {}) for name in others)]
    chosen = []
    for name in filter(None, (name.strip() for name in names.split(","))):
        if name not in shipped:
            variant_class(name)  # an unknown one is told of before anything runs
        chosen.append(shipped.get(name) or Contestant(name, name, {}))
    if not chosen:
        raise ValueError("--variants names none; e.g. --variants full,performer")
    return chosen


def _shipped() -> dict[str, Contestant]:
    """The contestants that conf/attention describes, by name."""
    found = {}
    folder = resources.files("efficient_attn.conf").joinpath("attention")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            entry = OmegaConf.to_container(OmegaConf.create(file.read_text()))
            assert isinstance(entry, dict)
            options = {str(key): value for key, value in entry.items()}
            name = file.name.removesuffix(".yaml")
            found[name] = Contestant(name, options.pop("variant"), options)
    return found


def _progress(contestant: Contestant, probe: Probe) -> None:
    needed = "" if probe.needed_bytes is None else f"{_gib(probe.needed_bytes)} GiB, "
    line = f"{contestant.name}  {probe.size:,}: {needed}{probe.outcome} ({probe.seconds:.1f} s)"
    print(line, file=sys.stderr, flush=True)


def _print(results: list[FitResult], workload: Workload, vary: Vary) -> None:
    out = console()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("variant")
    for column in (f"largest {vary}", "GiB", "of the process"):
        table.add_column(column, justify="right")
    table.add_column(f"next {vary} tried, and why it is no answer")
    for result in results:
        table.add_row(*_row(result))
    w = workload
    sizes = f"batch {w.batch}" if vary == "length" else f"{w.length:,} tokens"
    out.print(
        f"{w.scope} {w.pass_}, {w.pattern}, {sizes}, {w.heads} heads of {w.head_dim}, {w.dtype} "
        f"on {w.device}: what fits {_gib(results[0].memory_bytes)} GiB of tensors (inputs, "
        "parameters and the peak above them)"
    )
    out.print(table)
    multiple = results[0].multiple_of
    out.print(
        "Every size shown was run and measured"
        + (f", multiples of {multiple} only" if multiple > 1 else "")
        + "; memory is taken to grow with the size. 'of the process' is its peak resident set in "
        "GiB, with torch itself."
    )
    uneven = [result.contestant.name for result in results if not result.grows]
    if uneven:
        out.print(
            f"Memory did not grow with every size for {', '.join(uneven)}: a larger size may fit."
        )


def _row(result: FitResult) -> tuple[str, ...]:
    name, best, beyond = result.contestant.name, result.largest, result.beyond
    if best is None:
        return name, result.answer, ABSENT, ABSENT, result.reason or ""
    size = f"{best.size:,}" if result.answer == "found" else f"at least {best.size:,}"
    resident = ABSENT if best.rss_bytes is None else _gib(best.rss_bytes)
    why = [] if beyond is None else [f"{beyond.size:,}: {_why(beyond)}"]
    if result.reason and result.answer != "found":
        why.append(result.reason)
    return name, size, _gib(best.needed_bytes), resident, "; ".join(why)


def _why(probe: Probe) -> str:
    if probe.needed_bytes is not None:
        return f"{_gib(probe.needed_bytes)} GiB"
    return f"{probe.outcome}, {probe.reason}"


def _gib(size: int | None) -> str:
    return ABSENT if size is None else f"{size / GIB:#.4g}"
