"""What the terminal shows: complete names, failures by status, predictions marked."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from synthetic import ENVIRONMENT, accuracy, cells, cost, scores

from efficient_attn.analysis.pick import Request, pick
from efficient_attn.analysis.report_text import (
    closing_table,
    print_closing,
    print_ranking,
    print_samples,
    print_slopes,
)
from efficient_attn.analysis.terminal import number
from efficient_attn.bench.record import Record

LONG = "a_contestant_whose_name_is_so_long_that_tables_like_to_cut_it_short_somewhere"


def closing(records: list[Record]) -> str:
    out = io.StringIO()
    print_closing(records, out)
    return out.getvalue()


def row(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [name])


def test_plain_text_without_a_terminal_and_no_name_is_cut() -> None:
    text = closing(cells(contestants=("full", LONG)))
    assert LONG in text
    assert "\x1b" not in text
    assert "…" not in text


def test_a_narrow_terminal_folds_instead_of_cutting() -> None:
    out = io.StringIO()
    Console(file=out, width=60, force_terminal=True).print(
        closing_table(cells(contestants=("full", LONG)))
    )
    assert "…" not in out.getvalue()


def test_medians_stand_under_their_lengths_and_failures_show_their_status() -> None:
    records = cells((256, 512), patterns=("causal_self",), noise=0, passes=("forward",))
    records = [r for r in records if (r.contestant, r.request["length"]) != ("performer", 256)]
    records += [cost("performer", 1024, pattern="causal_self", status="oom", reason="full up")]
    records += [cost("full", 1024, pattern="causal_self", median=4.0, noise=0, noisy=True)]
    text = closing(records)
    assert row(text, "contestant") == ["contestant", "N=256", "N=512", "N=1024"]
    assert row(text, "performer")[1] == "·"
    assert row(text, "performer")[3] == "oom"
    assert row(text, "full")[3] == "~4.00"
    assert row(text, "linformer")[1:3] == ["unsupported", "unsupported"]
    assert "forward time, median ms" in text
    assert "forward peak memory, MiB" in text
    assert "full up" in text
    assert "linformer does not support causal self-attention" in text


def test_unknown_memory_is_not_zero() -> None:
    text = closing([cost("full", peak=1 << 20), cost("performer", peak=None)])
    memory = text[text.index("peak memory") :]
    assert row(memory, "performer")[1] == "unknown"
    assert row(memory, "full")[1] == "1.00"


def test_accuracy_shows_intervals_statuses_and_baselines() -> None:
    records = scores(baselines={"chance": 0.0156}, spread=0.01)
    records += [accuracy("lonely", 0, value=0.5), accuracy("half", 0, value=0.5)]
    records += [accuracy("half", 1, status="diverged", reason="loss not finite")]
    text = closing(records)
    assert "mqar" in text
    assert row(text, "full")[2] == "±"
    assert row(text, "linformer")[1] == "unsupported"
    assert "(1 seed)" in " ".join(row(text, "lonely"))
    assert "1 of 2 diverged" in " ".join(row(text, "half"))
    assert "loss not finite" in text
    assert "(chance)" in text


def test_slopes_name_the_class() -> None:
    out = io.StringIO()
    print_slopes(cells((128, 256, 512, 1024, 2048, 4096), noise=0.01), out)
    lines = out.getvalue().splitlines()
    naive = next(line for line in lines if "full_naive" in line and "forward memory" in line)
    assert "exact" in naive
    assert "n²" in naive
    full = next(line for line in lines if line.split()[:1] == ["full"] and "forward time" in line)
    assert "n²" in full
    local = next(line for line in lines if "local_window" in line and "forward time" in line)
    assert "overhead + n" in local


@pytest.mark.parametrize("records", [[], [cost()]], ids=["none", "one"])
def test_little_to_show_is_no_error(records: list[Record]) -> None:
    out = io.StringIO()
    print_closing(records, out)
    print_slopes(records, out)
    assert out.getvalue()


def test_a_ranking_prints_evidence_reasons_snippet_and_command() -> None:
    out = io.StringIO()
    records = cells() + scores()
    print_ranking(pick(records, Request(1024, pattern="causal_self")), out)
    text = out.getvalue()
    assert "≈" not in text
    assert "measured" in text
    assert "out: linformer" in text
    assert "import efficient_attn as ea" in text
    assert "  efficient-attn sweep 'attention=[" in text
    assert "0.0" not in row(text, "1")[0]


def test_a_predicted_ranking_is_marked_throughout() -> None:
    out = io.StringIO()
    ranking = pick(cells(), Request(9000))
    print_ranking(ranking, out)
    lines = out.getvalue().splitlines()
    table = [line for line in lines if line.split()[:1] and line.split()[0].strip("=").isdigit()]
    for choice in ranking.choices:
        line = next(line for line in table if f" {choice.contestant} " in line)
        assert line.count("≈") >= 2


def test_two_machines_are_named_in_their_titles() -> None:
    other = {**ENVIRONMENT, "device_name": "Slow CPU"}
    text = closing([cost(), cost(environment=other)])
    assert "core scope, Example CPU" in text
    assert "core scope, Slow CPU" in text


def test_names_are_not_read_as_markup() -> None:
    text = closing([cost("local_window", options={"window": 8}, median=1.0)])
    assert "local_window" in text
    both = closing([cost("x", options={"window": [8, 8]}), cost("x", options={"window": [9, 9]})])
    assert "x (window=[8,8])" in both


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.123"), (4.2, "4.20"), (186.4, "186"), (0, "0"), (12345, "12345")],
)
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_the_share_of_the_machines_limit_stands_beside_what_bounds_it() -> None:
    record = cost("full", 1024, samples=[10.0] * 8)
    result = {**record.result, "flops": 10**9, "traffic_bytes": 10**6}
    peak = {"flops_per_s": 2e11, "bytes_per_s": 1e10}  # 5 ms of arithmetic, 0.1 ms of memory
    known = replace(record, result=result, environment={**record.environment, "machine_peak": peak})
    assert "50% c" in closing([known])
    assert "machine's limit" not in closing([record])


def test_the_state_of_decoding_is_told() -> None:
    record = cost("full", 1024, pattern="causal_self", pass_="decode")
    known = replace(record, result={**record.result, "state_bytes": 3 * 2**20})
    said = closing([known])
    assert "decoding, per token state, MiB" in said
    assert row(said.split("state, MiB")[1], "full")[1] == number(3.0)


def test_details_of_a_task_stand_in_a_table_of_their_own() -> None:
    """Two seeds: their mean; a figure that one way of decoding lacks is absent."""
    records = []
    for seed, bleu in ((0, 10.0), (1, 12.0)):
        record = accuracy("full", seed)
        details = {"greedy": {"bleu": bleu, "ms": 5.0}, "beam search, 4": {"bleu": 13.0}}
        records.append(replace(record, result={**record.result, "details": details}))
    lines = closing(records).splitlines()
    assert any("test split in detail" in line for line in lines)
    assert ["full", "greedy", "11.000", "5.000"] in [line.split() for line in lines]
    assert ["full", "beam", "search,", "4", "13.000", "·"] in [line.split() for line in lines]
    assert "in detail" not in closing([accuracy("full")])


def test_ways_of_decoding_stand_by_number() -> None:
    record = accuracy("full")
    details = {f"mask-predict, {count}": {"bleu": 1.0} for count in (1, 10, 4)}
    text = closing([replace(record, result={**record.result, "details": details})])
    found = re.findall(r"mask-predict, (\d+)", text)
    assert found == ["1", "4", "10"]


def test_texts_are_told_once_for_each_contestant() -> None:
    records = [
        replace(record, result={**record.result, "sample": f"[{name}] {seed}"})
        for name in ("full", "performer")
        for seed in (0, 1)
        for record in [accuracy(name, seed=seed, task="byte_lm")]
    ]
    out = io.StringIO()
    print_samples([accuracy(), *records], out)
    text = out.getvalue()
    assert "--- byte_lm by full\n[full] 0\n" in text
    assert "--- byte_lm by performer\n[performer] 0\n" in text
    assert text.count("---") == 2
