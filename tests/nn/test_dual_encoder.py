"""Two inputs through one encoder."""

import pytest
import torch
from shipped import SHIPPED

from efficient_attn.nn import DualEncoder

SMALL = {"max_len": 12, "vocab_size": 20, "d_model": 16, "nhead": 2, "num_layers": 1}


@pytest.mark.parametrize("variant", SHIPPED)
def test_every_parameter_learns(variant: str) -> None:
    model = DualEncoder(2, variant=variant, **SMALL)
    out = model(torch.randint(20, (3, 9)), torch.randint(20, (3, 12)))
    assert out.shape == (3, 2)
    out.square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name


def test_padding_of_either_input_is_ignored() -> None:
    model = DualEncoder(2, **SMALL).eval()
    first, second = torch.randint(20, (2, 1, 12))
    padding = torch.arange(12)[None] >= 7
    expected = model(first[:, :7], second)
    torch.testing.assert_close(model(first, second, padding), expected)
    expected = model(first, second[:, :7])
    torch.testing.assert_close(model(first, second, None, padding), expected)


def test_what_is_compared() -> None:
    """[u, v, u·v, u − v] of Long Range Arena."""
    model = DualEncoder(2, **SMALL).eval()
    first, second = torch.randint(20, (2, 3, 12))
    u, v = model.encode(first), model.encode(second)
    model.compare = torch.nn.Identity()
    parts = model(first, second).chunk(4, -1)
    for found, expected in zip(parts, (u, v, u * v, u - v), strict=True):
        torch.testing.assert_close(found, expected)


def test_scores_are_cosines() -> None:
    model = DualEncoder(2, dim=5, **SMALL).eval()
    u, v = model.encode(torch.randint(20, (3, 8))), model.encode(torch.randint(20, (4, 12)))
    assert u.shape == (3, 5)
    expected = torch.cosine_similarity(u[:, None], v[None], dim=-1)
    torch.testing.assert_close(model.scores(u, v), expected)
