"""Which peers compute what they claim: probes of each, kept beside the records of a sweep.

    python -m efficient_attn.peers.conform results/peers-cpu
    python -m efficient_attn.peers.conform --all --markdown

puts the questions of `efficient-attn check` to every peer in those records that takes split heads,
and their like to every whole module, compares outputs with the dense formula in float64, and
writes ``conformance.json`` into the folder. A peer counts as correct for a pattern when nothing
that touches the pattern's numbers fails. --all asks every installed peer instead, whether measured
or not, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from efficient_attn.analysis.select import PEER
from efficient_attn.attention import (
    AttentionMask,
    UnsupportedAttention,
    make_core,
    resolve_options,
    variant_class,
)
from efficient_attn.attention.conformance import Check, observe
from efficient_attn.attention.conformance.finding import judge
from efficient_attn.attention.conformance.subject import LOUD, distance
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store

from .base import merge, split

FILE = "conformance.json"
DAGGER = "†"
HEADS, WIDTH = 2, 32
FORMULA_LENGTH = 256
PROBE_LENGTH = 1024
"""Whole blocks, buckets, landmarks and windows for every module, BigBird's thirteen blocks too."""

DISQUALIFYING = ("batch independence", "determinism", "formula")
"""Failures that spoil every pattern; a failing pattern spoils itself alone."""

PATTERNS = ("noncausal_self", "causal_self")


@dataclass(frozen=True)
class Verdict:
    """What became of the probes of one peer.

    version: of its package. fails: probe -> evidence, ``formula (pattern)`` among them. errors:
    pattern -> largest difference from the dense formula in float64 at N=256, in parts of the
    largest output; absent without a formula. incorrect: patterns for which it does not count as a
    correct implementation. absent: why nothing was probed. differs: what the adapter says of it.
    holds: the other probes.
    """

    version: str | None
    fails: dict[str, str]
    errors: dict[str, float]
    incorrect: list[str]
    absent: str | None = None
    differs: str = ""
    holds: list[str] = field(default_factory=list)


def conformance(variant: str) -> Verdict:
    """Probe one peer, by the path of its class, with its default options."""
    cls: Any = variant_class(variant)
    options = resolve_options(variant, {}, max_len=FORMULA_LENGTH)
    patterns = [name for name in PATTERNS if getattr(cls.capabilities, name)]
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            errors = _formula_errors(variant, patterns)
            few = cls.costly_lengths or hasattr(cls, "whole_module")
            findings = (_at_one_length if few else _of_core)(variant, patterns)
    except UnsupportedAttention as refused:
        return Verdict(None, {}, {}, list(PATTERNS), str(refused), cls.differs)
    except Exception as raised:  # a stranger's code may raise what it likes
        absent = f"{cls.name} raises {type(raised).__name__}: {raised}"
        return Verdict(None, {}, {}, list(PATTERNS), absent, cls.differs)
    for pattern, error in errors.items():
        off = f"off by {error:.2g} from the dense formula at N={FORMULA_LENGTH}"
        findings[f"formula ({pattern})"] = None if error <= cls.tolerance else off
    fails = {name: evidence for name, evidence in findings.items() if evidence is not None}
    spoilt = any(name in DISQUALIFYING for name in fails)
    incorrect = [
        pattern
        for pattern in patterns
        if spoilt or pattern in fails or f"formula ({pattern})" in fails
    ]
    holds = [name for name in findings if name not in fails]
    return Verdict(options["version"], fails, errors, incorrect, differs=cls.differs, holds=holds)


def counts(verdict: Verdict | None, record: Record) -> bool:
    """Whether a peer is a correct implementation of what a cost record of it was asked."""
    if verdict is None or verdict.absent or record.request["pattern"] in verdict.incorrect:
        return False
    return not (record.request["padding"] and "key_padding" in verdict.fails)


def remarks(verdicts: Mapping[str, Verdict]) -> list[str]:
    """A line for each failing probe, and one for what a peer does differently."""
    lines = []
    for name, verdict in sorted(verdicts.items()):
        lines += [f"{DAGGER} {name}: {probe}: {said}" for probe, said in verdict.fails.items()]
        if verdict.absent:
            lines.append(f"{DAGGER} not probed: {verdict.absent}")
        lines.append(f"  {name} differs: {verdict.differs}")
    return lines


