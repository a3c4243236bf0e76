"""Two modules with the same weights, called alike: how far apart their numbers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

TOLERANCE = 1e-5
B, E, H = 3, 32, 4

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Comparison:
    """Largest absolute differences between two modules with the same weights.

    shapes: of the inputs; evaluated, trained: of outputs in eval and in train mode; gradient: of
    parameters and inputs, the largest gradient being 1.
    """

    module: str
    shapes: str
    settings: str
    evaluated: float
    trained: float
    gradient: float

    @property
    def ok(self) -> bool:
        return max(self.evaluated, self.trained, self.gradient) <= TOLERANCE


def compare(
    module: str,
    settings: str,
    theirs: nn.Module,
    ours: nn.Module,
    /,
    *inputs: Any,
    real: Tensor | None = None,
    **keywords: Any,
) -> Comparison:
    """Call both with the same arguments, in eval without gradients and in train with them.

    real: bool [B, N], the tokens whose outputs mean something; None = all. Gradients are compared
    for inputs that require them and for parameters of the same name in both.
    """
    pair = (theirs, ours)
    with torch.no_grad():
        evaluated = [_outputs(each.eval()(*inputs, **keywords), real) for each in pair]
    trained = [_outputs(each.train()(*inputs, **keywords), real) for each in pair]
    directions = [torch.randn_like(out) for out in trained[0]]
    shared = dict(theirs.named_parameters()).keys() & dict(ours.named_parameters()).keys()
    leaves = {id(x): x for x in inputs if isinstance(x, Tensor) and x.requires_grad}
    gradients = []
    for each, outputs in zip(pair, trained, strict=True):
        loss = torch.stack(
            [(out * direction).sum() for out, direction in zip(outputs, directions, strict=True)]
        ).sum()
        named = dict(each.named_parameters())
        wanted = [*leaves.values(), *(named[name] for name in sorted(shared))]
        gradients.append(torch.autograd.grad(loss, wanted, allow_unused=True))
    differences = (largest(*evaluated), largest(*trained), _relative(*gradients))
    sizes = ("×".join(map(str, x.shape)) for x in list(leaves.values()) or inputs[:1])
    return Comparison(module, ", ".join(dict.fromkeys(sizes)), settings, *differences)


def largest(theirs: Sequence[Tensor | None], ours: Sequence[Tensor | None]) -> float:
    """Largest absolute difference over pairs; infinite where only one exists, or for NaN."""
    worst = 0.0
    for a, b in zip(theirs, ours, strict=True):
        if a is None and b is None:
            continue
        if a is None or b is None or a.shape != b.shape:
            return float("inf")
        worst = max(worst, float((a - b).detach().abs().nan_to_num(float("inf")).max()))
    return worst


def _relative(theirs: Sequence[Tensor | None], ours: Sequence[Tensor | None]) -> float:
    """Largest difference in units of their largest number; infinite when all theirs are zero."""
    size = max((float(x.abs().max()) for x in theirs if x is not None), default=0.0)
    return largest(theirs, ours) / size if size else float("inf")


def _outputs(result: Any, real: Tensor | None) -> list[Tensor]:
    found = [result] if isinstance(result, Tensor) else [x for x in result if x is not None]
    return found if real is None else [out[real] for out in found]


def same(theirs: nn.Module, ours: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Both with the same weights, away from every initialisation; names must agree."""
    ours.load_state_dict(randomise(theirs).state_dict())
    return theirs, ours


def randomise(module: Module) -> Module:
    """Normal weights and biases, those of norms around what they start from."""
    for name, weight in module.named_parameters():
        is_scale = "norm" in name.lower() and name.endswith("weight")
        nn.init.normal_(weight, mean=float(is_scale), std=0.2)
    return module


def absent(length: int, kept: Sequence[int]) -> Tensor:
    """Bool [B, length], True = padding; sample b keeps its first kept[b] tokens."""
    return torch.arange(length) >= torch.tensor(kept)[:, None]


def tokens(length: int, width: int = E) -> Tensor:
    """Random [B, length, width] whose gradient is compared."""
    return torch.randn(B, length, width, requires_grad=True)
