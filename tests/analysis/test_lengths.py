"""Distributions of lengths: read from every form of file, and answered by expectation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic import cells

from efficient_attn.analysis.lengths import MOST, joined, read_lengths
from efficient_attn.analysis.pick import Request, pick


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "# lengths\n256\n512\n256\n\n256\n"),
        ("a.tsv", "256\t3\n512\t1\n"),
        ("a.json", "[256, 512, 256, 256]"),
        ("a.json", "[[256, 3], [512, 1]]"),
        ("a.json", '{"256": 3, "512": 1}'),
    ],
)
def test_every_form_says_the_same(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_lengths(tmp_path / name) == ((256, 3.0), (512, 1.0))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.txt", "256\nmany\n", "line 2: 'many'"),
        ("a.txt", "256\t3\t4\n", "line 1"),
        ("a.txt", "0\n", "line 1: 0.0"),
        ("a.txt", "12.5\n", "line 1: 12.5"),
        ("a.txt", "256\t-1\n", "count above 0"),
        ("a.txt", "\n", "holds no lengths"),
        ("a.json", "{", "no JSON"),
        ("a.json", "3", "allowed are"),
        ("a.json", "[true]", "entry 0: True"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        read_lengths(tmp_path / name)


def test_many_lengths_are_joined_without_moving_total_mean_or_longest() -> None:
    lengths = np.random.default_rng(0).lognormal(6, 1, 5000).astype(int) + 1
    counts = {int(n): int((lengths == n).sum()) for n in np.unique(lengths)}
    found = joined(counts)
    assert len(found) <= MOST
    assert sum(count for _, count in found) == 5000
    assert max(n for n, _ in found) == lengths.max()
    mean = sum(n * count for n, count in found) / 5000
    assert mean == pytest.approx(lengths.mean(), rel=1e-3)
    assert [n for n, _ in found] == sorted(n for n, _ in found)


def test_times_are_expected_ones_and_memory_that_of_the_longest() -> None:
    records = cells()
    shares = ((256, 3.0), (2048, 1.0))
    ranking = pick(records, Request(2048, lengths=shares))
    full = next(one for one in ranking.choices if one.contestant == "full")
    assert full.measured
    alone = {n: pick(records, Request(n)).choices for n in (256, 2048)}
    times = {n: one.time for n, found in alone.items() for one in found if one.contestant == "full"}
    for end in ("value", "low", "high"):
        expected = 0.75 * getattr(times[256], end) + 0.25 * getattr(times[2048], end)
        assert getattr(full.time, end) == pytest.approx(expected)
    assert full.memory_bytes == 2048 * 2048
    assert "workload.length=256,2048" in ranking.command
    predicted = pick(records, Request(2048, lengths=((300, 1.0), (2048, 1.0)))).choices[0]
    assert predicted.evidence == "interpolated"


def test_the_longest_of_the_lengths_is_the_length() -> None:
    with pytest.raises(ValueError, match="longest"):
        Request(512, lengths=((256, 1.0), (1024, 1.0)))
    with pytest.raises(ValueError, match="key_length"):
        Request(512, key_length=7, lengths=((512, 1.0),))
