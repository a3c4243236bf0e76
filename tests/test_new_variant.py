"""A variant of the person's own: two files, a package, and every command knows it."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attn import cli

COMMAND = [sys.executable, "-m", "efficient_attn.cli"]
QUICK = (
    "measure.min_rounds=6",
    "measure.max_rounds=6",
    "measure.warm_up_s=0.01",
    "measure.warm_up_max_s=0.02",
    "workload.threads=1",
)


def run(folder, *words, **environment):
    return subprocess.run(
        [*COMMAND, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def contestants(results):
    """Names that the report page holds."""
    page = (results / "report.html").read_text()
    held = re.search(r'<script id="data" type="[^"]+">([^<]+)</script>', page)
    return gzip.decompress(base64.b64decode(held[1])).decode()


def test_two_files_and_every_command_knows_it(tmp_path):
    made = run(tmp_path, "new-variant", "my_attention")
    assert made.returncode == 0, made.stderr
    files = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert files == ["conf/attention/my_attention.yaml", "my_attention.py"]
    checked = run(tmp_path, "check", "my_attention:MyAttention")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    swept = run(
        tmp_path,
        "sweep",
        "attention=[full,my_attention]",
        "attention.my_attention.sharpness=1.0,2.0",
        "workload.length=64,128,256",
        "results=mine",
        *QUICK,
    )
    assert swept.returncode == 0, swept.stdout + swept.stderr
    assert "my_attention" in swept.stdout
    assert run(tmp_path, "plot", "mine", "--format", "svg").returncode == 0
    assert run(tmp_path, "report", "mine").returncode == 0
    assert "my_attention" in contestants(tmp_path / "mine")
    picked = run(tmp_path, "pick", "--length", "256", "--from", "mine", "--json", "--threads", "1")
    assert picked.returncode == 0, picked.stderr
    names = json.dumps(json.loads(picked.stdout))
    assert "my_attention" in names


def test_an_option_that_is_unknown_or_wrong_is_refused(tmp_path):
    run(tmp_path, "new-variant", "mine")
    wrong = run(tmp_path, "sweep", "--dry-run", "attention=[mine]", "attention.mine.sharp=1")
    assert wrong.returncode == 2
    assert "sharpness" in wrong.stderr
    wrong = run(tmp_path, "sweep", "--dry-run", "attention=[mine]", "attention.mine.sharpness=-1")
    assert wrong.returncode == 2
    assert "above 0" in wrong.stderr


@pytest.mark.parametrize("name", ["full", "My", "a-b", "class", "9lives"])
def test_names_that_cannot_be(name, tmp_path, capsys):
    assert cli.main(["new-variant", name, "--folder", str(tmp_path)]) == 2
    assert capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path, capsys):
    assert cli.main(["new-variant", "mine", "--folder", str(tmp_path)]) == 0
    (tmp_path / "mine.py").write_text("precious")
    assert cli.main(["new-variant", "mine", "--folder", str(tmp_path)]) == 2
    assert (tmp_path / "mine.py").read_text() == "precious"
    assert "exists" in capsys.readouterr().err


def test_an_installed_package(tmp_path):
    """As pip leaves it: a module, and metadata with the entry point."""
    site = tmp_path / "site"
    cli.main(["new-variant", "toy_attention", "--folder", str(site)])
    meta = site / "toy_attention-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-attention\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(
        "[efficient_attn.variants]\ntoy_attention = toy_attention\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    assert "toy_attention" in run(elsewhere, "list", PYTHONPATH=path).stdout
    assert run(elsewhere, "check", "toy_attention", PYTHONPATH=path).returncode == 0
    swept = run(
        elsewhere,
        "sweep",
        "attention=[full,toy_attention]",
        "workload.length=64,128",
        "results=toy",
        *QUICK,
        PYTHONPATH=path,
    )
    assert swept.returncode == 0, swept.stdout + swept.stderr
    assert run(elsewhere, "report", "toy", PYTHONPATH=path).returncode == 0
    assert "toy_attention" in contestants(elsewhere / "toy")
    picked = run(
        elsewhere,
        *("pick", "--length", "128", "--from", "toy", "--json", "--threads", "1"),
        PYTHONPATH=path,
    )
    assert picked.returncode == 0
    assert "toy_attention" in picked.stdout


def test_the_working_directory_of_this_project_adds_nothing():
    root = Path(__file__).parents[1]
    dry = run(root, "sweep", "--dry-run", "attention=[full]", "workload.length=64")
    assert dry.returncode == 0, dry.stderr
