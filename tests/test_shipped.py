"""Tests of every variant are made for those that we ship: toys of other tests may kill or hang."""

import re
from pathlib import Path

import pytest

OVER_ALL = re.compile(r"parametrize\([^)\n]*,\s*[^)\n]*list_variants\(")


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.rglob("*.py")), ids=lambda p: p.stem)
def test_no_test_is_made_for_a_toy(path: Path) -> None:
    assert not OVER_ALL.findall(path.read_text(encoding="utf-8")), "ask tests/shipped.py for names"
