"""What every attention variant is: a module on split heads, its options and its abilities."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from efficient_attn.attention.errors import OptionError
from efficient_attn.attention.kernels.flash import formulas_only
from efficient_attn.attention.masks import AttentionMask, dense_weights, intersect
from efficient_attn.attention.registry import Capabilities, VariantSpec, refusal

IMPLEMENTATIONS = ("eager", "formula", "compiled")
"""Of the option ``implementation``. eager: kernels of this package where they apply, the variant's
formula elsewhere; formula: always that; compiled: the formula through torch.compile."""


class AttentionVariant(nn.Module):
    """Base of the variants. Letters: B batch, H heads, N queries, M keys, D and V head widths.

    A subclass gives `forward`, and either `visible` (softmax attention under a pattern) or its
    own `weights`; with capability ``decode`` also `init_state` and `step`. ``listed = False`` keeps
    it out of lists and suggestions: it answers to its name alone.

    The formulas of cost (`flops`, `traffic` and their `step_` twins) describe what an eager call
    with equal widths D = V and without position biases executes; a subclass gives those it knows.
    """

    name: ClassVar[str]
    listed: ClassVar[bool] = True
    spec: ClassVar[VariantSpec]
    Options: ClassVar[type]
    capabilities: Capabilities = Capabilities()
    refusals: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        heads: int,
        head_dim: int,
        options: Any,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim
        self.options = options

    @property
    def implementation(self) -> str:
        """The option of that name, of `IMPLEMENTATIONS`; "eager" for a variant without it."""
        return getattr(self.options, "implementation", "eager")

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        """`forward`, in the way that the option ``implementation`` asks for."""
        if self.implementation == "compiled" and not torch.compiler.is_compiling():
            out: Tensor = self._compiled()(q, k, v, mask, dropout_p)
            return out
        if self.implementation == "formula":
            with formulas_only():
                return self(q, k, v, mask, dropout_p)
        return self(q, k, v, mask, dropout_p)

    def _compiled(self) -> Callable[..., Tensor]:
        """`forward` through torch.compile, made once per module, for all lengths."""
        made = self.__dict__.get("_program")
        if made is None:
            require_compiler()
            made = self.__dict__["_program"] = torch.compile(self.forward, dynamic=True)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles compile anew: a program belongs to the module it was made from."""
        return {name: value for name, value in self.__dict__.items() if name != "_program"}

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        """q [B, H, N, D], k [B, H, M, D], v [B, H, M, V] -> [B, H, N, V]."""
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        """The weights [B, H, N, M] for which ``weights @ v`` is the output; always dense."""
        N, M = q.shape[-2], k.shape[-2]
        keep = intersect(
            mask.keep(N, M, q.device), self.visible(N, M, q.device, causal=mask.causal)
        )
        return dense_weights(q, k, keep, self.score_bias(N, M, mask, q.device))

    def shortened_length(self, keys: int, sources: tuple[int, int], width: int) -> int | None:
        """Rows that `shorten` leaves of M keys; None unless it is cheaper than `forward` alone.

        sources: widths of key and value inputs; width: that of projected keys.
        """
        return None

    def shorten(self, key: Tensor, value: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values mixed along the length while they are still the module's inputs.

        For a variant whose keys are linear mixtures: mixing commutes with the projections, which
        then have fewer rows. key [B, M, Ek], value [B, M, Ev]; exists: bool [B, M] ->
        [B, K, Ek + 1] and [B, K, Ev + 1], whose last column is what becomes of a constant 1: by it
        a bias counts.
        """
        raise NotImplementedError(f"{type(self).__name__} does not shorten")

    def attend_shortened(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float) -> Tensor:
        """What `forward` does with q [B, H, N, D] after mixing; k, v [B, H, K, D] are projected."""
        raise NotImplementedError(f"{type(self).__name__} does not shorten")

    def shortened_work(
        self,
        batch: int,
        queries: int,
        keys: int,
        source: int,
        *,
        itemsize: int,
        backward: bool = False,
        padded: bool = False,
    ) -> tuple[int, int]:
        """FLOPs and bytes of `shorten`, of one input that is key and value, and of
        `attend_shortened`, in the way of `flops` and `traffic`; source: the input's width."""
        raise NotImplementedError(f"{type(self).__name__} does not shorten")

    def order(self, N: int, mask: AttentionMask) -> tuple[Tensor, Tensor] | None:
        """An order of tokens in which attention is fastest, as [N] tokens, and the place [N] of
        each token in it; None where they lie well as they are."""
        return None

    def attend_in_order(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        """What `forward` does in training without dropout, noncausal, with q, k, v [B, H, N, D] in
        the `order`, on the CPU; the mask's keys are in their own order."""
        raise NotImplementedError(f"{type(self).__name__} has no order of its own")

    def visible(self, N: int, M: int, device: torch.device, *, causal: bool) -> Tensor | None:
        """Bool [N, M]: the variant's own pattern, before any mask; None = everyone."""
        return None

    def score_bias(
        self, N: int, M: int, mask: AttentionMask, device: torch.device
    ) -> Tensor | None:
        """What is added to the scores, finite, broadcastable to [B, H, N, M]; None = nothing."""
        return mask.bias(N, M, device)

    def init_state(
        self,
        batch: int,
        *,
        value_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """State before the first token, for `step`: an empty cache of keys and values.

        value_dim: V, head_dim when None. `UnsupportedAttention` where the variant cannot decode.
        """
        if not self.capabilities.decode:
            raise refusal(self.name, "decode")
        return KeyValueCache.empty(batch, self.heads, self.head_dim, value_dim, device, dtype)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, slopes: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """The next n tokens: q, k [B, H, n, D], v [B, H, n, V] -> output [B, H, n, V], new state.

        However a sequence is split into steps, the outputs equal those of the causal parallel
        form. The state has `position` (tokens so far), `nbytes` and `select(index)`, the same
        for the samples index [B']. slopes: [H], ALiBi.
        """
        raise refusal(self.name, "decode")

    def flops(
        self,
        batch: int,
        queries: int,
        keys: int,
        *,
        causal: bool,
        backward: bool = False,
        padded: bool = False,
    ) -> int | None:
        """FLOPs of `forward` in matrix products, as executed; None = the variant has no formula.

        Padding of blocks and masked corners count, for they are computed; a causal fused kernel
        skips what lies above the diagonal. backward: forward and backward together. padded: with a
        key padding mask.
        """
        return None

    def step_flops(self, batch: int, context: int, tokens: int) -> int | None:
        """FLOPs of one `step` of `tokens` tokens after `context` tokens; None = no formula."""
        return None

    def traffic(
        self,
        batch: int,
        queries: int,
        keys: int,
        *,
        causal: bool,
        itemsize: int,
        backward: bool = False,
        padded: bool = False,
    ) -> int:
        """Bytes that `forward` must at least read and write, in numbers of `itemsize` bytes.

        q, k, v, the output and the variant's parameters once each; with `backward` the gradient of
        each as well; one byte per key of a padding mask. Queries that precede every key are not
        read. A variant adds what it must write and read back in between.
        """
        read = min(queries, keys) if causal else queries
        elements = batch * self.heads * self.head_dim * (read + 2 * keys + queries)
        elements += sum(parameter.numel() for parameter in self.parameters())
        return elements * itemsize * (1 + backward) + batch * keys * padded

    def step_traffic(self, batch: int, context: int, tokens: int, itemsize: int) -> int:
        """Bytes that one `step` must at least read and write.

        q, k, v of the new tokens, their outputs and the variant's parameters; a variant adds what
        it reads and writes of its state.
        """
        return self.traffic(batch, tokens, tokens, causal=True, itemsize=itemsize)

    def cache_traffic(self, batch: int, read: int, tokens: int, kept: int, itemsize: int) -> int:
        """Bytes of a `KeyValueCache` of which `read` entries are read and, of `tokens` new ones,
        as many written as the `kept` entries afterwards have room for."""
        entries = read + min(tokens, kept)
        return 2 * batch * self.heads * self.head_dim * entries * itemsize

    @classmethod
    def resolve(
        cls, options: Any, *, max_len: int | None, grid: tuple[int, int] | None, layer: int | None
    ) -> Any:
        """Options with what the surroundings decide filled in (see `resolve_options`)."""
        return options

    @classmethod
    def tie_layers(cls, cores: Sequence[nn.Module]) -> None:
        """Called once with the cores of a stack, for variants that share between layers."""

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in asdict(self.options).items())


class KeyValueCache:
    """Keys and values seen so far, k [B, H, T, D], v [B, H, T, V], at `position` tokens."""

    def __init__(self, k: Tensor, v: Tensor, position: int = 0) -> None:
        self.k, self.v, self.position = k, v, position

    @classmethod
    def empty(
        cls,
        batch: int,
        heads: int,
        head_dim: int,
        value_dim: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> KeyValueCache:
        k = torch.empty(batch, heads, 0, head_dim, device=device, dtype=dtype)
        v = torch.empty(batch, heads, 0, value_dim or head_dim, device=device, dtype=dtype)
        return cls(k, v)

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def select(self, index: Tensor) -> KeyValueCache:
        """The cache of the samples index [B']."""
        k, v = self.k.index_select(0, index), self.v.index_select(0, index)
        return KeyValueCache(k, v, self.position)

    def append(self, k: Tensor, v: Tensor) -> KeyValueCache:
        return KeyValueCache(
            torch.cat([self.k, k], -2), torch.cat([self.v, v], -2), self.position + k.shape[-2]
        )

    def last(self, count: int, first: int = 0) -> KeyValueCache:
        """The first `first` and the last `count` entries."""
        T = self.k.shape[-2]
        if first + count >= T:
            return self

        def pick(x: Tensor) -> Tensor:
            return torch.cat([x[..., :first, :], x[..., T - count :, :]], -2)

        return KeyValueCache(pick(self.k), pick(self.v), self.position)


def require_compiler() -> None:
    """`OptionError` where torch.compile finds no C++ compiler."""
    wanted = os.environ.get("CXX")
    candidates = [wanted] if wanted else ["g++", "clang++", "c++", "cl"]
    if not any(shutil.which(name) for name in candidates):
        raise OptionError(
            f"implementation='compiled' needs a C++ compiler, and there is no "
            f"{' or '.join(candidates)}: install one (or name it in CXX), or take 'eager'"
        )
