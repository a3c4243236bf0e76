"""What the README shows runs as shown."""

import re
from pathlib import Path

import efficient_attn as ea

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_of_the_readme_runs():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(block, names)
    assert names["logits"].shape == (2, 1000, 256)


def test_the_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\$ make ([a-z]+)", README)) <= targets


def test_the_table_of_variants_is_complete():
    assert set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == {
        name for name in ea.list_variants() if not name.startswith("toy_")
    }
