"""Positions added to embeddings."""

import math
from itertools import accumulate

import pytest
import torch

from efficient_attn.nn import LearnedPositions, SinusoidalPositions, make_positions


@pytest.mark.parametrize("dim", [6, 7])
def test_sinusoids_are_the_papers(dim: int) -> None:
    got = SinusoidalPositions(5, dim)(torch.zeros(1, 5, dim))[0]
    for n in range(5):
        for i in range(dim):
            angle = n / 10000 ** ((i - i % 2) / dim)
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            assert got[n, i].item() == pytest.approx(expected, abs=1e-5)


def test_sinusoids_reach_beyond_max_len_and_stay_out_of_checkpoints() -> None:
    short, long = SinusoidalPositions(4, 8), SinusoidalPositions(40, 8)
    x = torch.randn(2, 30, 8)
    torch.testing.assert_close(short(x), long(x))
    assert not short.state_dict()


def test_learned_positions_refuse_longer_inputs() -> None:
    positions = LearnedPositions(4, 8)
    assert positions(torch.zeros(2, 3, 8)).shape == (2, 3, 8)
    with pytest.raises(ValueError, match=r"5 tokens.*max_len=5"):
        positions(torch.zeros(2, 5, 8))


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "none"])
@pytest.mark.parametrize("sizes", [[0, 12], [1, 11], [3, 2, 7], [8, 4]], ids=str)
def test_pieces_from_a_start_are_the_whole(kind: str, sizes: list[int]) -> None:
    """Rows kept ready and rows beyond them alike: 8 of the sinusoids are kept, 12 are asked for."""
    positions = make_positions(kind, 12 if kind == "learned" else 8, 6)
    x = torch.randn(2, 12, 6)
    starts = accumulate(sizes, initial=0)
    pieces = [
        positions(piece, start=start)
        for piece, start in zip(x.split(sizes, 1), starts, strict=False)
    ]
    torch.testing.assert_close(torch.cat(pieces, 1), positions(x), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_positions_before_the_first_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="start=-1"):
        make_positions(kind, 4, 8)(torch.zeros(1, 2, 8), start=-1)


def test_learned_positions_end_where_they_were_trained() -> None:
    positions = make_positions("learned", 4, 8)
    assert positions(torch.zeros(1, 2, 8), start=2).shape == (1, 2, 8)
    with pytest.raises(ValueError, match=r"5 tokens.*max_len=5"):
        positions(torch.zeros(1, 2, 8), start=3)


def test_kinds() -> None:
    x = torch.randn(2, 3, 8)
    assert torch.equal(make_positions("none", 4, 8)(x), x)
    with pytest.raises(ValueError, match="sinusoidal, learned, none"):
        make_positions("rotary", 4, 8)
