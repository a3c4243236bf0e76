"""What the page's picker stands on: the same numbers that `analysis.pick` has, as plain data.

grounds     {ground: fields of `Ground`, entrants, contestants: how many, created: the newest}
entrants    {contestant, variant, fixed, knob, usual, time, memory}: models as in `predict`, that of
            time with its `text`; grid: values of the knob that may be predicted; first: key of
            the record that tells why there is none that is ok
everyone    [contestant, variant] of every variant in the cost records
shares      what scores keep of full's lead, see `kept`
weights     variant → whether it can return attention weights; null where that is unknown
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from efficient_attn.analysis.accuracy import TaskScores
from efficient_attn.analysis.candidates import knob_grid
from efficient_attn.analysis.choice import NINE_TO_ONE
from efficient_attn.analysis.cost_fit import MIN_LENGTHS
from efficient_attn.analysis.kept import evidence_of
from efficient_attn.analysis.knobs import BLOCK, KNOBS, WHOLE
from efficient_attn.analysis.predict import AXES, LONGEST
from efficient_attn.analysis.request import CAPABILITIES, TOLERANCE
from efficient_attn.analysis.rivals import Rivals, grounds
from efficient_attn.analysis.select import (
    SURROUNDINGS,
    contestant_order,
    contestants_in,
    is_variant,
)
from efficient_attn.bench.record import Record


def evidence(
    records: Iterable[Record], tasks: Iterable[TaskScores]
) -> tuple[dict[str, Any], dict[str, int]]:
    """The picker's data, and the number of the entrant that each record belongs to, by its key.

    Entrants are numbered through all grounds.
    """
    costs = [r for r in records if r.measure == "cost" and is_variant(r.contestant)]
    everyone = {record.contestant: record.variant for record in costs}
    numbers: dict[str, int] = {}
    told = []
    before = 0
    for ground, members in grounds(costs).items():
        rivals = Rivals(ground, members)
        for number, entrant in enumerate(rivals.entrants, start=before):
            numbers |= dict.fromkeys((record.key for record in entrant.records), number)
        before += len(rivals.entrants)
        told.append(
            {
                "ground": ground.to_dict(),
                "entrants": _entrants(rivals),
                "contestants": len(contestants_in(members)),
                "created": max(record.created for record in members),
            }
        )
    data = {
        "grounds": told,
        "everyone": [[name, everyone[name]] for name in sorted(everyone, key=contestant_order)],
        "shares": [
            {**asdict(one), "share": [one.share.value, one.share.low, one.share.high]}
            for one in evidence_of(tasks)
        ],
        "weights": _weights(set(everyone.values())),
        "knobs": KNOBS,
        "kernels": {"block": BLOCK, "whole": WHOLE},
        "axes": AXES,
        "longest": LONGEST,
        "min_lengths": MIN_LENGTHS,
        "surroundings": sorted(SURROUNDINGS),
        "capabilities": CAPABILITIES,
        "tolerance": TOLERANCE,
        "nine_to_one": NINE_TO_ONE,
    }
    return data, numbers


def _entrants(rivals: Rivals) -> list[dict[str, Any]]:
    told = rivals.to_dict()["entrants"]
    for number, (entrant, plain) in enumerate(zip(rivals.entrants, told, strict=True)):
        if number in rivals.times:
            plain["time"]["text"] = str(rivals.times[number])
        plain |= {"grid": knob_grid(entrant), "first": entrant.records[0].key}
    return told


def _weights(variants: set[str]) -> dict[str, bool | None]:
    # Capabilities live beside the tensors' code, which is loaded for this question alone.
    from efficient_attn.attention import describe

    able: dict[str, bool | None] = {}
    for variant in sorted(variants):
        try:
            able[variant] = describe(variant).capabilities.weights
        except ValueError:
            able[variant] = None
    return able
