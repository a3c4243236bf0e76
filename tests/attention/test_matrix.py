"""The table of capabilities in the README is the one the registry gives."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

import efficient_attn as ea
from efficient_attn.commands.variants import list_command, matrix_lines

README = Path(__file__).parents[2] / "README.md"
MARKED = re.compile(r"<!-- matrix -->\n(.*?)\n<!-- /matrix -->", re.DOTALL)


def shipped() -> list[str]:
    """What ships, without the toys that other tests may have registered."""
    return [name for name in ea.list_variants() if not name.startswith("toy_")]


def test_the_readme_holds_the_generated_table() -> None:
    found = MARKED.search(README.read_text())
    assert found, "README.md lacks <!-- matrix --> ... <!-- /matrix -->"
    assert found[1].strip().splitlines() == matrix_lines(shipped()), (
        "paste the output of `efficient-attn list --matrix` between the marks"
    )


def cells(name: str) -> dict[str, str]:
    header, _, row = ([cell.strip() for cell in line.split("|")] for line in matrix_lines([name]))
    return dict(zip(header, row, strict=True))


@pytest.mark.parametrize("name", shipped())
def test_no_means_no(name: str) -> None:
    can = ea.describe(name).capabilities
    for heading, cell in cells(name).items():
        field = heading.replace(" ", "_")
        if hasattr(can, field):
            assert (cell == "no") == (not getattr(can, field)), heading


def test_conditions_are_named() -> None:
    assert cells("local_window")["noncausal cross"] == "equal lengths"
    assert cells("shifted_window")["causal self"] == "on a sequence"
    assert cells("full")["causal cross"] == "yes"


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    filters = dict.fromkeys(("causal", "cross", "weights", "decode", "exact"), False)
    arguments = argparse.Namespace(**filters, json=False, matrix=True)
    assert list_command(arguments) == 0
    assert capsys.readouterr().out.splitlines() == matrix_lines()
    arguments.causal = True
    assert list_command(arguments) == 0
    assert capsys.readouterr().out.splitlines() == matrix_lines(ea.list_variants(causal=True))
