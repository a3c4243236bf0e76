"""Fidelity: distances from full attention, against the definition written out here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from efficient_attn.attention import AttentionMask, UnsupportedAttention, make_core
from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.fidelity import FidelitySubject, deviation, random_inputs
from efficient_attn.bench.fidelity_cell import FidelityCell
from efficient_attn.bench.intervals import mean_interval
from efficient_attn.bench.training import Diverged
from efficient_attn.bench.worker import Limits
from efficient_attn.bench.workload import Workload

SMALL = {"batch": 2, "heads": 3, "head_dim": 8, "length": 40, "threads": 1}
FULL = Contestant("full", "full", {})
WINDOW = Contestant("local_window", "local_window", {"window": 4})


def softmax_attention(q, k, v, seen):
    """In float64, from the formula. seen: bool [N, M]."""
    scores = np.einsum("bhnd,bhmd->bhnm", q, k) / np.sqrt(q.shape[-1])
    weights = np.where(seen, np.exp(scores), 0.0)
    return np.einsum("bhnm,bhmd->bhnd", weights / weights.sum(-1, keepdims=True), v)


def by_hand(workload: Workload, window: int, draw: int) -> tuple[float, float]:
    """Relative error and cosine of a causal window, mean over heads."""
    q, k, v = (x.double().numpy() for x in random_inputs(workload, 0.7, draw))
    i, j = np.indices((workload.length, workload.length))
    full = softmax_attention(q, k, v, j <= i)
    near = softmax_attention(q, k, v, (j <= i) & (j >= i - window))
    errors, cosines = [], []
    for head in range(workload.heads):
        a, b = near[:, head].ravel(), full[:, head].ravel()
        errors.append(np.linalg.norm(a - b) / np.linalg.norm(b))
        cosines.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    return float(np.mean(errors)), float(np.mean(cosines))


def run(cell: FidelityCell) -> dict:
    told: list[float] = []
    records = list(cell.run(cell.contestants, lambda share, _: told.append(share)))
    assert told == sorted(told)
    assert told[-1] == 1.0
    return {record.contestant: record for record in records}


def cell(*contestants: Contestant, draws: int = 3, scale: float = 0.7, **workload) -> FidelityCell:
    made = Workload(**{**SMALL, "pattern": "causal_self", **workload})
    return FidelityCell(contestants, Limits(8, 60), made, scale, draws)


def test_errors_are_the_definition() -> None:
    asked = cell(FULL, WINDOW)
    records = run(asked)
    window = records["local_window"]
    expected = [by_hand(asked.workload, 4, draw) for draw in range(3)]
    assert window.result["errors"] == pytest.approx([e for e, _ in expected], rel=1e-5)
    assert window.result["cosines"] == pytest.approx([c for _, c in expected], rel=1e-5)
    interval = mean_interval([error for error, _ in expected])
    assert window.result["relative_error"] == pytest.approx(interval.value, rel=1e-5)
    assert window.result["error_high"] == pytest.approx(interval.high, rel=1e-5)
    assert window.options["window"] == 4
    assert window.request["scale"] == 0.7
    assert "pass" not in window.request
    assert records["full"].result["relative_error"] < 1e-6
    assert records["full"].result["cosine"] == pytest.approx(1.0)


def test_random_tensors_have_the_scale_and_the_same_seed_the_same_values() -> None:
    workload = Workload(**{**SMALL, "length": 400})
    q, k, v = random_inputs(workload, 0.5, 1)
    assert q.std().item() == pytest.approx(0.5, rel=0.02)
    assert not torch.equal(q, k)
    again = random_inputs(workload, 0.5, 1)
    assert all(torch.equal(a, b) for a, b in zip((q, k, v), again, strict=True))
    assert not torch.equal(q, random_inputs(workload, 0.5, 2)[0])


def test_random_features_are_drawn_anew_and_more_of_them_are_closer() -> None:
    errors = {}
    for features in (16, 256):
        subject = FidelitySubject("performer", {"num_features": features}, cell().workload, 0.5, 4)
        errors[features] = subject.compare(lambda *_: None)["result"]["relative_error"]
        assert not torch.equal(subject._core(0).features, subject._core(1).features)
    assert errors[256] < errors[16] / 2


def test_the_published_error_of_favor_at_small_scale() -> None:
    """About 0.054 for d=64, 256 features, N=1024, causal, standard deviation 0.25."""
    workload = Workload(heads=2, head_dim=64, length=1024, pattern="causal_self", threads=1)
    subject = FidelitySubject("performer", {"num_features": 256}, workload, 0.25, 2)
    found = subject.compare(lambda *_: None)["result"]
    assert found["relative_error"] == pytest.approx(0.054, rel=0.2)


def test_padding_does_not_count_and_does_not_matter() -> None:
    q, k, v = random_inputs(Workload(**SMALL), 1.0, 0)
    exists = torch.arange(40).expand(2, -1) < 30
    core = make_core("local_window", 3, 8, window=3)
    padded = deviation(core, q, k, v, AttentionMask(False, exists), cross=False)
    cut = deviation(core, *(x[..., :30, :] for x in (q, k, v)), AttentionMask(), cross=False)
    assert padded.relative_error == pytest.approx(cut.relative_error, rel=1e-5)
    assert padded.cosine == pytest.approx(cut.cosine, rel=1e-5)


def test_what_is_not_supported_or_not_finite_is_said() -> None:
    q, k, v = random_inputs(Workload(**SMALL), 1.0, 0)
    linformer = make_core("linformer", 3, 8, k=4, max_len=40)
    with pytest.raises(UnsupportedAttention, match="linformer"):
        deviation(linformer, q, k, v, AttentionMask(True), cross=False)
    with pytest.raises(Diverged, match="NaN or infinite"):
        deviation(make_core("full", 3, 8), q, k, v * torch.inf, AttentionMask(), cross=False)
    crossed = run(cell(FULL, WINDOW, pattern="noncausal_cross", key_length=50, draws=1))
    assert crossed["local_window"].status == "unsupported"
    assert crossed["full"].result["error_high"] is None
    contradiction = run(cell(FULL, key_length=50))["full"]
    assert (contradiction.status, contradiction.result) == ("unsupported", {})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"scale": 0.0}, r"measure\.scale=0\.0"),
        ({"draws": 0}, r"measure\.draws=0"),
        ({"pass_": "decode"}, r"workload\.pass=decode.*workload\.pass=forward"),
        ({"compile": True}, r"leave workload\.compile=false"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused(changed, said) -> None:
    with pytest.raises(ValueError, match=said):
        cell(FULL, **changed)
