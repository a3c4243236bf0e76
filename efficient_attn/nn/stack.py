"""What encoder and decoder stacks share: building layers by depth, tying, causal masks."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from efficient_attn.attention import variant_class
from efficient_attn.attention.errors import require_int
from efficient_attn.nn.state import DecodingState


class Layer(Protocol):
    """What a stack asks of its layers: another of their kind, for a depth of so many."""

    def at_depth(self, depth: int, num_layers: int) -> nn.Module: ...


class LayerStack(nn.Module):
    """Layers by depth and a last norm, as encoder and decoder have them."""

    layers: Any

    def __init__(
        self,
        template: Layer,
        kind: type[nn.Module],
        num_layers: int,
        norm: nn.Module | None,
        same_weights: bool,
    ) -> None:
        super().__init__()
        self.layers = build_layers(template, kind, num_layers, same_weights)
        self.num_layers = num_layers
        self.norm = norm

    def step(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """The next n tokens [B, n, d_model] -> output [B, n, d_model] and new state.

        In eval the outputs equal those of the causal `forward`, however x is split. state.position
        counts the tokens so far, state.nbytes its bytes; state.select(index) is the state of the
        samples index [B'].
        """
        states = []
        for layer, before in zip(self.layers, state.parts, strict=True):
            x, after = layer.step(x, before)
            states.append(after)
        return self._normed(x), DecodingState(tuple(states))

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)


def build_layers(
    template: Layer, kind: type[nn.Module], num_layers: int, same_weights: bool
) -> nn.ModuleList:
    """`num_layers` layers as `template` describes them, each with the variant of its depth.

    With `same_weights` the parameters around attention's core start as copies of the template's,
    as in torch.nn's stacks; a core keeps its own draw (random features must differ by layer).
    """
    if not isinstance(template, kind):
        raise TypeError(
            f"this stack is built from an efficient_attn.nn.{kind.__name__}, "
            f"not from {type(template).__module__}.{type(template).__name__}"
        )
    require_int("num_layers", num_layers, low=1)
    layers = [template.at_depth(depth, num_layers) for depth in range(num_layers)]
    if same_weights:
        shared = {
            name: value for name, value in template.state_dict().items() if ".core." not in name
        }
        for layer in layers:
            layer.to(next(iter(shared.values())))
            layer.load_state_dict(shared, strict=False)
            layer.train(template.training)
    return nn.ModuleList(layers)


def tie_cores(layers: nn.ModuleList, attention: str) -> None:
    """Let each variant tie the parameters that its cores share over depth.

    attention: name of the attention within the layers, e.g. "self_attn".
    """
    by_variant: dict[str, list[nn.Module]] = {}
    for layer in layers:
        module = layer.get_submodule(attention)
        by_variant.setdefault(str(module.variant), []).append(module.get_submodule("core"))
    for name, cores in by_variant.items():
        variant_class(name).tie_layers(cores)


def recognise_causal(mask: Tensor | None, is_causal: bool | None) -> tuple[Tensor | None, bool]:
    """A causal matrix given as `mask` becomes the flag `is_causal`, anything else stays.

    torch.nn's stacks are called with ``generate_square_subsequent_mask``; as a flag it also
    reaches the variants that are causal but take no pairwise mask, and the fused kernels.
    Not looked at while compiling or exporting, where values are unknown.
    """
    if mask is None or is_causal is False or mask.dim() != 2 or torch.compiler.is_compiling():
        return mask, bool(is_causal)
    N, M = mask.shape
    if N != M:
        return mask, bool(is_causal)
    later = torch.ones(N, N, dtype=torch.bool, device=mask.device).triu(1)
    if mask.dtype == torch.bool:
        causal = torch.equal(mask, later)
    else:
        causal = torch.equal(mask, torch.zeros_like(mask).masked_fill(later, float("-inf")))
    return (None, True) if causal else (mask, bool(is_causal))
