"""Shell completion: what a shell is told when it asks, by argcomplete's protocol."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(not find_spec("argcomplete"), reason="argcomplete is not installed")

SCRIPT = """
import sys
from efficient_attn.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


def completions(line):
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": "told",
        "COMP_TYPE": "9",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert "AssertionError" not in done.stderr
    with open("told") as told:
        return set(told.read().split("\n"))


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("sw", {"sweep"}),
        ("sweep --d", {"--dry-run"}),
        ("sweep --only f", {"failed"}),
        ("sweep workload.le", {"workload.length="}),
        ("sweep task=mq", {"task=mqar", "task=mqar_short"}),
        ("sweep attention.performer.num", {"attention.performer.num_features="}),
        ("sweep +experiment=smo", {"+experiment=smoke"}),
        (
            "sweep --dry-run task=mqar hydra/launcher=sub",
            {"hydra/launcher=submitit_local", "hydra/launcher=submitit_slurm"},
        ),
        ("sweep attention=[full,lo", {"attention=[full,local_window"}),
    ],
)
def test_a_line_goes_on(typed, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {word.replace("\\", "").strip() for word in completions(f"efficient-attn {typed}")}
    assert found == told
