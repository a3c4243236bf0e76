"""How a sample is taken and what is kept of it: clock, warm-up, modes, memory, order, keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
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
from efficient_attn.bench import cost, environment, memory
from efficient_attn.bench import store as store_module
from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.cost import CostSubject
from efficient_attn.bench.cost_cell import CostCell, CostSettings, _Entry
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
    return CostSubject("witness", {}, replace(SMALL, **workload))


# --- time --------------------------------------------------------------------------------------


def test_warm_up_calls_for_as_long_as_it_should(calls: list[bool]) -> None:
    one = subject()
    one.prepare()
    assert len(calls) == 1, "the first call is timed on its own"
    one.warm_up(0.05, 0.0)
    assert len(calls) > 5


def test_a_call_goes_ahead_of_a_sample_of_many(calls: list[bool]) -> None:
    one = subject()
    one.prepare()
    many = one.warm_up(0.01, 0.05)
    assert many > 1
    before = len(calls)
    one.sample()
    assert len(calls) - before == many + 1


def test_a_long_call_is_a_sample_by_itself(calls: list[bool]) -> None:
    one = subject()
    one.prepare()
    assert one.warm_up(0.01, 0.0) == 1
    before = len(calls)
    one.sample()
    assert len(calls) - before == 1


def test_the_device_is_done_before_the_clock_starts_and_stops(
    calls: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel's launch returns before its work is done: time without waiting is of the launch."""
    one = subject()
    events: list[str] = []

    def clock() -> float:
        events.append("clock")
        return float(len(events))

    def call() -> None:
        events.append("call")

    call.leaves = []  # type: ignore[attr-defined]
    monkeypatch.setattr(one, "_call", call)
    monkeypatch.setattr(one, "workload", replace(SMALL, device="cuda"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("done"))
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=clock))
    one.sample()
    assert events == ["done", "clock", "call", "done", "clock"]


@pytest.mark.parametrize("scope", ["core", "module"])
@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
def test_inference_is_measured_in_eval_mode(calls: list[bool], scope: str, pass_: str) -> None:
    """Dropout and redrawn features belong to training."""
    subject(scope=scope, pass_=pass_).prepare()
    assert calls == [pass_ == "forward_backward"]


@dataclass
class Caller:
    """Stands in for a worker and notes who was asked."""

    name: str
    asked: list[str]

    def ask(self, method: str) -> float:
        self.asked.append(self.name)
        return 1.0


def test_contestants_take_turns_in_going_first() -> None:
    asked: list[str] = []
    contestants = tuple(replace(FULL, name=name) for name in "abc")
    how = CostSettings(min_rounds=6, max_rounds=6, target=1e-9, pause_ms=0.0)
    cell = CostCell(contestants, Limits(1.0, 60.0), SMALL, how)
    entries = [_Entry(one, Caller(one.name, asked), {}) for one in contestants]  # type: ignore[arg-type]
    assert list(cell._race(entries, None, lambda share, what: None)) == []
    rounds = ["".join(asked[i : i + 3]) for i in range(0, len(asked), 3)]
    assert rounds == ["abc", "bca", "cab"] * 2


# --- memory ------------------------------------------------------------------------------------


def test_gradients_of_earlier_passes_do_not_hide_those_of_this_one(calls: list[bool]) -> None:
    """A gradient that is there already is added to in place; the pass would seem to need less."""
    one = subject(length=4096, pass_="forward_backward")
    one.prepare()
    one.sample()
    values = 4096 * 4 * 4
    peak, _ = one.peak_memory()
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
