"""The largest size that fits: the search, what ends it, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fit_toys import INPUTS_AND_OUTPUT, LIMIT, ToyOptions

import efficient_attn as ea
from efficient_attn.bench import fit
from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.fit import FitResult, Probe, largest
from efficient_attn.bench.worker import Limits
from efficient_attn.bench.workload import Workload
from efficient_attn.cli import main
from efficient_attn.commands.fit import contestants

SMALL = Workload(heads=1, head_dim=4)
EXACT: dict[str, Any] = {"multiple_of": 1, "resolution": 1e-9}
ROOMY = 2**40


def toy(name: str) -> Contestant:
    return Contestant(name, f"fit_toys:{name}", {})


def ends(result: FitResult) -> tuple[int, int]:
    """The sizes between which the limit lies."""
    assert result.largest is not None
    assert result.beyond is not None
    return result.largest.size, result.beyond.size


# --- the search, with runs made up --------------------------------------------------------------


def search(
    monkeypatch: pytest.MonkeyPatch,
    need: Callable[[int], int],
    memory: int,
    *,
    slow_from: int = 2**30,
    oom_from: int = 2**30,
    capacity: int | None = ROOMY,
    **how: Any,
) -> FitResult:
    """`largest` for a contestant that needs `need(size)` bytes."""

    def probe(contestant: Any, workload: Workload, size: int, memory: int, limits: Any) -> Probe:
        assert workload.length == size
        if size >= slow_from:
            return Probe(size, "timeout", 60.0, capacity_bytes=capacity, reason="too slow")
        if size >= oom_from:
            return Probe(size, "oom", 1.0, capacity_bytes=capacity, reason="no memory")
        outcome: Any = "fits" if need(size) <= memory else "too large"
        return Probe(size, outcome, 0.1, need(size) // 2, need(size) - need(size) // 2)

    monkeypatch.setattr(fit, "_probe", probe)
    return largest(toy("Line"), SMALL, memory, **{**EXACT, **how})


NEEDS: dict[str, Callable[[int], int]] = {
    "line": lambda n: 5_000_000 + 1000 * n,
    "square": lambda n: 1000 * n + 3 * n * n,
    "blocks": lambda n: 70_000 * -(-n // 70),
    "changing regime": lambda n: 1000 * n if n < 20_000 else 20_000_000 + 9000 * (n - 20_000),
    "n log n": lambda n: 90 * n * n.bit_length(),
    "cliff": lambda n: n if n <= 30_011 else 10**12,
}


@pytest.mark.parametrize("memory", [6_000_000, 40_000_001, 999_999_999])
@pytest.mark.parametrize("name", NEEDS)
def test_the_search_ends_at_the_last_size_that_fits(
    monkeypatch: pytest.MonkeyPatch, name: str, memory: int
) -> None:
    need = NEEDS[name]
    result = search(monkeypatch, need, memory)
    assert result.answer == "found"
    fits, fails = ends(result)
    assert need(fits) <= memory < need(fails)
    assert fails == fits + 1
    assert len(result.probes) < 40


@pytest.mark.parametrize("name", [name for name in NEEDS if name != "cliff"])
def test_the_search_is_led_by_what_it_measured(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """At 2 %, plain doubling and bisection would take some 18 runs, and more past the limit."""
    result = search(monkeypatch, NEEDS[name], 999_999_999, resolution=0.02)
    fits, fails = ends(result)
    assert fits < fails <= fits * 1.02
    assert len(result.probes) <= 14


def test_sizes_are_multiples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding to whole blocks: 127 tokens would need more than 128 do."""
    result = search(
        monkeypatch, lambda n: 100 * n if n % 64 == 0 else 200 * n, 1_000_000, multiple_of=64
    )
    assert ends(result) == (9984, 10048)
    assert all(probe.size % 64 == 0 for probe in result.probes)
    assert result.grows


def test_memory_that_shrinks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = search(monkeypatch, lambda n: 200_000 if n < 500 else 100 * n, 1_000_000)
    assert not result.grows


def test_the_smallest_size_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    result = search(monkeypatch, lambda n: 100 + n, 99)
    assert (result.answer, result.largest) == ("none", None)
    result = search(monkeypatch, lambda n: 100 + n, 101)
    assert ends(result) == (1, 2)


def test_the_largest_size_asked_for_is_not_the_largest_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = search(monkeypatch, NEEDS["line"], 10**12, most=5000)
    assert result.answer == "at least"
    assert result.largest is not None
    assert (result.largest.size, result.beyond) == (5000, None)


def test_where_runs_take_too_long_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = search(monkeypatch, NEEDS["line"], 999_999_999, slow_from=50_000)
    assert result.answer == "at least"
    fits, fails = ends(result)
    assert fits < 50_000 <= fails
    assert "time" in str(result.reason)


def test_running_out_of_more_memory_than_asked_about_is_not_fitting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = search(monkeypatch, lambda n: n, 2**20, oom_from=5001)
    assert result.answer == "found"
    assert ends(result) == (5000, 5001)


