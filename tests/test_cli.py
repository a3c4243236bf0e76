"""The command: words, help without heavy imports, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from synthetic import cells, scores

import efficient_attn as ea
from efficient_attn.bench.store import Store
from efficient_attn.cli import main

WORDS = (
    "list",
    "describe",
    "check",
    "show",
    "sweep",
    "plot",
    "report",
    "pick",
    "compare",
    "export",
    "merge",
    "fit",
    "doctor",
)
CONF = Path(__file__).parents[1] / "conf"


@pytest.mark.parametrize("words", [[], *([word] for word in WORDS)])
def test_help_loads_nothing_heavy(words):
    script = (
        "import sys\n"
        "from efficient_attn.cli import main\n"
        "try:\n"
        f"    main({[*words, '--help']!r})\n"
        "except SystemExit as stop:\n"
        "    assert stop.code == 0\n"
        "heavy = {'torch', 'hydra', 'pandas', 'matplotlib', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "example" in done.stdout


def test_importing_the_package_loads_torch_and_einops_only():
    script = (
        "import sys, efficient_attn\n"
        "assert 'torch' not in sys.modules\n"
        "efficient_attn.list_variants()\n"
        "heavy = {'hydra', 'pandas', 'matplotlib', 'scipy', 'rich', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_list_and_describe_speak_of_every_variant(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ea.list_variants())
    assert main(["list", "--causal", "--cross", "--json"]) == 0
    listed = [spec["name"] for spec in json.loads(capsys.readouterr().out)]
    assert listed == ea.list_variants(causal=True, cross=True)
    for name in ea.list_variants():
        assert main(["describe", name]) == 0
        out = capsys.readouterr().out
        assert all(option in out for option in ea.describe(name).options)
        assert main(["describe", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["name"] == name


def test_the_line_that_describe_ends_with_runs(capsys):
    for name in ea.list_variants():
        assert main(["describe", name]) == 0
        line = capsys.readouterr().out.strip().splitlines()[-1]
        assert isinstance(eval(line, {"ea": ea}), ea.MultiHeadAttention)


def test_unknown_names_end_with_two_and_the_alternatives(capsys):
    assert main(["describe", "performr"]) == 2
    err = capsys.readouterr().err
    assert "did you mean 'performer'" in err
    assert "local_window" in err
    assert main(["pick", "--length", "64", "--from", "nowhere"]) == 2
    assert "sweep" in capsys.readouterr().err
    assert main([]) == 2


def test_doctor_prints_facts_as_json(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["torch"]
    assert found["problems"] == []


def test_pick_and_plot_read_a_results_folder(tmp_path, capsys):
    for record in [*cells((256, 512, 1024)), *scores()]:
        Store(tmp_path).write(record)
    assert main(["pick", "--length", "1024", "--from", str(tmp_path)]) == 0
    assert "ea.MultiHeadAttention(" in capsys.readouterr().out
    assert main(["pick", "--length", "1024", "--from", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["choices"]
    assert main(["pick", "--length", "1024", "--from", str(tmp_path), "--milliseconds", "1e-9"])
    capsys.readouterr()
    assert main(["plot", str(tmp_path), "--format", "svg"]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written
    assert all(path.suffix == ".svg" and path.stat().st_size for path in written)


@pytest.mark.parametrize(
    "path",
    [path for path in sorted((CONF / "attention").glob("*.yaml")) if "peer_" not in path.stem],
    ids=lambda p: p.stem,
)
def test_each_contestant_file_states_every_option(path):
    entry = yaml.safe_load(path.read_text())
    options = dict(ea.describe(entry.pop("variant")).options)
    assert set(entry) == set(options)
    assert path.read_text().startswith(f"# @package attention.{path.stem}\n")
    if path.stem in ea.list_variants():
        assert entry == options, "the defaults of the file and of the code are one"


def test_each_variant_has_a_contestant_file():
    named = {yaml.safe_load(path.read_text())["variant"] for path in CONF.glob("attention/*.yaml")}
    assert {name for name in ea.list_variants() if not name.startswith("toy_")} <= named
