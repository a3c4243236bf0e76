"""`efficient-attn doctor`: the environment as a record would state it, and what is wrong in it."""

from __future__ import annotations

import argparse
import json
import multiprocessing
from typing import Any

import torch

from efficient_attn.attention import list_variants
from efficient_attn.bench import environment

EXTRAS = ("scikit-learn", "einops", "hydra-core", "pandas", "scipy", "matplotlib", "rich")


def main(arguments: argparse.Namespace) -> int:
    """Print facts and findings; 1 when something stops measurements."""
    facts: dict[str, Any] = {
        **environment.machine(),
        **{name: environment.package_version(name) for name in EXTRAS},
        "threads": torch.get_num_threads(),
        "load": environment.load_average(),
        "cuda": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "variants": list_variants(),
    }
    problems, hints = _examine(facts)
    if arguments.json:
        print(json.dumps({"facts": facts, "problems": problems, "hints": hints}, indent=1))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            shown = ", ".join(map(str, value)) if isinstance(value, (list, dict)) else value
            print(f"{name:<{width}}  {'none' if shown in (None, '') else shown}")
        for line in (*(f"problem: {p}" for p in problems), *(f"hint: {h}" for h in hints)):
            print(line)
        if not problems:
            print("ready to measure")
    return 1 if problems else 0


def _examine(facts: dict[str, Any]) -> tuple[list[str], list[str]]:
    problems, hints = [], []
    if "forkserver" not in multiprocessing.get_all_start_methods():
        problems.append("this system has no forkserver processes, which measurements run in")
    if facts["scikit-learn"] is None:
        hints.append("the digits tasks need scikit-learn: pip install 'efficient-attn[data]'")
    cores, load = facts["cores"], facts["load"]
    if cores and load is not None and load > 0.5 * cores:
        hints.append(f"the machine is busy (load {load:.1f} on {cores} cores): times will be noisy")
    return problems, hints
