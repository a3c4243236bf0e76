"""How a sample is taken and what is kept of it: clock, warm-up, modes, memory, order, keys."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from efficient_attn.attention import (
    AttentionVariant,
    Capabilities,
    register_variant,
    unregister_variant,
    variant_class,
)
from efficient_attn.bench import cell as cell_module
from efficient_attn.bench import contention, environment, memory
from efficient_attn.bench import store as store_module
from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.clock import CudaClock, HostClock
from efficient_attn.bench.cost import CostSubject
from efficient_attn.bench.cost_cell import CostCell, CostSettings
from efficient_attn.bench.intervals import undisturbed
from efficient_attn.bench.race import Entry, Ledger
from efficient_attn.bench.store import Store
from efficient_attn.bench.sweep import missing_contestants
from efficient_attn.bench.worker import Limits
from efficient_attn.bench.workload import Workload

SMALL = Workload(heads=1, head_dim=4, length=8)
FULL = Contestant("full", "full", {})


@dataclass(frozen=True)
class NoOptions:
    pass


class Witness(AttentionVariant):
    """Returns the values, and notes of every call whether it was in training mode."""

    Options = NoOptions
    capabilities = Capabilities()
    calls: ClassVar[list[bool]] = []

    def forward(self, q, k, v, mask, dropout_p=0.0):  # type: ignore[no-untyped-def]
        self.calls.append(self.training)
        return v.clone()


@pytest.fixture
def calls() -> Iterator[list[bool]]:
    """The calls of the variant "witness", which exists for one test."""
    register_variant("witness")(Witness)
    Witness.calls.clear()
    yield Witness.calls
    unregister_variant("witness")


def subject(**workload: Any) -> CostSubject:
    return subject_of("witness", **workload)


def subject_of(variant: str, **workload: Any) -> CostSubject:
    return CostSubject(variant, {}, replace(SMALL, **workload))


# --- time --------------------------------------------------------------------------------------


def test_warm_up_calls_for_as_long_as_it_should(calls: list[bool]) -> None:
    one = subject()
    one.prepare()
    first = len(calls)
    assert one.warm_up(0.05, 0.05, 0.0)["seconds"] >= 0.05
    assert len(calls) - first > 5


def test_warm_up_goes_on_until_times_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call a tenth shorter than the one before until the twentieth."""
    one = subject_of("full")
    times = [0.9 ** min(number, 20) for number in range(1000)]
    monkeypatch.setattr(one, "_timed", lambda calls: times.pop(0))
    one.warm_up(0.0, 60.0, 0.0)
    assert 25 < 1000 - len(times) < 100


def test_warm_up_that_never_settles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    one = subject_of("full")
    monkeypatch.setattr(one, "_timed", _growing())
    assert one.warm_up(0.0, 0.05, 0.0)["seconds"] < 1.0


def _growing() -> Any:
    sizes = iter(range(1, 10**9))
    return lambda calls: float(next(sizes))


def test_a_call_goes_ahead_of_a_sample_of_many(calls: list[bool]) -> None:
    one = subject()
    one.prepare()
    many = one.warm_up(0.01, 0.01, 0.05)["calls_per_sample"]
    assert many > 1
    before = len(calls)
    one.sample()
    assert len(calls) - before == many + 1


def test_a_long_call_is_a_sample_by_itself(calls: list[bool]) -> None:
    one = subject()
    one.prepare()
    assert one.warm_up(0.01, 0.01, 0.0)["calls_per_sample"] == 1
    before = len(calls)
    one.sample()
    assert len(calls) - before == 1


def test_the_device_is_idle_before_and_done_after_cuda_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel's launch returns before its work is done: time without waiting is of the launch."""
    said: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            said.append("event")

        def elapsed_time(self, other: Event) -> float:
            said.append("read")
            return 3.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: said.append("done"))
    clock = CudaClock("cuda")
    time = clock.milliseconds(lambda: said.append("call"), lambda: said.append("before"), 2)
    assert time == 3.0
    once = ["before", "event", "call", "event"]
    assert said == ["done", *once, *once, "done", "read", "read"]


def test_what_goes_before_a_call_is_not_timed() -> None:
    one = HostClock().milliseconds(lambda: None, lambda: time.sleep(0.02), 2)
    assert one < 10


# --- who else had the cores --------------------------------------------------------------------


