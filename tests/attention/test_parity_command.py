"""The parity table's own command: every reference compared, and every difference allowed."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return runpy.run_path(str(BENCHMARKS / "parity.py"))


def test_every_reference_is_within_the_tolerance(
    script: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed: BERT, Swin and Longformer are not compared")
    main: Callable[..., int] = script["main"]
    code = main(["--json"])
    rows = json.loads(capsys.readouterr().out)
    assert code == 0, [row for row in rows if not row["ok"]]
    for reference in (
        "nn.MultiheadAttention",
        "nn.TransformerEncoderLayer",
        "nn.TransformerDecoder,",
        "nn.Transformer,",
        "BertModel",
        "Swin",
        "Longformer",
    ):
        assert any(row["module"].startswith(reference) for row in rows), reference


def test_a_difference_is_seen(script: dict[str, Any]) -> None:
    """A comparison that could not fail would prove nothing."""
    from peers.comparison import compare, tokens

    theirs, ours = nn.Linear(32, 8), nn.Linear(32, 8)
    ours.load_state_dict(theirs.state_dict())
    assert compare("linear", "same", theirs, ours, tokens(5)).ok
    with torch.no_grad():
        ours.bias[0] += 1e-4
    row = compare("linear", "moved", theirs, ours, tokens(5))
    assert not row.ok
    assert row.evaluated == pytest.approx(1e-4, rel=1e-2)
    assert "DIFFERENT" in _printed(script["table"]([row]))


def test_nan_and_missing_are_infinite_differences(script: dict[str, Any]) -> None:
    from peers.comparison import largest

    one = torch.ones(2)
    assert largest([one], [one * float("nan")]) == float("inf")
    assert largest([one], [None]) == float("inf")
    assert largest([one], [torch.ones(3)]) == float("inf")
    assert largest([one, None], [one, None]) == 0.0


def _printed(table: Any) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()
