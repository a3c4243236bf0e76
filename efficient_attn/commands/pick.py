"""`efficient-attn pick`: which variant for a workload, with the evidence of stored records."""

from __future__ import annotations

import argparse
import json
import sys

from efficient_attn.analysis.pick import Request, pick
from efficient_attn.analysis.ranking_text import print_ranking
from efficient_attn.bench.store import Store


def main(arguments: argparse.Namespace) -> int:
    """Print the ranking; 1 when nothing fits the request."""
    store = Store(arguments.results)
    records = store.read()
    for warning in store.warnings:
        print(warning, file=sys.stderr)
    if not records:
        raise ValueError(
            f"no records in {arguments.results}; measure some first, e.g. "
            "efficient-attn sweep +experiment=demo"
        )
    request = Request(
        length=arguments.length,
        pattern=arguments.pattern,
        batch=arguments.batch,
        heads=arguments.heads,
        head_dim=arguments.head_dim,
        dtype=arguments.dtype,
        device=arguments.device,
        pass_=arguments.pass_,
        memory_gb=arguments.memory_gb,
        time_ms=arguments.milliseconds,
        need_weights=arguments.need_weights,
    )
    ranking = pick(records, request)
    if arguments.json:
        print(json.dumps(ranking.to_dict(), indent=1))
    else:
        print_ranking(ranking)
    return 0 if ranking.choices else 1
