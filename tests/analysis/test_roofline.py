"""How far from the machine's limit: by hand, and None whenever something is unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest
import synthetic

from efficient_attn.analysis.roofline import Roofline, roofline

PEAK = {"flops_per_s": 1e11, "bytes_per_s": 1e10}


def record(flops=2e9, traffic=1e6, median_ms=40.0, peak=PEAK, **fields):
    made = synthetic.cost("full", 1024)
    result = {**made.result, "flops": flops, "traffic_bytes": traffic, "median_ms": median_ms}
    environment = {**made.environment, "machine_peak": peak}
    return replace(made, result=result, environment=environment, **fields)


def test_arithmetic_sets_the_limit():
    # 2 GFLOP at 100 GFLOP/s take 20 ms, half of the 40 that were measured.
    assert roofline(record()) == Roofline(
        limit_ms=pytest.approx(20.0),
        share=pytest.approx(0.5),
        bound="compute",
        flops_per_s=pytest.approx(5e10),
    )


def test_bytes_set_the_limit():
    found = roofline(record(flops=1e8, traffic=1e8))  # 1 ms of arithmetic, 10 ms of bytes
    assert found is not None
    assert found.bound == "memory"
    assert found.limit_ms == pytest.approx(10.0)
    assert found.share == pytest.approx(0.25)


def test_faster_than_main_memory_is_not_cut_off():
    found = roofline(record(flops=0, traffic=1e8, median_ms=4.0))
    assert found is not None
    assert found.share == pytest.approx(2.5)
    assert found.flops_per_s == 0


@pytest.mark.parametrize(
    "unknown",
    [
        {"flops": None},
        {"traffic": None},
        {"median_ms": None},
        {"peak": None},
        {"peak": {}},
        {"peak": {"flops_per_s": 1e11}},
        {"peak": {**PEAK, "bytes_per_s": 0.0}},
        {"peak": {**PEAK, "flops_per_s": float("inf")}},
        {"status": "oom", "reason": "out of memory"},
        {"measure": "accuracy"},
    ],
)
def test_nothing_is_said_when_anything_is_unknown(unknown):
    assert roofline(record(**unknown)) is None


def test_a_record_from_before_the_peak_was_measured():
    made = record()
    environment = {k: v for k, v in made.environment.items() if k != "machine_peak"}
    assert roofline(replace(made, environment=environment)) is None
