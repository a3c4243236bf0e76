"""The words of `efficient-attn sweep` and how a shell completes them. Imports nothing heavy."""

from __future__ import annotations

import argparse
import re
from typing import Any

EXAMPLE = """efficient-attn sweep +experiment=demo
  efficient-attn sweep attention=[full,performer] workload.length=1024,4096 \\
      workload.pattern=causal_self attention.performer.num_features=64,128 results=mine
  efficient-attn sweep measure=accuracy task=mqar measure.seed=0,1,2 results=mine
  efficient-attn sweep hydra/launcher=submitit_slurm workload.length=1024,4096 results=mine

Overrides are Hydra's: group=choice, key=value, and commas sweep. Groups are
attention, workload, task, model, measure, experiment (+experiment=NAME) and
hydra/launcher (basic, joblib, submitit_local, submitit_slurm, ray).
Swept values are crossed; paired=[workload.length,workload.batch] pairs them.

Completion in bash and zsh (pip install 'efficient-attn[completion]'):
  eval "$(register-python-argcomplete efficient-attn)\""""


def add_words(parser: argparse.ArgumentParser) -> None:
    """Flags and overrides of a sweep."""
    overrides = parser.add_argument("overrides", nargs="*", help="Hydra overrides")
    overrides.completer = complete_override  # type: ignore[attr-defined]
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--force", action="store_true", help="measure again what is there too")
    again.add_argument(
        "--only",
        choices=("missing", "failed"),
        default="missing",
        help="failed: measure again what failed, and nothing else (default: missing)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list what would be measured, and estimate the time"
    )
    parser.add_argument(
        "--from",
        dest="earlier",
        metavar="RESULTS",
        help="with --dry-run: estimate from the records of this folder too",
    )
    parser.add_argument("--json", action="store_true", help="with --dry-run: print JSON")


def complete_override(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Words that Hydra knows to go on with: groups, their choices, keys and their values."""
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    before = [word for word in parsed_args.overrides or [] if word != prefix]
    with initialize_config_module("efficient_attn.conf", version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        listed = re.fullmatch(r"(?P<head>(?P<group>[\w/]+)=\[(?:[^,\]]+,)*)[^,\]]*", prefix)
        if listed:
            return [f"{listed['head']}{one}" for one in loader.get_group_options(listed["group"])]
        plugin = DefaultCompletionPlugin(loader)
        return plugin._query("sweep", " ".join(["--multirun", *before, prefix]))
