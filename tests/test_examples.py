"""Variants of one's own, as the how-to made them: against their paper's formula, and probed."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "examples" / "cosformer"

ORACLE = """
import math, sys, torch
import efficient_attn as ea
import cosformer
torch.manual_seed(0)
worst = 0.0
CASES = (7, 7, False), (300, 300, True), (5, 200, True), (200, 5, True), (9, 4, False)
for N, M, causal in CASES:
    q, k, v = torch.randn(2, 2, N, 8), torch.randn(2, 2, M, 8), torch.randn(2, 2, M, 6)
    core = cosformer.Cosformer(2, 8, cosformer.CosformerOptions(reach=300))
    found = core(q, k, v, ea.attention.AttentionMask(causal=causal))
    q, k, v = q.double(), k.double(), v.double()
    shift = M - N if causal else 0
    distance = torch.arange(N).double()[:, None] + shift - torch.arange(M).double()
    scores = q.relu() @ k.relu().transpose(-1, -2) * torch.cos(math.pi / 2 * distance / 300)
    if causal:
        scores = scores * (distance >= 0)
    sums = scores.sum(-1, keepdim=True)
    wanted = torch.where(sums > 1e-4, scores @ v / sums, 0.0)
    worst = max(worst, float(((found - wanted) * (sums > 1e-4)).abs().max()))
print(worst)
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def test_cosformer_is_the_formula_of_its_paper() -> None:
    found = run("-c", ORACLE)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < 1e-4


def test_cosformer_passes_every_probe() -> None:
    checked = run("-m", "efficient_attn.cli", "check", "cosformer:Cosformer")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "observed as declared" in checked.stdout
