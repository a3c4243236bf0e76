"""The machine's peak: the best of many tries, kept for a while."""

from __future__ import annotations

import json
import pickle
from itertools import count

import pytest
import torch

from efficient_attn.bench import machine_peak as module
from efficient_attn.bench.machine_peak import PeakSubject, machine_peak, measure_peak

PEAK = {"flops_per_s": 2e11, "bytes_per_s": 1e10}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "SQUARES", (8, 16))
    monkeypatch.setattr(module, "COPIED_BYTES", {"cpu": 2**16, "cuda": 2**16})
    monkeypatch.setattr(module, "PRODUCT_S", 0.0)
    monkeypatch.setattr(module, "COPY_S", 0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_peak_is_measured_in_its_own_process_or_here(small, dtype):
    threads = torch.get_num_threads()
    subject = pickle.loads(pickle.dumps(PeakSubject("cpu", dtype, threads)))
    peak = subject.measure()
    assert set(peak) == {"flops_per_s", "bytes_per_s"}
    assert all(value > 0 for value in peak.values())
    assert torch.get_num_threads() == threads


def test_rates_are_work_over_the_shortest_time(small, monkeypatch):
    monkeypatch.setattr(module, "_best_seconds", lambda call, device, budget_s: 0.5)
    monkeypatch.setattr(module, "LONGEST_S", 100.0)
    peak = measure_peak("cpu", "float32", None)
    assert peak == {"flops_per_s": 2 * 16**3 / 0.5, "bytes_per_s": 2 * 2**16 / 0.5}


def test_no_product_is_tried_that_would_take_too_long(small, monkeypatch):
    monkeypatch.setattr(module, "_best_seconds", lambda call, device, budget_s: 0.5)
    monkeypatch.setattr(module, "LONGEST_S", 3.9)  # 16³ is eight times 8³: 4 seconds
    assert measure_peak("cpu", "float32", None)["flops_per_s"] == 2 * 8**3 / 0.5


def test_half_precision_may_be_computed_in_single(small, monkeypatch):
    tried = set()
    monkeypatch.setattr(
        module,
        "_square_product",
        lambda size, dtype, transposed, device: tried.add((dtype, transposed)) or (lambda: None),
    )
    measure_peak("cpu", "bfloat16", None)
    assert tried == {(d, t) for d in ("bfloat16", "float32") for t in (False, True)}


def test_rounds_go_on_until_enough_were_quiet(small, monkeypatch):
    rounds = []

    def was_quiet(start, waited):
        rounds.append(start)
        return len(rounds) not in (1, 3)

    monkeypatch.setattr(module, "_was_quiet", was_quiet)
    measure_peak("cpu", "float32", None)
    assert len(rounds) == module.QUIET_ROUNDS + 2


def test_a_machine_that_is_never_quiet_is_measured_all_the_same(small, monkeypatch):
    rounds = []
    monkeypatch.setattr(module, "_was_quiet", lambda *asked: bool(rounds.append(asked)))
    assert measure_peak("cpu", "float32", None)["flops_per_s"] > 0
    assert len(rounds) == module.MOST_ROUNDS


def test_the_shortest_of_the_calls_is_taken_and_the_first_left_out(monkeypatch):
    durations = iter([100.0, 3.0, 1.0, 2.0])
    clock = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])

    def call():
        clock[0] += next(durations)

    assert module._best_seconds(call, "cpu", 6.0) == 1.0
    assert next(durations, None) is None


def test_a_peak_is_measured_once_and_kept(tmp_path):
    calls = count()

    def measure():
        next(calls)
        return PEAK

    for _ in range(2):
        assert machine_peak(tmp_path, "cpu", "float32", 1, measure) == PEAK
    assert next(calls) == 1
    [path] = (tmp_path / "machine").iterdir()
    assert json.loads(path.read_text())["dtype"] == "float32"
    for others in (("bfloat16", 1), ("float32", 2), ("float32", None)):
        machine_peak(tmp_path, "cpu", *others, measure)
    assert next(calls) == 5


def spoiled(path, how):
    values = json.loads(path.read_text())
    if how == "old":
        values["measured"] -= module.VALID_HOURS * 3600 + 60
    elif how == "of the future":
        values["measured"] += 3600
    elif how == "zero":
        values["flops_per_s"] = 0.0
    elif how == "incomplete":
        del values["bytes_per_s"]
    text = {"broken": "{", "a list": "[]"}.get(how, json.dumps(values))
    path.write_text(text)


@pytest.mark.parametrize("how", ["old", "of the future", "zero", "incomplete", "broken", "a list"])
def test_what_cannot_be_relied_on_is_measured_again(tmp_path, how):
    machine_peak(tmp_path, "cpu", "float32", 1, lambda: PEAK)
    [path] = (tmp_path / "machine").iterdir()
    spoiled(path, how)
    newer = {"flops_per_s": 1.0, "bytes_per_s": 2.0}
    assert machine_peak(tmp_path, "cpu", "float32", 1, lambda: newer) == newer
    assert machine_peak(tmp_path, "cpu", "float32", 1, lambda: PEAK) == newer


def test_a_folder_that_cannot_be_written_loses_no_measurement(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert machine_peak(blocked, "cpu", "float32", 1, lambda: PEAK) == PEAK


def test_a_failed_measurement_is_the_callers_and_leaves_nothing(tmp_path):
    def fail():
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        machine_peak(tmp_path, "cpu", "float32", 1, fail)
    assert not (tmp_path / "machine").exists()
