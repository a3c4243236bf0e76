"""Crossovers are read between measured lengths, and never invented beyond them."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import TIMES, cells, cost

from efficient_attn.analysis.crossover import Crossover, crossovers
from efficient_attn.bench.record import Record


def curve(name: str, values: dict[int, float], noise: float = 0.01) -> list[Record]:
    return [cost(name, length, median=value, noise=noise) for length, value in values.items()]


def only(records: list[Record]) -> Crossover:
    (found,) = crossovers(records)
    return found


def test_the_crossing_lies_where_the_truth_crosses() -> None:
    records = cells((128, 256, 512, 1024, 2048), passes=("forward",), noise=0.01)
    for found in crossovers(records):
        if found.contestant == "full_naive":
            assert found.length is None
            continue
        n = np.arange(128, 2049)
        mine, full = TIMES[found.contestant](n), TIMES["full"](n)
        truth = n[np.argmax(mine < full)]
        assert found.length == pytest.approx(truth, rel=0.1)
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.length <= found.high
        assert found.paired
        assert str(found).startswith(f"N={found.length:.0f} (")


def test_not_reached_is_an_answer() -> None:
    records = curve("full", {256: 1, 512: 2}) + curve("performer", {256: 4, 512: 6})
    found = only(records)
    assert found.length is None
    assert str(found) == "not reached up to N=512"


def test_faster_everywhere_gives_no_length() -> None:
    records = curve("full", {256: 4, 512: 6}) + curve("performer", {256: 1, 512: 2})
    found = only(records)
    assert found.length == 0
    assert str(found) == "faster from N=256 on"


def test_a_dip_below_one_that_does_not_last_is_no_crossover() -> None:
    full = dict.fromkeys((128, 256, 512, 1024), 1.0)
    other = {128: 2.0, 256: 0.5, 512: 2.0, 1024: 0.5}
    found = only(curve("full", full) + curve("performer", other))
    assert found.length is not None
    assert 512 < found.length < 1024


def test_noise_widens_the_interval() -> None:
    full = {256: 1.0, 512: 2.0, 1024: 4.0}
    other = {256: 1.3, 512: 1.95, 1024: 3.0}
    sharp = only(curve("full", full) + curve("performer", other))
    blurred = only(curve("full", full, 0.2) + curve("performer", other, 0.2))
    assert sharp.low is not None
    assert sharp.high is not None
    assert blurred.high is None or blurred.high - (blurred.low or 0) > sharp.high - sharp.low


def test_lengths_that_failed_take_no_part() -> None:
    records = curve("full", {256: 1.0, 512: 4.0}) + curve("performer", {256: 2.0, 512: 2.0})
    records.append(cost("performer", 1024, status="oom"))
    assert only(records).lengths == (256, 512)
    assert crossovers(curve("performer", {256: 1.0})) == []
