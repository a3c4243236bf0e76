"""The list of mutations stays true: each still finds the one passage it breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from .mutants import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_mutation_finds_its_passage_once(mutation: Mutation) -> None:
    """Where this fails, code has moved: give the mutation the passage that took its place."""
    text = (ROOT / mutation.file).read_text()
    assert text.count(mutation.old) == 1
    assert mutation.old != mutation.new
    compile(text.replace(mutation.old, mutation.new), mutation.file, "exec")


def test_every_kind_is_broken_in_more_than_one_way() -> None:
    kinds = [mutation.kind for mutation in MUTATIONS]
    assert all(kinds.count(kind) >= 2 for kind in range(1, 15))
    assert set(kinds) == set(range(1, 15))


def test_no_mutation_stands_twice() -> None:
    assert len({str(mutation) for mutation in MUTATIONS}) == len(MUTATIONS)
