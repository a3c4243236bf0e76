"""The variant under observation: its module in float64, inputs for it, and the way to ask it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from efficient_attn.attention.apply import attend
from efficient_attn.attention.functional import make_core
from efficient_attn.attention.masks import AttentionMask
from efficient_attn.attention.multihead import MultiHeadAttention
from efficient_attn.attention.registry import resolve_options, variant_class
from efficient_attn.attention.variant import AttentionVariant

HEADS, WIDTH = 2, 8
LONG = 389
"""A prime, longer than the blocks, chunks and default windows that a fast path is made of."""
LOUD = 30.0
"""Small nudges miss a maximum over the sequence or the batch; a token so much larger does not."""


class Pattern(NamedTuple):
    """causal: bool; cross: whether keys come from another sequence."""

    causal: bool
    cross: bool

    def __str__(self) -> str:
        return f"{'causal' if self.causal else 'noncausal'} {'cross' if self.cross else 'self'}"

    @property
    def request(self) -> dict[str, Any]:
        return {"causal": self.causal, "cross": self.cross}


class Subject:
    """Variant `name` with `options`, what its surroundings decide filled in.

    Inputs have HEADS heads of width WIDTH and are float64 unless told otherwise; masks inside this
    package mean True = seen.
    """

    def __init__(self, variant: str, options: Mapping[str, Any] | None, seed: int) -> None:
        self.name = variant_class(variant).name
        self.seed = seed
        self.options = resolve_options(self.name, dict(options or {}), max_len=LONG)
        self.core = self.make_core()

    def make_core(self, dtype: torch.dtype = torch.float64) -> AttentionVariant:
        """A fresh module on split heads, in eval."""
        core = make_core(self.name, HEADS, WIDTH, dtype=dtype, **self.options).to(dtype)
        return self._speaking(core).requires_grad_(False)

    def make_module(self, width: int = HEADS * WIDTH, **arguments: Any) -> MultiHeadAttention:
        """A fresh `MultiHeadAttention` around the variant, in eval."""
        made = MultiHeadAttention(
            width, HEADS, self.name, dtype=torch.float64, **arguments, **self.options
        )
        return self._speaking(made.double())

    def _speaking(self, module: Any) -> Any:
        """Parameters that start at zero, such as a bias, would hide what is done with them."""
        generator = self._generator(1)
        with torch.no_grad():
            for parameter in module.parameters():
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                if not parameter.any():
                    parameter.copy_(drawn / 2)
        return module.eval()

    def converted(self, dtype: torch.dtype) -> AttentionVariant:
        """A copy of the module in another number format."""
        return copy.deepcopy(self.core).to(dtype)

    @property
    def only_length(self) -> int | None:
        """The one length that a grid accepts; None where any will do."""
        grid = self.options.get("grid")
        return None if grid is None else math.prod(grid)

    def lengths(self, *wanted: int) -> list[int]:
        """`wanted` as far as the options allow, ascending: a grid has one length, and an option
        max_len is the longest."""
        if self.only_length is not None:
            return [self.only_length]
        longest = self.options.get("max_len") or LONG
        return sorted({min(n, longest) for n in wanted})

    def pairs(self, *wanted: tuple[int, int]) -> list[tuple[int, int]]:
        """Numbers of queries and keys of cross-attention, equal ones where no others are taken."""
        if self.core.capabilities.equal_lengths or self.only_length is not None:
            return [(n, n) for n in self.lengths(*(M for _, M in wanted))]
        longest = self.options.get("max_len") or LONG
        return [(N, min(M, longest)) for N, M in wanted]

    def _generator(self, offset: int) -> torch.Generator:
        return torch.Generator().manual_seed(1000 * self.seed + offset)

    def draw(
        self,
        N: int,
        M: int | None = None,
        *,
        batch: int = 2,
        spread: float = 1.0,
        dtype: torch.dtype = torch.float64,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normal q [B, H, N, D], k and v [B, H, M, D]; `spread` scales q and k."""
        generator = self._generator(2)

        def normal(length: int) -> Tensor:
            shape = (batch, HEADS, length, WIDTH)
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        M = N if M is None else M
        return (normal(N) * spread).to(dtype), (normal(M) * spread).to(dtype), normal(M).to(dtype)

    def tokens(self, N: int, *, batch: int = 2) -> Tensor:
        """Normal inputs [B, N, H·D] of `make_module`."""
        shape = (batch, N, HEADS * WIDTH)
        return torch.randn(shape, generator=self._generator(3), dtype=torch.float64)

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool = False,
        cross: bool = False,
        padding: Tensor | None = None,
        pairwise: Tensor | None = None,
        core: AttentionVariant | None = None,
    ) -> Tensor:
        """Output [B, H, N, V], or whatever the variant raises."""
        mask = AttentionMask(causal, padding, pairwise)
        return attend(core or self.core, q, k, v, mask, cross=cross)[0]

    def weights(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, cross: bool, **masks: Any
    ) -> Tensor:
        """Weights [B, H, N, M] that the variant gives on request."""
        mask = AttentionMask(causal, masks.get("padding"), masks.get("pairwise"))
        weights = attend(self.core, q, k, v, mask, cross=cross, need_weights=True)[1]
        assert weights is not None
        return weights

    @staticmethod
    def stepwise(module: MultiHeadAttention, pieces: Iterable[Tensor]) -> Tensor:
        """Outputs [B, N, E] of a module that decodes `pieces` [B, n, E], one call for each."""
        outputs = []
        state: Any = None
        for piece in pieces:
            state = module.init_state(piece.shape[0]) if state is None else state
            out, state = module.step(piece, state)
            outputs.append(out)
        return torch.cat(outputs, 1)

    @cached_property
    def patterns(self) -> list[Pattern]:
        """The patterns that run at all, found by running them; self-attention first."""
        every = [Pattern(causal, cross) for cross in (False, True) for causal in (False, True)]
        return [pattern for pattern in every if self.runs(**pattern.request)]

    def runs(self, **request: Any) -> bool:
        """Whether a small input under `request` gives an output and no exception.

        padding, pairwise: True stands for a mask that hides nothing or little.
        """
        N = self.only_length or 4
        q, k, v = self.draw(N)
        if request.pop("padding", False):
            request["padding"] = torch.ones(2, N, dtype=torch.bool)
        try:
            self.run(q, k, v, **request)
        except Exception:
            return False
        return True

    @cached_property
    def masked(self) -> bool:
        """Whether a key padding mask is taken in the first pattern that runs."""
        return bool(self.patterns) and self.runs(padding=True, **self.patterns[0].request)


def distance(found: Tensor, expected: Tensor) -> float:
    """Largest difference, in parts of the largest number expected; inf for another shape.

    Outputs smaller than a hundredth, which averages over many tokens do not reach, count as one.
    """
    if found.shape != expected.shape:
        return math.inf
    if not expected.numel():
        return 0.0
    off = (found - expected).abs().max() / expected.abs().max().clamp_min(0.01)
    return off.item()


def unsound(out: Tensor, expected: tuple[int, ...]) -> float:
    """0 for finite numbers in the expected shape, else inf."""
    return 0.0 if tuple(out.shape) == expected and bool(out.isfinite().all()) else math.inf


def loud(x: Tensor, position: int) -> Tensor:
    """x [B, H, N, D] with one token made LOUD times larger."""
    x = x.clone()
    x[:, :, position] *= LOUD
    return x


def parts(module: nn.Module) -> dict[str, Tensor]:
    """The module's tensors by name, as a checkpoint would hold them."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}
