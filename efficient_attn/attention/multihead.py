"""`MultiHeadAttention`: projections around any variant, in the manner of torch.nn's."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from efficient_attn.attention.apply import attend, expand_groups
from efficient_attn.attention.errors import (
    OptionError,
    as_pair,
    require_choice,
    require_int,
    require_probability,
)
from efficient_attn.attention.functional import make_core
from efficient_attn.attention.kernels.flash import hand_written
from efficient_attn.attention.kernels.order import reordered
from efficient_attn.attention.kernels.packing import split_packed
from efficient_attn.attention.masks import AttentionMask
from efficient_attn.attention.memory import ProjectedMemory
from efficient_attn.attention.positions import alibi_slopes, rotate
from efficient_attn.attention.registry import refusal, resolve_options


class MultiHeadAttention(nn.Module):
    """Multi-head attention with a chosen variant. Batch first; masks: **True = ignore**.

    embed_dim: E, width of queries and output; num_heads: H; variant: a name of `list_variants`,
    its options as further keywords (`describe`). num_kv_heads: G key/value heads, a divisor of H
    (grouped-query attention). head_dim: D, E / H when None; kdim, vdim: widths of key and value
    inputs. dropout: on attention weights while training. positions: None, "rotary" (`rotary_base`)
    or "alibi", counted from the first token of the sequence; self-attention only. Parameters have
    torch.nn's names, so weights of `torch.nn.MultiheadAttention` load; a variant's own stand under
    ``core.``.

    Raises `OptionError` for options that are wrong, `UnsupportedAttention` in `forward` for what
    the variant cannot honour.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        variant: str = "full",
        *,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        positions: str | None = None,
        rotary_base: float = 10000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for name, size in (("embed_dim", embed_dim), ("num_heads", num_heads)):
            require_int(name, size, low=1)
        if head_dim is not None:
            require_int("head_dim", head_dim, low=1)
        else:
            if embed_dim % num_heads:
                raise ValueError(
                    f"embed_dim={embed_dim} is no multiple of num_heads={num_heads}; "
                    "choose another or give head_dim"
                )
            head_dim = embed_dim // num_heads
        groups = num_heads if num_kv_heads is None else num_kv_heads
        if groups < 1 or num_heads % groups:
            raise ValueError(f"num_kv_heads={groups} must divide num_heads={num_heads}")
        require_probability("dropout", dropout)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = groups
        self.head_dim = head_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout = dropout
        self.variant = variant
        self.positions = positions
        self.rotary_base = rotary_base
        self.batch_first = True

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.core = make_core(
            variant, num_heads, head_dim, **factory, **resolve_options(variant, options)
        )
        self._check_positions()
        self._widths = (num_heads * head_dim, groups * head_dim, groups * head_dim)
        self.in_proj_weight: Tensor | None = None
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = nn.Parameter(torch.empty(sum(self._widths), embed_dim, **factory))
        else:
            sources = (embed_dim, self.kdim, self.vdim)
            for name, width, source in zip("qkv", self._widths, sources, strict=True):
                weight = nn.Parameter(torch.empty(width, source, **factory))
                self.register_parameter(f"{name}_proj_weight", weight)
        self.in_proj_bias = (
            nn.Parameter(torch.empty(sum(self._widths), **factory)) if bias else None
        )
        self.out_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=bias, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise projections as torch.nn does."""
        if self.in_proj_weight is not None:
            nn.init.xavier_uniform_(self.in_proj_weight)
        else:
            for weight in self._weights():
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        grid: tuple[int, int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """query [B, N, E], key [B, M, kdim], value [B, M, vdim] -> output [B, N, E] and weights.

        key defaults to query and value to key. key_padding_mask [B, M] and attn_mask ([N, M],
        [B·H, N, M] or [B, H, N, M]): bool with True = ignore, or float added to the scores.
        is_causal: query i sees keys up to i + (M − N), together with the other masks. grid: (rows,
        columns) on which the tokens stand row-major in this call, for a variant that was built with
        the option of that name; others make no use of it. Weights [B, N, M], averaged over heads,
        or [B, H, N, M] without average_attn_weights; None unless need_weights.
        """
        key = query if key is None else key
        value = key if value is None else value
        for name, tensor, width in (
            ("query", query, self.embed_dim),
            ("key", key, self.kdim),
            ("value", value, self.vdim),
        ):
            if tensor.dim() != 3 or tensor.shape[-1] != width:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, expected [batch, length, {width}]"
                )
        mask = self._mask(query, key, key_padding_mask, attn_mask, is_causal, grid)
        if self.positions is not None and key is not query:
            raise refusal(self.variant, "positions_across", "they count along one sequence")
        dropout_p = self.dropout if self.training else 0.0
        if not need_weights and dropout_p == 0.0:
            order = self._order(query, key, value, mask)
            if order is not None:
                return self._forward_in_order(query, mask, *order), None
        if not need_weights and self._shortens(query, key, value, mask):
            q, k, v = self._project_shortened(query, key, value, mask.key_padding)
            out, weights = self.core.attend_shortened(q, k, v, dropout_p), None
        else:
            q, k, v = self._project(query, key, value)
            q, k = self._place(q, k, 0)
            out, weights = attend(
                self.core,
                q,
                k,
                v,
                mask,
                cross=key is not query,
                dropout_p=dropout_p,
                need_weights=need_weights,
            )
        out = self.out_proj(rearrange(out, "b h n v -> b n (h v)"))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        return out, weights

    def init_state(self, batch: int) -> Any:
        """State for `step` before the first token of `batch` sequences."""
        weight = self.out_proj.weight
        return self.core.init_state(batch, device=weight.device, dtype=weight.dtype)

    def step(self, query: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The next n tokens [B, n, E] of causal self-attention -> output [B, n, E], new state.

        The outputs equal those of ``forward(x, is_causal=True)`` however x is split into steps.
        state.position counts the tokens so far, state.nbytes its bytes; state.select(index) is
        the state of the samples index [B'].
        """
        if not self.core.capabilities.decode:
            raise refusal(self.variant, "decode")
        q, k, v = self._project(query, query, query)
        q, k = self._place(q, k, state.position)
        out, state = self.core.step(q, *expand_groups(q, k, v), state, self.slopes)
        return self.out_proj(rearrange(out, "b h n v -> b n (h v)")), state

    def project_memory(
        self, memory: Tensor, key_padding_mask: Tensor | None = None
    ) -> ProjectedMemory:
        """Keys and values of memory [B, M, E], padding [B, M], for `attend_memory`.

        `UnsupportedAttention` for a variant that attends only between equal lengths, and with
        positions.
        """
        if self.core.capabilities.equal_lengths:
            raise refusal(self.variant, "unequal_lengths", "queries come step by step")
        if self.positions is not None:
            raise refusal(self.variant, "positions_across", "they count along one sequence")
        mask = self._mask(memory, memory, key_padding_mask, None, False)
        (_, *weights), (_, *biases) = self._weights(), self._biases()
        k, v = (
            self._split(F.linear(memory, weight, bias))
            for weight, bias in zip(weights, biases, strict=True)
        )
        if self.num_kv_heads != self.num_heads:
            groups = self.num_heads // self.num_kv_heads
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return ProjectedMemory(k, v, mask)

    def attend_memory(self, query: Tensor, memory: ProjectedMemory) -> Tensor:
        """Any queries [B, n, E] -> [B, n, E], as ``forward(query, memory, memory)`` gives them."""
        q = self._split(F.linear(query, self._weights()[0], self._biases()[0]))
        out, _ = attend(self.core, q, memory.k, memory.v, memory.mask, cross=True)
        return self.out_proj(rearrange(out, "b h n v -> b n (h v)"))

    @classmethod
    def from_torch(
        cls, module: nn.MultiheadAttention, variant: str = "full", **options: Any
    ) -> MultiHeadAttention:
        """The same projections and weights around `variant`; the result is batch first.

        ValueError for bias_k/bias_v and add_zero_attn, which no variant here has.
        """
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn have no counterpart here")
        weight = module.out_proj.weight
        made = cls(
            module.embed_dim,
            module.num_heads,
            variant,
            dropout=module.dropout,
            bias=module.in_proj_bias is not None,
            kdim=module.kdim,
            vdim=module.vdim,
            device=weight.device,
            dtype=weight.dtype,
            **options,
        )
        own = {name: t for name, t in made.state_dict().items() if name.startswith("core.")}
        made.load_state_dict({**own, **module.state_dict()})
        return made.train(module.training)

    @classmethod
    def from_config(
        cls, config: Any, variant: str = "full", **overrides: Any
    ) -> MultiHeadAttention:
        """Sizes from a Hugging Face config; keywords add options or override what it says.

        Reads hidden_size, num_attention_heads and, where present, num_key_value_heads, head_dim,
        attention dropout and max_position_embeddings (for variants that need a longest length).
        """
        for name in ("hidden_size", "num_attention_heads"):
            if not hasattr(config, name):
                raise ValueError(f"{type(config).__name__} has no {name}")
        read: dict[str, Any] = {}
        for argument, names in (
            ("num_kv_heads", ["num_key_value_heads"]),
            ("head_dim", ["head_dim"]),
            ("dropout", ["attention_probs_dropout_prob", "attention_dropout"]),
        ):
            found = [getattr(config, name) for name in names if hasattr(config, name)]
            if found and found[0] is not None:
                read[argument] = found[0]
        arguments = {"bias", "kdim", "vdim", "device", "dtype", *read}
        given = {name: overrides.pop(name) for name in arguments & set(overrides)}
        options = resolve_options(
            variant, overrides, max_len=getattr(config, "max_position_embeddings", None)
        )
        return cls(
            config.hidden_size,
            config.num_attention_heads,
            variant,
            **{**read, **given},
            **options,
        )

    def extra_repr(self) -> str:
        groups = "" if self.num_kv_heads == self.num_heads else f"/{self.num_kv_heads}"
        return f"{self.embed_dim}, heads={self.num_heads}{groups}, variant={self.variant!r}"

    def _weights(self) -> tuple[Tensor, ...]:
        if self.in_proj_weight is not None:
            return self.in_proj_weight.split(self._widths)
        return tuple(self.get_parameter(f"{name}_proj_weight") for name in "qkv")

    def _biases(self) -> tuple[Tensor | None, ...]:
        if self.in_proj_bias is None:
            return (None,) * 3
        return self.in_proj_bias.split(self._widths)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split heads: [B, H, N, D], [B, G, M, D], [B, G, M, D]."""
        if query is key and key is value and self.in_proj_weight is not None:
            packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)
            projected = split_packed(packed, self._widths)
        else:
            sources = zip((query, key, value), self._weights(), self._biases(), strict=True)
            projected = tuple(F.linear(x, weight, bias) for x, weight, bias in sources)
        q, k, v = (self._split(x) for x in projected)
        return q, k, v

    def _shortens(self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> bool:
        """Whether keys and values go through the core before their projections; never where the
        path through `attend` would refuse."""
        if mask.causal or mask.pairwise is not None or mask.slopes is not None:
            return False
        if self.core.implementation != "eager":
            return False
        B, M = key.shape[:2]
        some = B > 0 and M > 0 and query.shape[1] > 0
        fits = query.shape[0] == B and value.shape[:2] == (B, M)
        if not (some and fits):
            return False
        return self.core.shortened_length(M, (self.kdim, self.vdim), self._widths[1]) is not None

    def _project_shortened(
        self, query: Tensor, key: Tensor, value: Tensor, exists: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Split heads [B, H, N, D], [B, H, K, D], [B, H, K, D] of a core that shortens."""
        (of_q, *of_kv), (bias, *biases) = self._weights(), self._biases()
        q = self._split(F.linear(query, of_q, bias))
        projected = []
        for x, weight, bias in zip(
            self.core.shorten(key, value, exists), of_kv, biases, strict=True
        ):
            rows = F.linear(x[..., :-1], weight)
            if bias is not None:
                rows = rows + x[..., -1:].to(rows.dtype) * bias.to(rows.dtype)
            projected.append(self._split(rows))
        return q, *expand_groups(q, *projected)

    def _order(
        self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask
    ) -> tuple[Tensor, Tensor] | None:
        """The core's order of tokens, where the input can be put into it before it is projected;
        never where the path through `attend` would refuse."""
        if not (query is key and key is value) or query.numel() == 0:
            return None
        if mask.causal or mask.pairwise is not None or self.positions is not None:
            return None
        if self.num_kv_heads != self.num_heads or self.core.implementation != "eager":
            return None
        if not hand_written(query, mask.key_padding, *self.parameters()):
            return None
        return self.core.order(query.shape[1], mask)

    def _forward_in_order(
        self, x: Tensor, mask: AttentionMask, order: Tensor, place: Tensor
    ) -> Tensor:
        x = reordered(x, order, place)
        out = self.core.attend_in_order(*self._project(x, x, x), mask)
        return reordered(self.out_proj(rearrange(out, "b h n v -> b n (h v)")), place, order)

    def _split(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h d) -> b h n d", d=self.head_dim)

    def _check_positions(self) -> None:
        """Refuse at construction what the variant cannot carry."""
        base = self.rotary_base
        number = isinstance(base, (int, float)) and not isinstance(base, bool)
        if not number or not 0 < base < math.inf:
            raise OptionError(f"rotary_base={base!r}: allowed is a finite number above 0")
        if self.positions is None:
            return
        require_choice("positions", self.positions, ["rotary", "alibi"])
        if not getattr(self.core.capabilities, self.positions):
            raise refusal(self.variant, self.positions)
        if self.positions == "rotary" and self.head_dim % 2:
            raise OptionError(f"head_dim={self.head_dim}: rotary positions need an even width")

    @property
    def slopes(self) -> Tensor | None:
        """ALiBi's slopes [H] in fp32 at least, whatever the module is cast to."""
        if self.positions != "alibi":
            return None
        weight = self.out_proj.weight
        exact = torch.promote_types(weight.dtype, torch.float32)
        return alibi_slopes(self.num_heads, weight.device, exact)

    def _place(self, q: Tensor, k: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Turn queries and keys by their rotary positions, from `start` on."""
        if self.positions != "rotary":
            return q, k
        return rotate(q, start, self.rotary_base), rotate(k, start, self.rotary_base)

    def _mask(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
        grid: tuple[int, int] | None = None,
    ) -> AttentionMask:
        """Translate torch.nn's masks (True = ignore) into the one mask object (True = seen)."""
        B, N, M = query.shape[0], query.shape[1], key.shape[1]
        if grid is not None:
            grid = as_pair("grid", grid, low=1)
            if grid[0] * grid[1] != N:
                raise ValueError(f"grid={grid} holds {grid[0] * grid[1]} tokens, the input has {N}")
        pairwise = None
        if attn_mask is not None:
            _check_dtype("attn_mask", attn_mask)
            pairwise = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask
            if pairwise.dim() == 3 and pairwise.shape[0] == B * self.num_heads:
                pairwise = rearrange(pairwise, "(b h) n m -> b h n m", b=B)
            if pairwise.shape[-2:] != (N, M) or pairwise.dim() not in (2, 4):
                raise ValueError(
                    f"attn_mask has shape {tuple(attn_mask.shape)}, expected [N, M] = {(N, M)}, "
                    f"[B·H, N, M] or [B, H, N, M]"
                )
        keep = None
        if key_padding_mask is not None:
            _check_dtype("key_padding_mask", key_padding_mask)
            if key_padding_mask.shape != (B, M):
                raise ValueError(
                    f"key_padding_mask has shape {tuple(key_padding_mask.shape)}, "
                    f"expected [B, M] = {(B, M)}"
                )
            keep, added = _split_padding(key_padding_mask)
            if added is not None:
                row = added[:, None, None, :]
                if pairwise is None:
                    pairwise = row
                elif pairwise.dtype == torch.bool:
                    pairwise = row.masked_fill(~pairwise, float("-inf"))
                else:
                    pairwise = pairwise + row
        return AttentionMask(is_causal, keep, pairwise, self.slopes, grid)


def _check_dtype(name: str, mask: Tensor) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name} has dtype {mask.dtype}: give bool (True = ignore) or float")


def _split_padding(mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """A padding mask as (bool, True = exists) where that says it all, else as (None, added)."""
    if mask.dtype == torch.bool:
        return ~mask, None
    exists = mask > torch.finfo(mask.dtype).min
    if bool((mask.masked_fill(~exists, 0.0) == 0).all()):
        return exists, None
    return None, mask
