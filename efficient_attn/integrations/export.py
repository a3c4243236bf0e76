"""Trained modules as programs for other runtimes, with batch and length left open."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

BATCH, LENGTH = "batch", "length"


def export_program(
    model: nn.Module,
    inputs: Sequence[Tensor],
    *,
    max_len: int = 2**20,
    max_batch: int = 2**16,
    kwargs: Mapping[str, Any] | None = None,
    fixed_length: bool = False,
) -> ExportedProgram:
    """`torch.export` of a model in eval, for any batch and length.

    inputs: example tensors [B, N, ...], at least 2 samples of 2 tokens, whose first two axes stay
    open; kwargs: further arguments of `forward`, tensors among them likewise. max_len, max_batch:
    bounds, such as the model's own longest input. fixed_length: the length stays as it is, for
    models of a grid.

    Raises ValueError for examples that are too small; what torch.export raises says what in a
    model cannot be traced.
    """
    given = dict(kwargs or {})
    tensors = [x for x in (*inputs, *given.values()) if isinstance(x, Tensor)]
    for x in tensors:
        if x.dim() < 1 or x.shape[0] < 2 or (not fixed_length and (x.dim() < 2 or x.shape[1] < 2)):
            raise ValueError(
                f"an example has shape {tuple(x.shape)}: give at least 2 samples of 2 tokens, or "
                "their sizes would be taken for constants"
            )
    axes: dict[int, Any] = {0: Dim(BATCH, min=1, max=max_batch)}
    if not fixed_length:
        axes[1] = Dim(LENGTH, min=1, max=max_len)
    shapes = [axes if isinstance(x, Tensor) else None for x in (*inputs, *given.values())]
    names = [None] * len(inputs) + list(given)
    positional = tuple(s for s, name in zip(shapes, names, strict=True) if name is None)
    named = {name: s for s, name in zip(shapes, names, strict=True) if name is not None}
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return torch.export.export(
                model, tuple(inputs), given, dynamic_shapes=_shapes(model, positional, named)
            )
    finally:
        model.train(training)


def export_onnx(
    model: nn.Module, inputs: Sequence[Tensor], path: str | os.PathLike[str], **settings: Any
) -> Path:
    """Write `export_program` (settings: its own) as an ONNX file; needs the extra ``ship``.

    Not every operator that a variant uses has a counterpart in ONNX; the error names those.
    """
    program = export_program(model, inputs, **settings)
    made = torch.onnx.export(program, dynamo=True, verbose=False)
    assert made is not None
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    made.save(str(target))
    return target


def _shapes(model: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """By the names of forward's parameters."""
    import inspect

    names = list(inspect.signature(model.forward).parameters)
    return {**dict(zip(names, positional, strict=False)), **named}
