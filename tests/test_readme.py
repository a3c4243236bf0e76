"""What the README shows runs as shown."""

import importlib.util
import re
import sys
from pathlib import Path

from efficient_attn.analysis.accuracy import task_scores
from efficient_attn.analysis.terminal import MIB, number
from efficient_attn.bench.store import Store
from efficient_attn.peers.conform import verdicts

CONTESTANTS = (
    "full",
    "full_naive",
    "local_window",
    "linformer",
    "performer",
    "shifted_window",
)
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
_spec = importlib.util.spec_from_file_location("ahead", ROOT / "benchmarks/ahead.py")
ahead = importlib.util.module_from_spec(_spec)
sys.modules["ahead"] = ahead
_spec.loader.exec_module(ahead)


def test_the_python_of_the_readme_runs():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(block, names)
    assert names["logits"].shape == (2, 1000, 256)


def test_the_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\$ make ([a-z]+)", README)) <= targets


def test_the_quoted_numbers_are_those_of_the_reference_run():
    records = Store(ROOT / "results/demo-cpu").read()
    assert len(records) == 180
    for line in quoted_costs(records) + quoted_scores(records):
        assert line in README


def test_the_quoted_ratios_are_those_of_the_runs_beside_public_code():
    for name, dtype in (("peers-cpu", "float32"), ("peers-cpu-xeon", "bfloat16")):
        folder = ROOT / "results" / name
        records = [r for r in Store(folder).read() if r.request["dtype"] == dtype]
        rows = [row for row in ahead.compare(records, verdicts(folder, records)) if row.fastest]
        lines = ahead.markdown(rows, 4096)
        assert len(lines) > 20
        for line in lines:
            assert line in README


def quoted_costs(records):
    """Rows of the README's table of times and memory at N = 4096."""
    at = {
        (r.contestant, r.request["pattern"], r.request["pass"]): r
        for r in records
        if r.measure == "cost" and r.request["length"] == 4096
    }

    def time(*where):
        return number(at[where].result["median_ms"]) if at[where].ok else at[where].status

    rows = []
    for name in CONTESTANTS:
        training = at[name, "noncausal_self", "forward_backward"]
        cells = [
            time(name, "noncausal_self", "forward"),
            time(name, "noncausal_self", "forward_backward"),
            number(training.result["peak_tensor_bytes"] / MIB),
            time(name, "causal_self", "forward"),
            time(name, "causal_self", "forward_backward"),
        ]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return rows


def quoted_scores(records):
    """Rows of the README's table of scores."""
    tasks = {task.name: task for task in task_scores(records)}
    rows = []
    for name in CONTESTANTS:
        scores = [tasks[task].of(name) for task in ("digits", "digits_grid", "mqar", "byte_lm")]
        if all(scores):
            cells = [
                f"{s.value.value:.3f} ± {s.value.high - s.value.value:.3f}" if s.value else s.status
                for s in scores
            ]
            rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return rows
