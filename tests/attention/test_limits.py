"""Where an approximation must meet what it approximates."""

import math

import pytest
import torch
from torch.testing import assert_close

import efficient_attn as ea
from efficient_attn.attention.variants.performer import orthogonal_features

from .conftest import D, qkv


@pytest.mark.parametrize("share", ["none", "heads", "kv", "layers"])
def test_linformer_that_projects_nothing_is_full_attention(share: str) -> None:
    """k = N and E = F = I: equation 7 of the paper becomes softmax attention."""
    N = 12
    q, k, v = qkv(N)
    identity = torch.eye(N, dtype=torch.float64).expand(2 if share == "none" else 1, N, N)
    out = ea.attention(
        q,
        k,
        v,
        variant="linformer",
        k=N,
        share=share,
        max_len=N,
        parameters={"E": identity, "F": identity},
    )
    assert_close(out, ea.attention(q, k, v), rtol=1e-12, atol=1e-12)


def kernel_estimates(R: int, seeds: int) -> tuple[torch.Tensor, torch.Tensor]:
    """φ(q)·φ(k) for each seed [seeds, pairs], and exp(q·k/√d) [pairs]."""
    q, k, _ = (x.flatten(0, 2) for x in qkv(8, spread=0.25))
    scaled = [x * D**-0.25 for x in (q, k)]

    def phi(x: torch.Tensor, seed: int) -> torch.Tensor:
        features = orthogonal_features(R, D, seed)
        return (x @ features.T - x.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(R)

    drawn = [(phi(scaled[0], s) * phi(scaled[1], s)).sum(-1) for s in range(seeds)]
    return torch.stack(drawn), ((q * k).sum(-1) / math.sqrt(D)).exp()


def test_the_kernel_estimate_of_performer_is_unbiased_over_seeds() -> None:
    """The mean over seeds lies within four standard errors of the kernel, for every pair."""
    drawn, truth = kernel_estimates(16, seeds=800)
    standard_error = drawn.std(0) / math.sqrt(len(drawn))
    assert ((drawn.mean(0) - truth).abs() <= 4 * standard_error).all()
    assert (standard_error < 0.05 * truth).all()


@pytest.mark.parametrize("R", [16, 64])
def test_the_error_of_performer_falls_with_the_root_of_the_features(R: int) -> None:
    """Sixteen times the features, a quarter of the error (orthogonality helps a little more)."""

    def error(features: int) -> float:
        drawn, truth = kernel_estimates(features, seeds=200)
        return float(((drawn - truth) / truth).square().mean().sqrt())

    assert error(R) / error(16 * R) == pytest.approx(4.0, rel=0.15)
