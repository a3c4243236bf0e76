"""`efficient-attn pick`: which variant for a workload, with the evidence of stored records."""

from __future__ import annotations

import argparse
import json

from efficient_attn.analysis.ask import make_request, measured, read_records
from efficient_attn.analysis.pick import pick
from efficient_attn.analysis.ranking_text import print_ranking


def main(arguments: argparse.Namespace) -> int:
    """Print the ranking; 1 when nothing fits the request."""
    records = read_records(arguments.results)
    request = make_request(
        arguments.length,
        arguments.lengths,
        pattern=arguments.pattern,
        batch=arguments.batch,
        heads=arguments.heads,
        head_dim=arguments.head_dim,
        key_length=arguments.key_length,
        padding=arguments.padding,
        dtype=arguments.dtype,
        device=arguments.device,
        threads=arguments.threads,
        scope=arguments.scope,
        pass_=arguments.pass_,
        memory_gb=arguments.memory_gb,
        time_ms=arguments.milliseconds,
        need_weights=arguments.need_weights,
        exact_only=arguments.exact_only,
        needs=dict(map(_need, arguments.needs)),
        tolerance=arguments.tolerance,
    )
    if arguments.measure:
        ranking = measured(records, request, arguments.into)
    else:
        ranking = pick(records, request)
    if arguments.json:
        print(json.dumps(ranking.to_dict(), indent=1))
    else:
        print_ranking(ranking)
    return 0 if ranking.choices else 1


def _need(word: str) -> tuple[str, float]:
    """``recall=2`` as a capability and its weight; ``recall`` weighs 1."""
    name, _, weight = word.partition("=")
    try:
        return name, float(weight or 1)
    except ValueError:
        raise ValueError(
            f"--needs {word!r}: {weight!r} is no number; write e.g. {name}=2"
        ) from None