def test_waiting_for_a_core_is_seen() -> None:
    """Three threads of native work on one core wait for each other most of the time."""
    cores = os.sched_getaffinity(0)
    command = (
        "import os, threading, hashlib\n"
        "from efficient_attn.bench.contention import waited_seconds\n"
        f"os.sched_setaffinity(0, {{{min(cores)}}})\n"
        "data = bytes(2**20)\n"
        "def burn():\n"
        "    for _ in range(200): hashlib.sha256(data).digest()\n"
        "before = waited_seconds()\n"
        "threads = [threading.Thread(target=burn) for _ in range(3)]\n"
        "[t.start() for t in threads]\n"
        "import time; time.sleep(0.1)\n"
        "print('None' if before is None else waited_seconds() - before)\n"
        "[t.join() for t in threads]\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    ).stdout.strip()
    if said == "None":
        pytest.skip("this system keeps no scheduling statistics")
    assert float(said) > 0.05


def test_samples_that_waited_are_left_out_where_enough_remain() -> None:
    entry = Entry(FULL, Caller("full", []), {})  # type: ignore[arg-type]
    entry.samples = [1.0] * 6 + [9.0] * 5
    entry.waits = [0.0] * 6 + [0.5] * 5
    assert entry.interval().value == 1.0
    assert entry.interval().n == 6
    entry.waits = [0.0] * 5 + [0.5] * 6
    assert entry.interval().n == 11, "too few are left: all count, and the interval says so"
    entry.waits = [None] * 11
    assert entry.interval().n == 11
    assert entry.known_waits() is None


def test_a_round_counts_when_nobody_waited() -> None:
    calm, rushed = [0.0] * 8, [0.0] * 7 + [1.0]
    assert undisturbed([calm, rushed], 8) == list(range(7))
    assert undisturbed([calm, None], 8) == list(range(8))


def test_threads_come_to_rest_and_wake() -> None:
    """Without it they spin for ten milliseconds on the next contestant's cores."""
    command = (
        "import torch, os, time\n"
        "from efficient_attn.bench.contention import rest_threads, wake_threads\n"
        "torch.set_num_threads(2)\n"
        "threads = lambda: len(os.listdir('/proc/self/task'))\n"
        "before = threads(); wake_threads(); awake = threads()\n"
        "rest_threads(); time.sleep(0.05); print(before, awake, threads())\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    ).stdout
    before, awake, resting = map(int, said.split())
    if awake == before:
        pytest.skip("this build of torch has no OpenMP threads")
    assert resting == before


def test_rest_is_awaited_no_longer_than_said() -> None:
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.05)
        assert contention._running(burner.pid)
        start = time.monotonic()
        contention.await_rest(burner.pid, 0.05)
        assert time.monotonic() - start >= 0.05
    finally:
        burner.kill()
        burner.wait()
    assert not contention._running(burner.pid), "a process that is gone is at rest"


# --- passes and scopes -------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["core", "module"])
@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
def test_inference_is_measured_in_eval_mode(calls: list[bool], scope: str, pass_: str) -> None:
    """Dropout and redrawn features belong to training."""
    subject(scope=scope, pass_=pass_).prepare()
    assert set(calls) == {pass_ == "forward_backward"}


@dataclass
class Caller:
    """Stands in for a worker and notes who was asked."""

    name: str
    asked: list[str]
    pid: int | None = None
    waited: float | None = 0.0

    def ask(self, method: str) -> tuple[float, float | None, float]:
        self.asked.append(self.name)
        return 1.0, self.waited, 0.0


def test_contestants_take_turns_in_going_first() -> None:
    asked: list[str] = []
    contestants = tuple(replace(FULL, name=name) for name in "abc")
    how = CostSettings(min_rounds=6, max_rounds=6, target=1e-9, rest_ms=0.0)
    cell = CostCell(contestants, Limits(1.0, 60.0), SMALL, how)
    entries = [Entry(one, Caller(one.name, asked), {}) for one in contestants]  # type: ignore[arg-type]
    assert list(cell._race(entries, None, Ledger(), lambda share, what: None)) == []
    rounds = ["".join(asked[i : i + 3]) for i in range(0, len(asked), 3)]
    assert rounds == ["abc", "bca", "cab"] * 2


# --- memory ------------------------------------------------------------------------------------


def test_gradients_of_earlier_passes_do_not_hide_those_of_this_one(calls: list[bool]) -> None:
    """A gradient that is there already is added to in place; the pass would seem to need less."""
    one = subject(length=4096, pass_="forward_backward")
    one.prepare()
    one.sample()
    values = 4096 * 4 * 4
    peak = one.resources()["peak_tensor_bytes"]
    assert peak >= 2 * values, "the output, and the gradient of the values"


def test_resident_memory_does_not_inherit_an_earlier_peak() -> None:
    large = torch.ones(64 * 2**20)
    del large
    baseline = memory.reset_peak_rss()
    if baseline is None:
        pytest.skip("this system keeps no resettable high-water mark")
    torch.ones(2**18)
    peak = memory.peak_rss()
    assert peak is not None
    assert peak - baseline < 64 * 2**20


@pytest.mark.parametrize("unknown", ["reset_peak_rss", "peak_rss"])
def test_unknown_memory_is_none_and_not_zero(
    calls: list[bool], monkeypatch: pytest.MonkeyPatch, unknown: str
) -> None:
    monkeypatch.setattr(memory, unknown, lambda: None)
    assert subject().prepare()["peak_rss_bytes"] is None


def test_a_system_without_a_high_water_mark_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "no" / "such")
    assert memory.reset_peak_rss() is None
    assert memory._status_bytes("NoSuchLine") is None