def marked(records: Iterable[Record], verdicts: Mapping[str, Verdict]) -> list[Record]:
    """The records, with a dagger at the names of peers that failed a probe."""
    failed = {name for name, verdict in verdicts.items() if verdict.fails or verdict.absent}
    return [
        replace(record, contestant=f"{record.contestant} {DAGGER}")
        if record.contestant in failed
        else record
        for record in records
    ]


def verdicts(
    results: Path, records: Iterable[Record], *, again: bool = False
) -> dict[str, Verdict]:
    """Verdicts of the peers in `records`, by name, kept in the folder `results`.

    Peers without a verdict on the version that was measured are probed; all are, with `again`.
    """
    kept = _read(results)
    known = {} if again else dict(kept)
    measured: dict[str, Record] = {}
    for record in records:
        name = record.contestant
        if name.startswith(PEER) and (record.ok or name not in measured):
            measured[name] = record
    for name, record in sorted(measured.items()):
        version = record.options.get("version")
        if name not in known or (version and known[name].version != version):
            known[name] = conformance(record.variant)
    if known != kept:
        plain = {name: asdict(verdict) for name, verdict in known.items()}
        (results / FILE).write_text(json.dumps(plain, indent=1, sort_keys=True) + "\n")
    return known


def _read(results: Path) -> dict[str, Verdict]:
    try:
        kept = json.loads((results / FILE).read_text())
    except FileNotFoundError:
        return {}
    return {name: Verdict(**verdict) for name, verdict in kept.items()}


def _formula_errors(variant: str, patterns: list[str]) -> dict[str, float]:
    """At the number format and the scale of a measurement: fp32 and standard normal tokens."""
    core = _core(variant, FORMULA_LENGTH, torch.float32)
    q, k, v = (torch.randn(2, HEADS, FORMULA_LENGTH, WIDTH) for _ in range(3))
    errors = {}
    for pattern in patterns:
        causal = pattern == "causal_self"
        with torch.no_grad():
            if hasattr(core, "whole_module"):
                expected = core.token_formula(merge(q), causal=causal)
                found = core.whole(merge(q), causal=causal, padding=None)
            else:
                expected = core.formula(q, k, v, causal=causal)
                found = core(q, k, v, AttentionMask(causal))
        if expected is not None:
            errors[pattern] = distance(found.double(), expected)
    return errors


def _core(variant: str, length: int, dtype: torch.dtype) -> Any:
    options = resolve_options(variant, {}, max_len=length)
    return make_core(variant, HEADS, WIDTH, dtype=dtype, **options).eval()


def _of_core(variant: str, patterns: list[str]) -> dict[str, str | None]:
    """Evidence against the peer, by probe; None where the probe holds."""
    general = ["any length", "batch independence", "determinism", "half precision"]
    asked = [*patterns, *general, "values of one give one"]
    if variant_class(variant).capabilities.key_padding:
        asked.append("key_padding")
    seen = observe(variant, only=asked)
    findings = {**seen.observed, **seen.general}
    return {
        name: finding.evidence
        if finding.status == "violated" or (name in seen.observed and finding.status == "refused")
        else None
        for name, finding in findings.items()
    }


