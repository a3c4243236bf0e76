"""benchmarks/decoding.py at small sizes."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "decoding.py"
SMALL = ["--d-model", "16", "--nhead", "2", "--layers", "1", "--rounds", "3"]


@pytest.fixture
def decoding() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_every_variant_after_every_context(
    decoding: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "--variants", "full,performer", "--contexts", "40,20", "--json"]
    assert decoding.main([*words, "--out", str(tmp_path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    points = {(point["variant"], point["context"]): point for point in answer["points"]}
    assert list(points) == [("full", 20), ("performer", 20), ("full", 40), ("performer", 40)]
    # Keys and values of 16 numbers each in fp32; the kernel's sums do not grow.
    assert points["full", 40]["state_bytes"] == 40 * 2 * 16 * 4
    assert points["performer", 40]["state_bytes"] == points["performer", 20]["state_bytes"]
    assert all(point["ms"]["value"] > 0 for point in points.values())
    assert answer["model"]["options"]["performer"]["num_features"] > 0
    assert {path.name for path in tmp_path.iterdir()} == {"decoding.svg", "decoding.png"}


def test_variants_that_cannot_decode_are_named(
    decoding: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        decoding.main(["--variants", "full,linformer"])
    assert "linformer" in capsys.readouterr().err