@pytest.mark.parametrize(("device", "cap"), [("cpu", 2**30), ("cuda:0", None)])
def test_an_accelerators_driver_is_not_capped(
    monkeypatch: pytest.MonkeyPatch, device: str, cap: int | None
) -> None:
    given: list[Limits] = []
    monkeypatch.setattr(cell_module, "Worker", lambda *arguments: given.append(arguments[-1]))
    workload = replace(SMALL, device=device)
    CostCell((FULL,), Limits(1.0, 60.0), workload, CostSettings()).start_worker(CostSubject)
    assert given[0].memory_bytes == cap


# --- what names a record -----------------------------------------------------------------------


def test_changed_code_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = CostCell((FULL,), Limits(1.0, 60.0), SMALL, CostSettings())
    before = cell.key(FULL)
    assert before == cell.key(FULL)
    monkeypatch.setattr(environment, "code_hash", lambda measure, variant: "changed")
    assert cell.key(FULL) != before


OWN_FILE = """
from dataclasses import dataclass

import efficient_attn as ea
from efficient_attn.attention import AttentionVariant


@dataclass(frozen=True)
class NoOptions:
    pass


@ea.register_variant("in_a_file")
class InAFile(AttentionVariant):
    Options = NoOptions
"""


def test_the_file_of_a_variant_counts_as_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also that of a variant of one's own, which lies elsewhere; other variants' files do not."""
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "variant_in_a_file.py"
    file.write_text(OWN_FILE)
    variant_class("variant_in_a_file:InAFile")

    def hashes() -> tuple[str, str]:
        environment.code_hash.cache_clear()
        return environment.code_hash("cost", "in_a_file"), environment.code_hash("cost", "full")

    try:
        own, other = hashes()
        file.write_text(OWN_FILE + "\n# changed\n")
        changed, unchanged = hashes()
    finally:
        unregister_variant("in_a_file")
        environment.code_hash.cache_clear()
    assert changed != own
    assert unchanged == other


# --- what is stored ----------------------------------------------------------------------------


def test_a_cell_measured_in_part_goes_on_with_the_rest(tmp_path: Path) -> None:
    """Not only whole cells are resumed: contestants with a record keep it."""
    other = replace(FULL, name="other")
    cell = CostCell((FULL, other), Limits(1.0, 60.0), SMALL, CostSettings())
    store = Store(tmp_path)
    assert missing_contestants(cell, store) == [FULL, other]
    store.write(cell.record(FULL, "crashed", reason="as it happened"))
    assert missing_contestants(cell, store) == [other]


def test_two_writers_of_one_record_never_share_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sweeps into one folder may write the same record in the same moment."""
    record = CostCell((FULL,), Limits(1.0, 60.0), SMALL, CostSettings()).record(FULL, "timeout")
    written: list[Path] = []

    def write(path: Path, text: str) -> None:
        written.append(path)
        path.write_text(text)

    monkeypatch.setattr(store_module, "_write_through", write)
    for _ in range(2):
        Store(tmp_path).write(record)
    assert len(set(written)) == 2
    assert Store(tmp_path).get(record.key) == record
