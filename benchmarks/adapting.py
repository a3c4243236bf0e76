"""A small language model, trained with full attention, adapted to others.

    python benchmarks/adapting.py TEXT --out results/models-cpu/adapted

trains a Llama of transformers over the bytes of a text for a few minutes, saves it, and runs
`efficient-attn adapt` on the checkpoint for each variant: bits per byte of the text's end before,
right after the swap, after matching attention outputs, and after some training on the task.
"full" among the variants is the model trained on for as many steps: what the steps alone bring.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from efficient_attn.integrations.adapt import Adapted, Adapting, adapt
from efficient_attn.integrations.lessons import Lessons

OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "local_window": {"window": 32},
    "performer": {"num_features": 64},
    "shifted_window": {"window": 64},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and write it as adapting.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", help="file, or folder of files")
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--variants", default="full,local_window,performer")
    parser.add_argument("--train", type=int, default=1200, help="steps of training first")
    parser.add_argument("--match", type=int, default=100, help="steps of matching")
    parser.add_argument("--steps", type=int, default=200, help="steps of the task after that")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    words = parser.parse_args(arguments)
    torch.set_num_threads(words.threads)
    trained = words.out / "trained"
    if not (trained / "config.json").is_file():
        train(words.text, trained, words.length, words.train)
    rows: dict[str, Adapted] = {}
    for variant in words.variants.split(","):
        lessons = Lessons.of(trained, words.text, words.length, 8)
        torch.manual_seed(0)
        print(f"adapting to {variant}", file=sys.stderr)
        rows[variant] = adapt(
            lessons.model,
            variant,
            batches=lessons.batch,
            loss=lessons.loss,
            metric=lessons.metric,
            how=Adapting(match_steps=words.match, steps=words.steps),
            **OPTIONS[variant],
        )
    found = {name: {"options": OPTIONS[name], **row.to_dict()} for name, row in rows.items()}
    (words.out / "adapting.json").write_text(json.dumps(found, indent=1) + "\n")
    Console(width=120).print(table(rows))
    return 0


def train(text: str, folder: Path, length: int, steps: int) -> None:
    """A Llama over bytes, with transformers' own attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        num_attention_heads=4,
        num_hidden_layers=4,
        intermediate_size=384,
        max_position_embeddings=length,
        architectures=["LlamaForCausalLM"],
    )
    partial = folder.with_name("partial")
    shutil.rmtree(partial, ignore_errors=True)
    LlamaForCausalLM(config).save_pretrained(partial)
    lessons = Lessons.of(partial, text, length, 8)
    model: Any = lessons.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    began = time.monotonic()
    for step in range(steps):
        rate = min(1.0, (step + 1) / 50) * (1 - max(0, step - 50) / max(1, steps - 50))
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * rate
        optimizer.zero_grad()
        loss = lessons.loss(model, lessons.batch(-1 - step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            spent = time.monotonic() - began
            print(
                f"step {step + 1}/{steps}, loss {loss.item():.3f}, {spent:.0f} s", file=sys.stderr
            )
    model.eval().save_pretrained(folder)
    shutil.rmtree(partial)


def table(rows: dict[str, Adapted]) -> Table:
    made = Table(title="Bits per byte of the held text (lower is better)")
    made.add_column("to")
    for title in ("before", "after the swap", "after matching", "after adapting", "minutes"):
        made.add_column(title, justify="right")
    for name, row in rows.items():
        figures = (row.before, row.swapped, row.matched, row.adapted)
        made.add_row(name, *(f"{x:.3f}" for x in figures), f"{row.seconds / 60:.1f}")
    return made


if __name__ == "__main__":
    sys.exit(main())
