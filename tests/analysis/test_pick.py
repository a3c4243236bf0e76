"""pick: measured beats predicted, ties are called ties, and every rejection has its reason."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from synthetic import ENVIRONMENT, OPTIONS, cells, cost, scores

from efficient_attn.analysis.pick import NothingMeasured, Ranking, Request, pick
from efficient_attn.bench.record import Record

ROOT = Path(__file__).parents[2]


def place(ranking: Ranking, name: str):
    return next(choice for choice in ranking.choices if choice.contestant == name)


def reason(ranking: Ranking, name: str) -> str:
    return next(item.reason for item in ranking.rejections if item.contestant == name)


def pair(fast: float, slow: float, noise: float = 0.01, **fields) -> list[Record]:
    """full and performer in one cell at N=1024."""
    drift = np.exp(np.random.default_rng(0).normal(0, 0.2, 20))
    return [
        cost("full", median=slow, noise=noise, drift=drift, **fields),
        cost("performer", median=fast, noise=noise, drift=drift, **fields),
    ]


def test_a_measured_length_is_answered_by_its_measurement() -> None:
    records = cells()
    ranking = pick(records, Request(1024))
    assert [choice.evidence for choice in ranking.choices] == ["measured"] * 6
    assert ranking.choices[0].contestant == "linformer"
    linformer = place(ranking, "linformer")
    record = next(r for r in records if r.contestant == "linformer" and r.request["length"] == 1024)
    assert linformer.time.value == record.result["median_ms"]
    assert linformer.fit is None
    assert linformer.to_full is not None
    assert linformer.to_full.paired
    assert linformer.to_full.encloses(1.736 / 4.244)
    assert ranking.verdict.startswith("Take linformer")
    times = [choice.time.value for choice in ranking.choices]
    assert times == sorted(times)
    assert {"full", "full_naive"} <= {choice.contestant for choice in ranking.choices}


@pytest.mark.parametrize(
    ("length", "kind"), [(700, "interpolated"), (8192, "extrapolated"), (100, "extrapolated")]
)
def test_an_unmeasured_length_never_looks_measured(length: int, kind: str) -> None:
    ranking = pick(cells(), Request(length))
    for choice in ranking.choices:
        assert choice.evidence == kind
        assert not choice.measured
        assert choice.fit is not None
        assert choice.time.confidence == 0.0
        assert choice.time.low < choice.time.value < choice.time.high
    assert f"This is {kind}" in ranking.verdict
    assert any("predictions" in note for note in ranking.notes)
    full = place(ranking, "full")
    assert full.time.encloses(0.05 + 4e-6 * length**2)
    assert full.memory_bytes == pytest.approx(2048 * length, rel=0.05)


def test_measured_and_predicted_stand_side_by_side_with_their_labels() -> None:
    records = [r for r in cells() if (r.contestant, r.request["length"]) != ("full", 1024)]
    ranking = pick(records, Request(1024))
    assert place(ranking, "full").evidence == "interpolated"
    assert place(ranking, "performer").evidence == "measured"
    ratio = place(ranking, "performer").to_full
    assert ratio is not None
    assert not ratio.paired


def test_two_lengths_are_too_few_to_predict_from() -> None:
    ranking = pick(cells((256, 512)), Request(1024))
    assert ranking.choices == ()
    assert "too few" in reason(ranking, "full")
    assert ranking.verdict.startswith("Nothing fits")
    assert "attention=[" in ranking.command


def test_a_tie_is_called_a_tie_and_stays_with_full() -> None:
    ranking = pick(pair(0.999, 1.0, noise=0.05), Request(1024))
    assert ranking.choices[1].tied
    assert ranking.choices[1].to_best is not None
    assert ranking.choices[1].to_best.low <= 1
    assert "Stay with full" in ranking.verdict
    assert ranking.advised is not None
    assert ranking.advised.contestant == "full"


def test_a_small_but_sure_difference_is_no_tie() -> None:
    """Drift of 20 % between rounds, 5 % difference within: only pairing can see it."""
    ranking = pick(pair(0.95, 1.0), Request(1024))
    assert ranking.choices[0].contestant == "performer"
    assert not ranking.choices[1].tied
    assert ranking.verdict.startswith("Take performer")


def test_full_that_wins_is_said_to_be_kept() -> None:
    ranking = pick(pair(2.0, 1.0), Request(1024))
    assert ranking.verdict.startswith("Stay with full")
    assert ranking.best is not None
    assert ranking.best.contestant == "full"


def test_ties_among_others_are_listed() -> None:
    drift = np.ones(20)
    records = [
        *pair(1.0, 5.0),
        cost("local_window", median=1.001, noise=0.05, drift=drift),
    ]
    ranking = pick(records, Request(1024))
    assert "performer ties with local_window" in ranking.verdict
    assert not place(ranking, "full").tied


def test_medians_of_different_runs_are_flagged() -> None:
    records = pair(0.5, 1.0)
    records[1] = cost("performer", median=0.5, cell="another run")
    ranking = pick(records, Request(1024))
    ratio = place(ranking, "performer").to_full
    assert ratio is not None
    assert not ratio.paired
    assert any("unpaired" in note for note in ranking.notes)


def test_an_older_partner_in_the_same_cell_beats_a_newer_one_elsewhere() -> None:
    records = pair(0.5, 1.0, cell="first")
    records.append(cost("full", median=3.0, cell="second", created="2026-02-01T00:00:00"))
    ratio = place(pick(records, Request(1024)), "performer").to_full
    assert ratio is not None
    assert ratio.paired
    assert ratio.value == pytest.approx(0.5, rel=0.05)


def test_what_is_not_supported_is_rejected_in_the_words_of_the_refusal() -> None:
    ranking = pick(cells(fail={("performer", 1024): "unsupported"}), Request(1024))
    assert reason(ranking, "performer") == "ended with unsupported"


@pytest.mark.parametrize("status", ["oom", "timeout", "crashed"])
def test_a_failure_at_the_length_is_the_reason(status: str) -> None:
    ranking = pick(cells(fail={("performer", 1024): status}), Request(1024))
    assert "performer" not in [choice.contestant for choice in ranking.choices]
    assert f"ended with {status}" in reason(ranking, "performer")
    assert "N=1024" in reason(ranking, "performer")


@pytest.mark.parametrize(("status", "words"), [("oom", "memory"), ("timeout", "time")])
@pytest.mark.parametrize("length", [2048, 3000, 9999])
def test_a_failure_below_rules_out_longer_requests(status: str, words: str, length: int) -> None:
    records = cells((128, 256, 512, 1024), fail={("full_naive", 1024): status})
    assert f"ran out of {words} already at N=1024" in reason(
        pick(records, Request(length)), "full_naive"
    )


def test_a_failure_that_a_longer_run_overcame_is_no_evidence() -> None:
    records = cells((128, 256, 512, 1024, 2048), fail={("performer", 512): "oom"})
    assert place(pick(records, Request(3000)), "performer").evidence == "extrapolated"


def test_a_crash_below_is_no_evidence_either() -> None:
    records = cells((128, 256, 512, 1024, 2048), fail={("performer", 2048): "crashed"})
    assert place(pick(records, Request(3000)), "performer").evidence == "extrapolated"


def test_unsupported_everywhere_is_the_reason_at_any_length() -> None:
    ranking = pick(cells(), Request(5000, pattern="causal_self"))
    assert "does not support causal" in reason(ranking, "linformer")


def test_a_contestant_known_from_other_workloads_has_no_record() -> None:
    records = [*pair(0.5, 1.0), cost("local_window", dtype="bfloat16")]
    assert "no record of this workload" in reason(pick(records, Request(1024)), "local_window")
    records = [*pair(0.5, 1.0), cost("local_window", batch=9)]
    assert "too few to predict from" in reason(pick(records, Request(1024)), "local_window")


def test_the_memory_limit_is_hard() -> None:
    # full_naive needs 64·N² bytes and more: 64 MiB at N=1024, 4 GiB at N=8192.
    ranking = pick(cells(), Request(1024, memory_gb=0.05))
    assert "more than the limit of 0.05 GiB" in reason(ranking, "full_naive")
    ranking = pick(cells(), Request(8192, memory_gb=2))
    assert "extrapolated" in reason(ranking, "full_naive")
    assert place(ranking, "full")


def test_unknown_memory_does_not_pass_a_limit() -> None:
    records = [cost("full"), cost("performer", peak=None)]
    assert "unknown" in reason(pick(records, Request(1024, memory_gb=4)), "performer")
    assert place(pick(records, Request(1024)), "performer").memory_bytes is None


def test_the_time_limit_is_hard() -> None:
    records = pair(1.0, 5.0)
    ranking = pick(records, Request(1024, time_ms=3))
    full = next(record for record in records if record.contestant == "full")
    assert f"takes {full.result['median_ms']:.3g} ms" in reason(ranking, "full")
    assert "limit of 3 ms" in reason(ranking, "full")
    assert "full is ruled out" in ranking.verdict


def test_limits_must_be_positive_and_fields_valid() -> None:
    with pytest.raises(ValueError, match="memory_gb=0"):
        Request(1024, memory_gb=0)
    with pytest.raises(ValueError, match="pattern"):
        Request(1024, pattern="sideways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="length=0"):
        Request(0)


def test_accuracy_stands_beside_the_ranking_with_its_price() -> None:
    records = cells() + scores()
    ranking = pick(records, Request(1024, pattern="causal_self"))
    (evidence,) = place(ranking, "performer").accuracy
    assert evidence.task == "mqar"
    assert evidence.score.value is not None
    assert evidence.score.value.encloses(0.9)
    assert evidence.score.price is not None
    assert evidence.score.price.encloses(0.07)
    assert "Price on mqar: accuracy worse than full's by" in ranking.verdict
    assert "Nothing faster than full comes without" in ranking.verdict
    assert place(pick(records, Request(1024)), "performer").accuracy == ()


def test_the_fastest_without_a_loss_is_named() -> None:
    values = {"full": 0.9, "shifted_window": 0.2, "local_window": 0.2, "performer": 0.9}
    records = cells() + scores(values, spread=0.001)
    ranking = pick(records, Request(1024, pattern="causal_self"))
    assert "fastest without a shown loss is performer" in ranking.verdict


def test_other_options_in_training_are_pointed_out() -> None:
    options = {"window": 8, "global_tokens": 0}
    records = cells() + scores({"full": 0.9})
    records += scores({"local_window": 0.2}, options=options)
    ranking = pick(records, Request(1024, pattern="causal_self"))
    assert place(ranking, "local_window").accuracy[0].note == "trained with window=8"


def test_machines_and_threads_are_not_mixed() -> None:
    other = {**ENVIRONMENT, "cpu": "Slow CPU", "device_name": "Slow CPU"}
    records = cells((256, 512)) + cells((1024,), ("full",), environment=other)
    ranking = pick(records, Request(512))
    assert len(ranking.choices) == 6
    assert any("Slow CPU" in note for note in ranking.notes)
    only = pick(records, Request(1024, machine="Slow CPU"))
    assert [choice.contestant for choice in only.choices] == ["full"]


def test_another_number_of_keys_is_extrapolated() -> None:
    records = [
        cost("full", n, pattern="noncausal_cross", key_length=77) for n in (256, 512, 1024, 2048)
    ]
    found = pick(records, Request(1024, pattern="noncausal_cross", key_length=77))
    assert found.choices[0].measured
    (guess,) = pick(records, Request(1024, pattern="noncausal_cross")).choices
    assert guess.evidence == "extrapolated"
    assert "keys per query" in str(guess.fit)
    with pytest.raises(NothingMeasured, match="pattern"):
        pick(records, Request(1024))


def test_nothing_measured_says_what_there_is_and_how_to_measure() -> None:
    with pytest.raises(NothingMeasured) as caught:
        pick(cells(), Request(1024, batch=7, dtype="bfloat16"))
    text = str(caught.value)
    assert "batch 7" in text
    assert "256, 512, 1024, 2048" in text
    assert "differs in: dtype" in text
    assert "efficient-attn sweep 'attention=[full,full_naive,linformer" in text
    assert "workload.batch=7" in text
    assert "workload.dtype=bfloat16" in text
    with pytest.raises(NothingMeasured, match="no cost measurement"):
        pick(scores(), Request(1024))


def test_the_command_carries_the_whole_request() -> None:
    ranking = pick(pair(0.5, 1.0, batch=3, threads=2), Request(1024, batch=3, threads=2))
    for part in (
        "'attention=[full,performer]'",
        "workload.length=1024",
        "workload.batch=3",
        "workload.threads=2",
        "workload.pass=forward",
        "workload.pattern=noncausal_self",
    ):
        assert part in ranking.command


def test_two_option_sets_are_two_choices_and_the_command_repeats_them() -> None:
    records = [
        cost("full", median=5.0),
        cost("local_window", median=1.0, options={"window": [8, 8], "global_tokens": 0}),
        cost("local_window", median=2.0, options={"window": [64, 64], "global_tokens": 0}),
    ]
    ranking = pick(records, Request(1024))
    assert [choice.contestant for choice in ranking.choices] == [
        "local_window (window=[8,8])",
        "local_window (window=[64,64])",
        "full",
    ]
    assert "'attention.local_window.window=[" in ranking.command


@pytest.mark.parametrize("name", [*OPTIONS, "own_variant"])
@pytest.mark.parametrize("pattern", ["noncausal_self", "causal_self", "noncausal_cross"])
def test_snippets_are_complete_python(name: str, pattern: str) -> None:
    records = [cost(name, pattern=pattern, device="cuda", dtype="bfloat16", padding=0.25)]
    request = Request(
        1024,
        pattern=pattern,  # type: ignore[arg-type]
        device="cuda",
        dtype="bfloat16",
        padding=0.25,
    )
    code = pick(records, request).choices[0].snippet
    compile(code, "snippet", "exec")
    assert ("is_causal=True" in code) == (pattern == "causal_self")
    assert ("memory, memory" in code) == (pattern == "noncausal_cross")
    assert code.count('device="cuda", dtype=torch.bfloat16') >= 1
    assert "embed_dim=512" in code


RUNNABLE = [
    (name, pattern, weights)
    for name in OPTIONS
    for pattern in ("noncausal_self", "causal_self", "noncausal_cross")
    for weights in (False, True)
    if (name, pattern) not in {("linformer", "causal_self"), ("shifted_window", "noncausal_cross")}
]


@pytest.mark.parametrize(("name", "pattern", "weights"), RUNNABLE)
def test_snippets_run_as_printed(name: str, pattern: str, weights: bool) -> None:
    # 300 is not among the lengths that the options were read back from (max_len 1024).
    shape = {"heads": 2, "head_dim": 8, "batch": 2, "padding": 0.25}
    records = [cost(name, n, pattern=pattern, **shape) for n in (1024, 2048, 4096)]
    request = Request(5000 if name == "linformer" else 300, pattern=pattern, **shape)  # type: ignore[arg-type]
    scope: dict = {}
    exec(pick(records, request).choices[0].snippet, scope)
    assert scope["output"].shape == (2, request.length, 16)


def test_weights_are_asked_of_the_registry() -> None:
    ranking = pick([cost("full"), cost("stranger")], Request(1024, need_weights=True))
    assert [choice.contestant for choice in ranking.choices] == ["full"]
    assert "not installed" in reason(ranking, "stranger")
    assert "need_weights=True" in ranking.choices[0].snippet
    assert any("without returning the weights" in note for note in ranking.notes)


def test_the_answer_is_plain_data() -> None:
    ranking = pick(cells() + scores(seeds=1), Request(700, pattern="causal_self"))
    values = json.loads(json.dumps(ranking.to_dict(), allow_nan=False))
    assert values["request"]["pass"] == "forward"
    assert values["choices"][0]["evidence"] == "interpolated"
    assert values["choices"][0]["time"]["low"] > 0


def test_a_thousand_records_take_less_than_two_seconds_of_work() -> None:
    lengths = [64 * i for i in range(1, 43)]
    records = cells(lengths)
    assert len(records) >= 1000
    start = time.process_time()
    pick(records, Request(5000))
    pick(records, Request(1024))
    assert time.process_time() - start < 2.0


def test_judging_needs_no_torch() -> None:
    modules = "analysis.pick, efficient_attn.analysis.report_text, efficient_attn.analysis.tables"
    code = (
        f"import sys, efficient_attn.{modules}, efficient_attn.plots.render;"
        "sys.exit('torch' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
