"""Accuracy tasks: each trains a small model around the attention under test and scores it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from efficient_attn.tasks.byte_lm import ByteLM
from efficient_attn.tasks.byte_text import ByteText
from efficient_attn.tasks.copying import Copying
from efficient_attn.tasks.digits import Digits, DigitsGrid
from efficient_attn.tasks.fashion import Fashion, FashionPixels
from efficient_attn.tasks.image_folder import ImageFolder
from efficient_attn.tasks.induction import Induction
from efficient_attn.tasks.listops import ListOps
from efficient_attn.tasks.matching import Matching
from efficient_attn.tasks.mqar import Mqar
from efficient_attn.tasks.pathfinder import Pathfinder
from efficient_attn.tasks.selective_copying import SelectiveCopying
from efficient_attn.tasks.task import ModelConfig, Task
from efficient_attn.tasks.translation import Translation

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Digits,
        DigitsGrid,
        Fashion,
        FashionPixels,
        ImageFolder,
        Pathfinder,
        ListOps,
        ByteText,
        Matching,
        Mqar,
        Induction,
        SelectiveCopying,
        ByteLM,
        Copying,
        Translation,
    )
}

__all__ = [
    "TASKS",
    "ByteLM",
    "ByteText",
    "Copying",
    "Digits",
    "DigitsGrid",
    "Fashion",
    "FashionPixels",
    "ImageFolder",
    "Induction",
    "ListOps",
    "Matching",
    "ModelConfig",
    "Mqar",
    "Pathfinder",
    "SelectiveCopying",
    "Task",
    "Translation",
    "make_task",
]


def make_task(name: str, **settings: Any) -> Task:
    """The task `name` with its fields set; ValueError for an unknown name or field."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; available: {', '.join(sorted(TASKS))}")
    kind = TASKS[name]
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ValueError(
            f"unknown field(s) {', '.join(unknown)} of task {name!r}; "
            f"allowed: {', '.join(known) or 'none'}"
        )
    return kind(**settings)
