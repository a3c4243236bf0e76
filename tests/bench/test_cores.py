"""Cores are claimed: timed cells alone, trainings together, and nothing outlives its process."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from efficient_attn.bench import cores
from efficient_attn.bench.cores import claim_cell, claim_cores

pytestmark = pytest.mark.skipif(
    cores.fcntl is None or not hasattr(os, "sched_setaffinity"), reason="needs locks and affinity"
)

HOLDER = """
import json, sys, time
from pathlib import Path
from efficient_attn.bench import cores
cores.scratch_folder = lambda: Path(sys.argv[1])
count, exclusive, seconds = json.loads(sys.argv[2])
with cores.claim_cores(count, exclusive) as cpus:
    start = time.monotonic()
    print("held", flush=True)
    time.sleep(seconds)
    print(json.dumps([start, time.monotonic(), sorted(cpus)]), flush=True)
"""


@pytest.fixture(autouse=True)
def locks_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "scratch_folder", lambda: tmp_path)
    before = os.sched_getaffinity(0)
    yield
    assert os.sched_getaffinity(0) == before


@pytest.fixture
def holder(tmp_path):
    """Starts processes that hold cores; those still running are killed in the end."""
    started = []

    def start(count, exclusive, seconds):
        arguments = [str(tmp_path), json.dumps([count, exclusive, seconds])]
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, *arguments], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def times(*processes):
    return [json.loads(process.communicate(timeout=60)[0].splitlines()[1]) for process in processes]


def test_timed_cells_never_overlap(holder):
    spans = sorted(times(*(holder(None, True, 0.1) for _ in range(4))))
    for (_, end, _), (start, _, _) in itertools.pairwise(spans):
        assert end <= start


def test_cells_of_one_thread_never_share_a_core(holder):
    spans = times(*(holder(1, True, 0.2) for _ in range(4)))
    for number, (start, end, cpus) in enumerate(spans):
        for other_start, other_end, other_cpus in spans[number + 1 :]:
            assert not set(cpus) & set(other_cpus) or other_end <= start or end <= other_start


def test_trainings_share_but_not_with_a_timed_cell(holder):
    first, second = holder(None, False, 5.0), holder(None, False, 5.0)
    assert first.stdout.readline() == second.stdout.readline() == "held\n", "both at a time"
    waited = threading.Event()
    released = threading.Timer(0.3, lambda: [first.kill(), second.kill()])
    released.start()
    start = time.monotonic()
    with claim_cores(1, waiting=waited.set):
        assert time.monotonic() - start > 0.25
    assert waited.is_set()


def test_a_killed_process_holds_nothing(holder):
    process = holder(None, True, 60.0)
    assert process.stdout.readline() == "held\n"
    process.send_signal(signal.SIGKILL)
    with claim_cores(None):
        pass


def test_the_thread_runs_on_its_cores_and_gets_the_others_back():
    before = os.sched_getaffinity(0)
    with claim_cores(1) as cpus:
        assert os.sched_getaffinity(0) == cpus
        assert cpus <= before
    assert os.sched_getaffinity(0) == before
    with claim_cores(10**6) as cpus:
        assert cpus == before


def test_cores_are_given_back_after_an_error():
    before = os.sched_getaffinity(0)
    with pytest.raises(ZeroDivisionError), claim_cores(None):
        1 / 0  # noqa: B018
    assert os.sched_getaffinity(0) == before
    with claim_cores(None):
        pass


def test_hardware_threads_of_one_core_go_together(monkeypatch):
    monkeypatch.setattr(cores, "_siblings", lambda cpu: frozenset({cpu % 2, cpu % 2 + 2}))
    assert cores._cores({0, 1, 2, 3}) == {0: frozenset({0, 2}), 1: frozenset({1, 3})}
    assert cores._cores({2, 3}) == {0: frozenset({2}), 1: frozenset({3})}


def test_an_accelerator_is_claimed_whatever_its_number(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert cores._device_name("cuda") == cores._device_name("cuda:0") == "device-cuda-3"
    assert cores._device_name("cuda:1") == "device-cuda-1"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert cores._device_name("cuda:1") == "device-cuda-1"
    with claim_cores(1, device="cuda"):
        assert cores._try_lock("device-cuda-0", exclusive=False) is None
    lock = cores._try_lock("device-cuda-0", exclusive=True)
    assert lock is not None
    os.close(lock)


def test_a_cell_is_measured_by_one_at_a_time(tmp_path):
    order = []

    def other():
        with claim_cell("c", waiting=lambda: order.append("waits")):
            order.append("second")

    with claim_cell("c"):
        thread = threading.Thread(target=other)
        thread.start()
        while not order:
            time.sleep(0.01)
        order.append("first")
    thread.join(timeout=30)
    assert order == ["waits", "first", "second"]
    assert not (tmp_path / "cell-c").exists()


def test_where_there_are_no_locks_a_claim_does_nothing(monkeypatch):
    monkeypatch.setattr(cores, "fcntl", None)
    with claim_cores(None) as cpus, claim_cell("c"):
        assert cpus == frozenset()
