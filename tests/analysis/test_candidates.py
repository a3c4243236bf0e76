"""Which options are judged, and what counts as softmax attention itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import cells, cost

import efficient_attn as ea
from efficient_attn.analysis.knobs import grid_values, is_exact, knob, scored, with_knob
from efficient_attn.analysis.pick import Request, pick
from efficient_attn.attention.arithmetic import attention_flops
from efficient_attn.attention.functional import make_core
from efficient_attn.bench.record import Record
from efficient_attn.bench.workload import Workload

MIB = 2**20


def windows(widths: tuple[int, ...], most: int = 64) -> list[Record]:
    """full, and windows at four lengths: `most` in every pass, the others in one length more."""
    records = cells(contestants=("full",))
    for width in widths:
        lengths = (256, 512, 1024, 2048) if width == most else (256, 512, 2048)
        for one in cells(lengths, contestants=("local_window",)):
            scale = 1 + width / 64
            result = {
                **one.result,
                "samples_ms": [ms * scale for ms in one.result["samples_ms"]],
                "peak_tensor_bytes": one.request["length"] * width * 1024,
            }
            options = {"window": width, "global_tokens": 0}
            records.append(replace(one, options=options, result=result, key=f"{one.key}{width}"))
    return records


def window_of(request: Request, records: list[Record]) -> list[tuple[Any, str]]:
    return [
        (choice.options["window"], choice.evidence)
        for choice in pick(records, request).choices
        if choice.variant == "local_window"
    ]


def test_the_usual_value_is_predicted_where_none_was_measured() -> None:
    records = windows((16, 64, 200))
    assert window_of(Request(1500), records) == [(64, "interpolated")]
    assert window_of(Request(1024), records) == [(64, "measured")]
    assert sorted(window_of(Request(2048), records)) == [
        (16, "measured"),
        (64, "measured"),
        (200, "measured"),
    ]


def test_a_limit_takes_the_largest_power_of_two_that_fits() -> None:
    # A window of 64 needs 1500 · 64 KiB = 94 MiB.
    request = Request(1500, memory_gb=60 / 1024)
    assert window_of(request, windows((16, 64, 200))) == [(32, "interpolated")]
    assert window_of(Request(1500, memory_gb=10 / 1024), windows((16, 64, 200))) == []


def test_the_command_and_the_choice_carry_the_knob() -> None:
    ranking = pick(windows((16, 64, 200)), Request(1500, memory_gb=60 / 1024))
    choice = next(one for one in ranking.choices if one.variant == "local_window")
    assert "attention.local_window.window=32" in choice.overrides
    assert "'attention.local_window.window=32'" in ranking.command
    both = pick(windows((16, 64, 200)), Request(2048)).command
    assert "'attention.local_window.window=16,64,200'" in both


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("full", {"implementation": "naive"}),
        *(("local_window", {"window": w, "global_tokens": 0}) for w in (0, 5, 10, 11, 40)),
        *(("local_window", {"window": (a, b), "global_tokens": 0}) for a, b in ((11, 3), (3, 11))),
        *(
            ("shifted_window", {"window": w, "shift": s, "grid": None, "relative_bias": False})
            for w, s in ((4, 0), (11, 0), (12, 0), (12, 6), (30, 3))
        ),
    ],
)
def test_exact_is_what_equals_softmax_attention(
    variant: str, options: dict[str, Any], causal: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 12, 4, generator=generator) for _ in range(3))
    mine = ea.attention(q, k, v, variant=variant, is_causal=causal, **options)
    full = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    same = torch.allclose(mine, full, atol=1e-5)
    assert is_exact(variant, options, 12, 12, causal=causal) == same


def test_exact_only_leaves_windows_that_see_everything() -> None:
    records = [
        cost("full", median=5.0),
        cost("performer", median=1.0),
        cost("local_window", median=2.0, options={"window": 1023, "global_tokens": 0}),
        cost("local_window", median=1.5, options={"window": 64, "global_tokens": 0}),
    ]
    ranking = pick(records, Request(1024, exact_only=True))
    assert [one.contestant for one in ranking.choices] == ["local_window (window=1023)", "full"]
    reasons = {one.contestant: one.reason for one in ranking.rejections}
    assert "softmax" in reasons["performer"]
    assert "softmax" in reasons["local_window (window=64)"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 3, (2, 5), 40])
def test_the_knob_of_a_window_is_the_most_keys_that_a_query_sees(
    window: int | tuple[int, int], causal: bool
) -> None:
    core = ea.attention.registry.variant_class("local_window")  # type: ignore[attr-defined]
    options = {"window": window, "global_tokens": 0}
    keep = core(4, 2, core.Options(**options)).visible(20, 20, torch.device("cpu"), causal=causal)
    if causal:
        keep = keep.tril()
    most = int(keep.sum(-1).max())
    assert knob("local_window", options, 20, 20, causal=causal) == most


@given(
    length=st.integers(1, 1200),
    window=st.integers(0, 300),
    one_sided=st.booleans(),
    causal=st.booleans(),
    backward=st.booleans(),
    variant=st.sampled_from(["local_window", "shifted_window"]),
)
@settings(max_examples=200, deadline=None)
def test_the_keys_that_a_window_scores_are_those_of_its_flops(
    length: int, window: int, one_sided: bool, causal: bool, backward: bool, variant: str
) -> None:
    if variant == "local_window":
        options: dict[str, Any] = {"window": [window, 0] if one_sided else window}
    else:
        options = {"window": window + 1, "shift": 0}
    core = make_core(variant, 4, 8, **options)
    work = Workload(
        length=length,
        pattern="causal_self" if causal else "noncausal_self",
        pass_="forward_backward" if backward else "forward",
    )
    told = scored(variant, core.options.__dict__, work)
    flops = core.flops(1, length, length, causal=causal, backward=backward)
    whole = attention_flops(4 * length * length, 8, backward=backward)
    if told == length:
        assert flops <= whole
        assert variant == "shifted_window" or flops == whole
    else:
        share = flops / whole * length / told  # the ends of a sequence score less, a rest more
        assert 0.5 < share < 1.6


def test_a_step_scores_what_its_cache_holds() -> None:
    options = {"window": 16, "global_tokens": 0}
    work = Workload(length=100, pattern="causal_self", pass_="decode")
    assert scored("local_window", options, work) == 17


def test_other_knobs_are_read_and_set() -> None:
    assert knob("linformer", {"k": 64}, 32, 32, causal=False) == 64
    assert knob("performer", {"num_features": 7}, 32, 32, causal=False) == 7
    assert knob("shifted_window", {"window": [4, 4]}, 64, 64, causal=False) == 16
    assert knob("full", {}, 32, 32, causal=False) == 1
    assert with_knob("local_window", {"window": [8, 0]}, 16) == {"window": [16, 0]}
    assert with_knob("performer", {"num_features": 8, "seed": 1}, 16)["num_features"] == 16
    assert grid_values(16, 200) == [16, 32, 64, 128]
    assert grid_values(17, 64) == [32, 64]