@pytest.mark.parametrize("capacity", [2**20 + 2**29, None])
def test_running_out_of_less_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, capacity: int | None
) -> None:
    result = search(monkeypatch, lambda n: n, 2**20, oom_from=5001, capacity=capacity)
    assert result.answer == "at least"
    assert ends(result) == (5000, 5001)
    assert "this machine" in str(result.reason)


@pytest.mark.parametrize("wrong", [{"most": 0}, {"multiple_of": 0}, {"resolution": 0.0}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        largest(toy("Line"), SMALL, 1000, **wrong)
    with pytest.raises(ValueError, match="decode"):
        largest(toy("Line"), Workload(pass_="decode"), 1000)


# --- real runs ----------------------------------------------------------------------------------


def test_a_line_is_found_to_the_token() -> None:
    per_token = INPUTS_AND_OUTPUT + ToyOptions().bytes_each
    result = largest(toy("Line"), SMALL, 50_021 * per_token + 7, **EXACT)
    assert result.answer == "found"
    assert ends(result) == (50_021, 50_022)
    assert result.largest is not None
    assert result.largest.held_bytes == 48 * 50_021
    assert result.largest.needed_bytes == per_token * 50_021
    assert result.largest.rss_bytes is None or result.largest.rss_bytes > per_token * 50_021


def test_a_batch_is_found_to_the_sample() -> None:
    workload = Workload(heads=1, head_dim=4, length=100)
    per_sample = 100 * INPUTS_AND_OUTPUT + 100**2 * ToyOptions().bytes_each
    result = largest(toy("Square"), workload, 7 * per_sample, vary="batch")
    assert ends(result) == (7, 8)


def test_gradients_and_parameters_count() -> None:
    """Forward needs q, k, v and the output; with the backward pass there are gradients too."""
    needed = {}
    for pass_ in ("forward", "forward_backward"):
        workload = Workload(heads=1, head_dim=4, pass_=pass_, scope="module")  # type: ignore[arg-type]
        result = largest(Contestant("full", "full", {}), workload, 2**30, most=256)
        assert result.largest is not None
        assert result.largest.held_bytes == 4 * (256 * 4 + 3 * (4 * 4 + 4) + (4 * 4 + 4))
        needed[pass_] = result.largest.needed_bytes or 0
    assert needed["forward_backward"] > needed["forward"]


def test_a_slow_contestant_gets_the_size_it_reached() -> None:
    result = largest(toy("Slow"), SMALL, 2**30, limits=Limits(timeout_s=3.0), most=LIMIT * 2)
    assert result.answer == "at least"
    fits, fails = ends(result)
    assert fits <= LIMIT < fails
    assert {probe.outcome for probe in result.probes} == {"fits", "timeout"}


def test_a_hungry_contestant_runs_out_in_its_own_process() -> None:
    result = largest(toy("Hungry"), SMALL, 2**28, limits=Limits(4.0, 60.0), resolution=0.5)
    assert result.answer == "found"
    fits, fails = ends(result)
    assert fits <= LIMIT < fails
    assert {probe.outcome for probe in result.probes} == {"fits", "oom"}


def test_a_crash_ends_the_search_and_is_told() -> None:
    result = largest(toy("Fragile"), SMALL, 2**30)
    assert result.answer == "at least"
    assert "crashed" in str(result.reason)


def test_a_refusal_is_an_answer() -> None:
    workload = Workload(pattern="causal_self")
    result = largest(Contestant("linformer", "linformer", {}), workload, 2**30)
    assert result.answer == "unsupported"
    assert "mixes all positions" in str(result.reason)


# --- the command --------------------------------------------------------------------------------

QUICK = ["fit", "--memory-gb", "0.01", "--heads", "1", "--head-dim", "4", "--max", "512"]


def test_the_command_answers_in_a_table_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QUICK, "--variants", "full_naive,linformer", "--pattern", "causal_self"]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "at least 512" in shown.out
    assert "mixes all positions" in shown.out
    assert "full_naive  256: " in shown.err, "progress goes to stderr"
    assert main([*words, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [result["answer"] for result in results] == ["at least", "unsupported"]
    assert results[0]["contestant"]["options"] == {"implementation": "naive"}


def test_the_command_fails_when_a_contestant_has_no_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*QUICK, "--variants", "full,fit_toys:Broken"]) == 1
    shown = capsys.readouterr().out
    assert "a deliberate fault" in shown
    assert "at least 512" in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--variants", "fulll"], "fulll"),
        (["--variants", ","], "names none"),
        (["--memory-gb", "0"], "above 0"),
        (["--pass", "decode"], "causal_self"),
    ],
)
def test_a_wrong_request_is_told_of(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main([*QUICK, *words]) == 2
    assert told in capsys.readouterr().err


def test_every_contestant_is_asked_by_default() -> None:
    named = {contestant.name: contestant for contestant in contestants(None)}
    assert {*ea.list_variants(), "full_naive"} <= set(named)
    assert named["linformer"].options["k"] == 256
