"""Cells with contestants that misbehave: everything becomes a record, and the others finish."""

import time

import pytest

from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.cost_cell import CostCell, CostSettings
from efficient_attn.bench.worker import Limits
from efficient_attn.bench.workload import Workload

QUICK = CostSettings(
    min_rounds=6,
    max_rounds=6,
    budget_s=0.5,
    warm_up_s=0.0,
    sample_ms=0.01,
    rest_ms=0.0,
    target=0.5,
)
FULL = Contestant("full", "full", {})


def toy(name, **options):
    return Contestant(name.lower(), f"bench_toys:{name}", options)


def cell(*contestants, limits=Limits(memory_cap_gb=8, timeout_s=60), **workload):  # noqa: B008
    sizes = {"heads": 2, "head_dim": 8, "length": 64, "threads": 1, **workload}
    return CostCell(tuple(contestants), limits, Workload(**sizes), QUICK)


def run(cell):
    records = list(cell.run(cell.contestants, lambda *_: None))
    assert {record.contestant for record in records} == {one.name for one in cell.contestants}
    return {record.contestant: record for record in records}


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("Segfault", "crashed", "SIGSEGV"),
        ("Exit", "crashed", "code 3"),
        ("Killed", "crashed", "SIGKILL"),
        ("Hog", "oom", "allocate"),
        ("Faulty", "crashed", "a deliberate fault"),
        ("Late", "crashed", "too late"),
        ("NaN", "diverged", "NaN or infinite"),
        ("Strange", "crashed", "not JSON serializable"),
    ],
)
def test_what_a_contestant_does_is_recorded_and_the_other_finishes(name, status, reason):
    records = run(cell(toy(name), FULL))
    bad, good = records[name.lower()], records["full"]
    assert (bad.status, bad.result) == (status, {})
    assert reason in bad.reason
    assert good.ok
    assert len(good.result["samples_ms"]) == 6


def test_a_contestant_without_end_times_out():
    start = time.monotonic()
    records = run(cell(toy("Endless"), FULL, limits=Limits(8, timeout_s=3)))
    assert records["endless"].status == "timeout"
    assert records["full"].ok
    assert time.monotonic() - start < 60


def test_output_of_a_contestant_stays_out_of_the_way(capfd):
    assert run(cell(toy("Chatty")))["chatty"].ok
    assert "xxx" not in capfd.readouterr().out


def test_known_time_and_memory_are_measured():
    records = run(cell(toy("Sleeper", milliseconds=30.0), toy("Allocator", megabytes=64)))
    assert records["sleeper"].result["median_ms"] >= 30
    peak = records["allocator"].result["peak_tensor_bytes"]
    assert peak == pytest.approx(64 * 2**20, rel=0.02)
    assert records["allocator"].result["peak_rss_bytes"] > 0.9 * 64 * 2**20


def test_peak_memory_of_full_attention_is_the_hand_computation():
    """Scores and probabilities, in fp32, for the naive form; the fused one has no N×N."""
    N, H, D = 1024, 4, 64
    sizes = {"length": N, "heads": H, "head_dim": D}
    naive = Contestant("naive", "full", {"implementation": "naive"})
    records = run(cell(naive, FULL, **sizes))
    scores = 4 * H * N * N
    assert records["naive"].result["peak_tensor_bytes"] == pytest.approx(2 * scores, rel=0.001)
    assert records["full"].result["peak_tensor_bytes"] < scores / 2


def test_a_pattern_that_is_not_supported_is_a_record():
    linformer = Contestant("linformer", "linformer", {"k": 8})
    records = run(cell(linformer, FULL, pattern="causal_self"))
    assert records["linformer"].status == "unsupported"
    assert "mixes all positions" in records["linformer"].reason


@pytest.mark.parametrize("scope", ["core", "module"])
@pytest.mark.parametrize("pattern", ["noncausal_self", "causal_cross"])
def test_both_scopes_and_cross_patterns_run(scope, pattern):
    key_length = 96 if "cross" in pattern else None
    performer = Contestant("performer", "performer", {"num_features": 16})
    record = run(
        cell(
            performer,
            scope=scope,
            pattern=pattern,
            key_length=key_length,
            padding=0.25,
            pass_="forward_backward",
        )
    )["performer"]
    assert record.ok, record.reason
    given = {"num_features": 16, "redraw_interval": None, "seed": 0}
    assert record.options == {**given, "implementation": "eager"}
    assert (record.result["parameters"] > 0) == (scope == "module")


def test_samples_of_one_run_are_paired_and_those_of_another_are_not():
    first, second = cell(FULL, toy("Sleeper")), cell(FULL)
    records = run(first)
    assert records["full"].cell == records["sleeper"].cell
    assert run(second)["full"].cell != records["full"].cell


def test_the_key_names_what_is_asked_and_who_answers():
    base = cell(FULL)
    assert base.key(FULL) == cell(FULL).key(FULL)
    others = [
        base.key(Contestant("again", "full", {})),
        base.key(Contestant("full", "full", {"implementation": "naive"})),
        cell(FULL, length=65).key(FULL),
        cell(FULL, limits=Limits(1.0, 60)).key(FULL),
    ]
    assert len({base.key(FULL), *others}) == 5