def _at_one_length(variant: str, patterns: list[str]) -> dict[str, str | None]:
    """As `_of_core`, for what takes few lengths or is a whole module."""
    core = _core(variant, PROBE_LENGTH, torch.float64)

    def run(x: Tensor, causal: bool = False, padding: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            if hasattr(core, "whole_module"):
                return core.whole(x, causal=causal, padding=padding)
            heads = split(x, HEADS)
            exists = None if padding is None else ~padding
            return merge(core(heads, heads, heads, AttentionMask(causal, exists)))

    questions: dict[str, Callable[[Any], Iterator[Check]]] = {
        "batch independence": _neighbours,
        "determinism": _twice,
    }
    if "causal_self" in patterns:
        questions["causal_self"] = _late_token
    if core.capabilities.key_padding:
        questions["key_padding"] = _padded_content
    found = {name: judge(partial(ask, run), success="holds") for name, ask in questions.items()}
    return {name: None if one.status == "holds" else one.evidence for name, one in found.items()}


def _tokens(batch: int) -> Tensor:
    return torch.randn(batch, PROBE_LENGTH, HEADS * WIDTH, dtype=torch.float64)


def _neighbours(run: Any) -> Iterator[Check]:
    x = _tokens(2)
    torch.manual_seed(1)
    out = run(x)
    x[1] *= LOUD
    torch.manual_seed(1)
    beside = run(x)
    yield Check(
        f"N={PROBE_LENGTH}: a sample must not move when its neighbour grows thirtyfold",
        distance(beside[:1], out[:1]),
    )


def _twice(run: Any) -> Iterator[Check]:
    x = _tokens(1)
    yield Check(f"N={PROBE_LENGTH}: a second call must give the same", distance(run(x), run(x)))


def _late_token(run: Any) -> Iterator[Check]:
    x = _tokens(1)
    late = PROBE_LENGTH - 8
    torch.manual_seed(1)
    out = run(x, causal=True)
    x[:, late] *= LOUD
    torch.manual_seed(1)
    moved = run(x, causal=True)
    yield Check(
        f"N={PROBE_LENGTH}: no earlier output may move when token {late} grows thirtyfold",
        distance(moved[:, :late], out[:, :late]),
    )


def _padded_content(run: Any) -> Iterator[Check]:
    x = _tokens(2)
    padding = torch.zeros(2, PROBE_LENGTH, dtype=torch.bool)
    padding[1, PROBE_LENGTH // 2 :] = True
    out = run(x, padding=padding)
    moved = run(x.masked_fill(padding[..., None], 100.0), padding=padding)
    yield Check(
        f"N={PROBE_LENGTH}: the content of padded tokens must not matter",
        distance(moved[~padding], out[~padding]),
    )
    padding[1] = True
    blind = run(x, padding=padding)
    yield Check(
        f"N={PROBE_LENGTH}: a sample padded whole must give finite numbers",
        0.0 if bool(blind.isfinite().all()) else float("inf"),
    )


def matrix(verdicts: Mapping[str, Verdict]) -> list[str]:
    """A Markdown table of peers × probes: yes, **no**, or a dash for what was not asked."""
    probes = list(dict.fromkeys(p for v in verdicts.values() for p in (*v.holds, *v.fails)))
    lines = [
        f"| peer | version | {' | '.join(probes)} |",
        f"|---|---|{'---|' * len(probes)}",
    ]
    for name, verdict in sorted(verdicts.items()):
        cells = [
            "**no**" if probe in verdict.fails else "yes" if probe in verdict.holds else "–"
            for probe in probes
        ]
        version = verdict.version or "not probed"
        lines.append(f"| `{name}` | {version} | {' | '.join(cells)} |")
    return lines


def _installed() -> dict[str, Verdict]:
    """Verdicts of all peers that conf/attention enters."""
    folder = Path(str(resources.files("efficient_attn.conf").joinpath("sweep.yaml"))).parent
    found = {}
    for file in sorted((folder / "attention").glob("peer_*.yaml")):
        entry: Any = OmegaConf.load(file)
        print(f"probing {entry.name}", file=sys.stderr)
        found[entry.name] = conformance(entry.variant)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Probe every peer of a folder's records and keep the verdicts there, or all that are known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?", help="folder of records")
    parser.add_argument("--all", action="store_true", help="all installed peers, written nowhere")
    parser.add_argument("--markdown", action="store_true", help="print a table of probes as well")
    words = parser.parse_args(arguments)
    if (words.results is None) != words.all:
        parser.error("give a folder of records, or --all")
    with redirect_stdout(sys.stderr):  # what the peers print is no part of the table
        if words.all:
            found = _installed()
        else:
            found = verdicts(words.results, Store(words.results).read(), again=True)
    for line in [*matrix(found), ""] if words.markdown else []:
        print(line)
    for line in remarks(found):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
