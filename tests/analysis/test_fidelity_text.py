"""Closing tables of fidelity and of swaps."""

from __future__ import annotations

import io

import pytest
from synthetic import cells, fidelity, swap

from efficient_attn.analysis.report_text import print_closing
from efficient_attn.bench.record import Record


def closing(records: list[Record]) -> str:
    out = io.StringIO()
    print_closing(records, out)
    return out.getvalue()


def row(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [name])


def test_errors_stand_under_length_and_standard_deviation() -> None:
    records = [
        fidelity("performer", length, scale=scale, error=error, pattern="causal_self")
        for length, scale, error in ((256, 1.0, 0.61), (256, 0.5, 0.31), (1024, 1.0, 0.62))
    ]
    records += [fidelity("local_window", 256, error=0.2, reach=None, pattern="causal_self")]
    records += [fidelity("linformer", 256, pattern="causal_self", status="unsupported")]
    text = closing([*records, *cells((256,))])
    table = text[text.index("relative error to full") :]
    assert "causal self-attention, batch 1, 8 heads × 64, float32; 3 draws" in table
    assert row(table, "N=256") == ["N=256", "N=256", "N=1024"]
    assert row(table, "contestant")[1:] == ["std", "1", "std", "0.5", "std", "1"]
    cell = ["±", "0.0200"]
    assert row(table, "performer")[1:] == ["0.610", *cell, "0.310", *cell, "0.620", *cell]
    assert row(table, "local_window")[1:] == ["0.200", "(1", "draw)", "·", "·"]
    assert row(table, "linformer")[1:] == ["unsupported", "·", "·"]
    assert "causal self-attention, N=256" in table  # among the failures
    assert "ended with unsupported" in table


def test_other_workloads_have_tables_of_their_own() -> None:
    records = [fidelity(pattern=pattern) for pattern in ("causal_self", "noncausal_self")]
    records += [fidelity(padding=0.25)]
    text = closing(records)
    assert text.count("relative error to full") == 3
    assert "25% padding" in text


def test_option_sets_are_told_apart() -> None:
    records = [fidelity(length=n, options={"num_features": m}) for n in (64, 128) for m in (8, 16)]
    text = closing(records)
    assert "performer (num_features=8)" in text
    assert text.count("relative error to full") == 1


def test_a_swap_shows_what_it_costs_against_full_tuned_alike() -> None:
    records = []
    for seed, shift in ((0, 0.0), (1, 0.02)):
        records += [
            swap("full", seed, before=0.9, swapped=0.9, tuned=0.95 + shift, errors=(0.0, 0.0)),
            swap("performer", seed, before=0.9, swapped=0.3, tuned=0.85 + shift),
        ]
    records += [swap("local_window", 0, before=0.9, swapped=0.1, tuned=None)]
    records += [swap("linformer", 0, status="unsupported")]
    text = closing(records)
    assert "mqar, N=64: attention of a trained full model replaced" in text
    assert "accuracy ↑" in text
    # Student's interval of two values is 12.7 standard errors to either side.
    assert row(text, "performer")[1:] == [
        *("0.300", "0.300", "±", "0.000", "0.860", "±", f"{12.706 * 0.01:.3f}"),
        *("+0.100", "±", "0.000"),
    ]
    assert row(text, "full")[-1] == "·"
    assert row(text, "local_window")[1:] == ["0.300", "0.100", "(1", "seed)", "diverged", "·"]
    assert row(text, "linformer")[1:] == ["unsupported"]
    assert row(text, "(full,")[-1] == "0.900"
    assert row(text, "(chance)")[-1] == "0.030"
    assert "mqar, seed 0" in text


@pytest.mark.parametrize(("higher", "sign"), [(True, "+0.150"), (False, "-0.150")])
def test_loss_is_positive_where_it_is_worse(higher: bool, sign: str) -> None:
    records = [
        swap("full", tuned=0.95, higher_is_better=higher),
        swap("performer", tuned=0.80, higher_is_better=higher),
    ]
    assert row(closing(records), "performer")[-3] == sign


def test_without_a_fine_tune_there_are_no_columns_for_it() -> None:
    text = closing([swap("full", tuned=None, steps=0), swap("performer", tuned=None, steps=0)])
    assert row(text, "performer")[1:] == ["0.300", "0.300", "(1", "seed)"]
    assert "loss to full" not in text
