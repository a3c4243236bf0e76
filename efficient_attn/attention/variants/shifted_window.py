"""Shifted-window attention of Swin, on a sequence or on a 2-D grid.

Paper: Liu et al. 2021, "Swin Transformer", section 3.2; relative position bias: equation 4.

Tokens are cut into non-overlapping windows, after a cyclic roll by ``shift``; a token attends
within its window, and a region mask keeps apart what the roll has joined. Put plainly, along each
axis token y belongs to group ⌊(y − shift)/window⌋ and sees exactly the tokens of its own group:

    out_i = Σ_j softmax_j(q_i·k_j / √d + bias[pos_i − pos_j]) v_j   over   group(j) = group(i)

Padding to whole windows comes before the roll and is masked, so any length and any grid work (on a
sequence, padding in front replaces the roll: the groups are the same). On a
grid, the shift is 0 along an axis no longer than its window (as in Swin); on a sequence it always
holds, so that a prefix has the same groups as the whole.

Cost: time O(N·T·d), memory O(N·(d + T)), T tokens in a window.

Windows are counted from the start of the sequence: left padding moves them, so pad right. Causal
attention has a meaning on a sequence only, and crossing to another sequence has none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from efficient_attn.attention.arithmetic import attention_flops
from efficient_attn.attention.blocks import block_count, cut, join, merge_heads
from efficient_attn.attention.errors import OptionError, as_pair, require_choice, require_int
from efficient_attn.attention.grid import (
    Grid,
    Windows,
    cut_grid,
    kept_index,
    kept_windows,
    relative_index,
    window_index,
)
from efficient_attn.attention.kernels.blockwise import Plan, blockwise_attention
from efficient_attn.attention.kernels.flash import hand_written
from efficient_attn.attention.kernels.parts import IndexedPart, Part
from efficient_attn.attention.masks import (
    AttentionMask,
    causal_keep,
    dense_weights,
    distance_bias,
    intersect,
    masked_attention,
)
from efficient_attn.attention.registry import Capabilities, register_variant
from efficient_attn.attention.variant import IMPLEMENTATIONS, AttentionVariant, KeyValueCache

SHORT, SHORT_WITH_BIAS = 96, 256
"""Tokens up to which all pairs at once, and with a bias the formula, are faster than the kernels:
measured at 32 to 1024 with windows of 4 to 64, batches of 1 to 64."""


@dataclass(frozen=True)
class ShiftedWindowOptions:
    """window, shift: tokens, an int or a pair (rows, columns) on a grid; grid: (rows, columns).

    A call may name another grid. shift=None alternates between 0 and half a window from layer to
    layer of a stack, and is 0 in a module on its own. relative_bias: learn Swin's bias per
    head and relative position. implementation: eager, formula or compiled.
    """

    window: int | tuple[int, int] = 64
    shift: int | tuple[int, int] | None = None
    grid: tuple[int, int] | None = None
    relative_bias: bool = False
    implementation: str = "eager"

    def __post_init__(self) -> None:
        if self.grid is not None:
            object.__setattr__(self, "grid", as_pair("grid", self.grid, low=1))
        for name, low in (("window", 1), ("shift", 0)):
            value = getattr(self, name)
            if isinstance(value, (list, tuple)):
                if self.grid is None:
                    raise OptionError(f"{name}={value!r}: a pair needs grid=(rows, columns)")
                object.__setattr__(self, name, as_pair(name, value, low=low))
            elif value is not None:
                require_int(name, value, low=low)
        for size, shift in zip(self.windows, self.shifts, strict=True):
            if shift >= size:
                raise OptionError(f"shift={self.shift!r}: allowed is less than window={size}")
        require_choice("relative_bias", self.relative_bias, [True, False])
        require_choice("implementation", self.implementation, IMPLEMENTATIONS)

    @property
    def windows(self) -> tuple[int, ...]:
        return self._per_axis(self.window)

    @property
    def shifts(self) -> tuple[int, ...]:
        return self._per_axis(self.shift or 0)

    def _per_axis(self, value: int | tuple[int, int]) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        return (value,) if self.grid is None else (value, value)


@register_variant(
    "shifted_window",
    paper='Liu et al. 2021, "Swin Transformer"',
    formula="softmax(QKᵀ/√d + bias, within the group ⌊(y − shift)/window⌋) V",
    time="O(N·T·d), T tokens in a window",
    memory="O(N·(d + T))",
    state="O(T·d)",
    exact=True,
)
class ShiftedWindow(AttentionVariant):
    """Softmax attention inside fixed windows that shift between layers; linear in length."""

    Options = ShiftedWindowOptions
    capabilities = Capabilities(
        noncausal_self=True,
        causal_self=True,
        key_padding=True,
        weights=True,
        decode=True,
        rotary=True,
        alibi=True,
    )
    refusals = {  # noqa: RUF012
        "noncausal_cross": "a window holds queries and keys of the same positions",
        "causal_cross": "a window holds queries and keys of the same positions",
        "decode": "a grid has no order to decode in",
        "rotary": "a grid has two axes",
        "alibi": "a grid has two axes",
        "pairwise_mask": "it would be a dense N×M matrix, which windows exist to avoid",
        "unequal_lengths": "a window holds queries and keys of the same positions",
    }

    def __init__(
        self,
        heads: int,
        head_dim: int,
        options: ShiftedWindowOptions,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(heads, head_dim, options)
        if options.grid is not None:
            self.capabilities = replace(
                self.capabilities, causal_self=False, decode=False, rotary=False, alibi=False
            )
        self.relative_bias: Tensor | None = None
        if options.relative_bias:
            entries = 1
            for size in options.windows:
                entries *= 2 * size - 1
            self.relative_bias = nn.Parameter(
                torch.zeros(entries, heads, device=device, dtype=dtype)
            )

    @classmethod
    def resolve(
        cls,
        options: ShiftedWindowOptions,
        *,
        max_len: int | None,
        grid: tuple[int, int] | None,
        layer: int | None,
    ) -> ShiftedWindowOptions:
        if options.grid is None and grid is not None:
            options = replace(options, grid=grid)
        if options.shift is None:
            half = tuple(size // 2 if (layer or 0) % 2 else 0 for size in options.windows)
            shift = half[0] if options.grid is None else (half[0], half[1])
            options = replace(options, shift=shift)
        return options

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        N = q.shape[-2]
        if not dropout_p and hand_written(q, k, v) and self._dense(N, mask.slopes):
            keep = intersect(mask.keep(N, N, q.device), self._together(N, q.device, mask))
            return masked_attention(q, k, v, keep, mask.bias(N, N, q.device))
        bias = self._window_bias(q.device, mask)
        on = self._on_grid if self._has_grid(mask) else self._on_sequence
        return on(q, k, v, mask, bias, dropout_p)

    def visible(self, N: int, M: int, device: torch.device, *, causal: bool) -> Tensor:
        return self._together(N, device, AttentionMask(causal))

    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        N = q.shape[-2]
        keep = intersect(mask.keep(N, N, q.device), self._together(N, q.device, mask))
        return dense_weights(q, k, keep, self.score_bias(N, N, mask, q.device))

    def score_bias(
        self, N: int, M: int, mask: AttentionMask, device: torch.device
    ) -> Tensor | None:
        bias = mask.bias(N, M, device)
        if self.relative_bias is None:
            return bias
        positions = self._positions(N, device, mask)
        relative = self._bias(positions, positions)
        return relative if bias is None else relative + bias

    def step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: KeyValueCache,
        slopes: Tensor | None = None,
    ) -> tuple[Tensor, KeyValueCache]:
        """The cache keeps the keys and values of the group that the next token belongs to."""
        (window,), (shift,) = self.options.windows, self.options.shifts
        outputs = []
        start, N = 0, q.shape[-2]
        while start < N:
            into = (state.position - shift) % window  # how many slots of the group have passed
            if into == 0:
                state = KeyValueCache(state.k[..., :0, :], state.v[..., :0, :], state.position)
            stop = min(N, start + window - into)
            state = state.append(k[..., start:stop, :], v[..., start:stop, :])
            T = state.k.shape[-2]
            keep = causal_keep(stop - start, T, q.device)
            slots = torch.arange(T, device=q.device)
            bias = self._slot_bias(slots[T - (stop - start) :], slots, slopes)
            outputs.append(masked_attention(q[..., start:stop, :], state.k, state.v, keep, bias))
            start = stop
        return torch.cat(outputs, -2), state

    def flops(
        self,
        batch: int,
        queries: int,
        keys: int,
        *,
        causal: bool,
        backward: bool = False,
        padded: bool = False,
    ) -> int:
        """On a grid every window whole, padding included; on a sequence what there is of it. All
        pairs where they are taken at once. Where the formula is, a bias that wants a gradient has
        the scores written out."""
        written_out = self._by_formula(queries, self.relative_bias)
        if self._dense(queries, None):
            pairs = queries**2
        elif self.options.grid is None and written_out:
            (window,), (shift,) = self.options.windows, self.options.shifts
            pairs = block_count(-shift % window + queries, window) * window**2
        elif self.options.grid is None:
            (window,), (shift,) = self.options.windows, self.options.shifts
            parts = _sequence_parts(queries, window, shift, causal=causal)
            pairs = sum(part.blocks * part.rows * part.span for part in parts)
        else:
            grid, windows, _ = self._grid(None)
            counts = [block_count(side, window) for side, window in zip(grid, windows, strict=True)]
            pairs = prod(counts) * prod(windows) ** 2
        pairs *= batch * self.heads
        return attention_flops(pairs, self.head_dim, backward=backward, written_out=written_out)

    def step_flops(self, batch: int, context: int, tokens: int) -> int:
        (window,), (shift,) = self.options.windows, self.options.shifts
        pairs, start = 0, context
        while start < context + tokens:
            stop = min(context + tokens, start + window - (start - shift) % window)
            pairs += (stop - start) * (self._cached(start) + stop - start)
            start = stop
        return attention_flops(batch * self.heads * pairs, self.head_dim)

    def step_traffic(self, batch: int, context: int, tokens: int, itemsize: int) -> int:
        read, kept = self._cached(context), self._cached(context + tokens)
        cache = self.cache_traffic(batch, read, tokens, kept, itemsize)
        return super().step_traffic(batch, context, tokens, itemsize) + cache

    def _cached(self, context: int) -> int:
        """Tokens among `context` whose group goes on after them."""
        (window,), (shift,) = self.options.windows, self.options.shifts
        return min(context, (context - shift) % window)

    def _slot_bias(self, queries: Tensor, keys: Tensor, slopes: Tensor | None) -> Tensor | None:
        """Bias [1, H, n, m] between slots of one window of a sequence."""
        bias = None if slopes is None else distance_bias(slopes, queries, keys)
        if self.relative_bias is None:
            return bias
        relative = self._bias(queries[:, None], keys[:, None])
        return relative if bias is None else relative + bias

    def _window_bias(self, device: torch.device, mask: AttentionMask) -> Tensor | None:
        """What is added to the scores of every window, [H, T, T]; None = nothing."""
        slopes = mask.slopes
        if slopes is None and self.relative_bias is None:
            return None
        if self.options.grid is None:
            slots = torch.arange(self.options.windows[0], device=device)
            bias = self._slot_bias(slots, slots, slopes)
        else:
            sizes = self._grid(mask)[1], self.options.windows
            kept = device.type == "cpu" and not torch.compiler.is_compiling()
            index = kept_index(*sizes) if kept else window_index(*sizes, device)
            bias = self._entries(index)
        return None if bias is None else bias[0]

    def _on_sequence(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: AttentionMask,
        bias: Tensor | None,
        dropout_p: float,
    ) -> Tensor:
        fits = hand_written(q, k, v, bias) and q.shape[-1] == v.shape[-1]
        if dropout_p or not fits or self._by_formula(q.shape[-2], bias):
            return self._sequence_formula(q, k, v, mask, bias, dropout_p)
        (T,), (shift,) = self.options.windows, self.options.shifts
        parts = _sequence_parts(q.shape[-2], T, shift, causal=mask.causal)
        plan = [parts]
        if mask.key_padding is not None and not bool(mask.key_padding.all()):
            plan = [[_hidden(part, exists) for part in parts] for exists in mask.key_padding]

        def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
            return self._sequence_formula(q, k, v, mask, bias, 0.0)

        return blockwise_attention(q, k, v, plan, formula, bias)

    def _sequence_formula(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: AttentionMask,
        bias: Tensor | None,
        dropout_p: float,
    ) -> Tensor:
        """Padding in front by what the shift leaves of a window makes every group a window."""
        B, H, N, _ = q.shape
        (T,), (shift,) = self.options.windows, self.options.shifts
        front = -shift % T
        back = block_count(front + N, T) * T - (front + N)
        # A traced program must serve every length, whole windows or not.
        pads = torch.compiler.is_compiling() or front > 0 or back > 0

        def partition(x: Tensor) -> Tensor:
            return cut(merge_heads(x, front, back), T)

        keep = None
        if pads or mask.key_padding is not None:
            if mask.key_padding is None:
                exists = torch.ones(1, N, dtype=torch.bool, device=q.device)
            else:
                exists = mask.key_padding.repeat_interleave(H, 0)
            keep = F.pad(exists, (front, back)).unfold(1, T, T)[:, :, None]
        if mask.causal:
            keep = intersect(keep, causal_keep(T, T, q.device))
        if bias is not None:
            bias = bias[:, None].repeat(B, 1, 1, 1)
        out = masked_attention(partition(q), partition(k), partition(v), keep, bias, dropout_p)
        return join(out, B, front, N)

    def _on_grid(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: AttentionMask,
        bias: Tensor | None,
        dropout_p: float,
    ) -> Tensor:
        """Rows are gathered into windows by index, and back: the roll and the cut in one."""
        grid = self._grid(mask)
        windows = self._windows(q.shape[-2], q.device, grid)
        exists = mask.key_padding

        def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
            return _grid_formula(q, k, v, windows, windows.keep(exists), bias, dropout_p)

        fits = hand_written(q, k, v, bias) and q.shape[-1] == v.shape[-1]
        if dropout_p or not fits or self._by_formula(q.shape[-2], bias):
            return formula(q, k, v, bias)
        plan = self._plan(windows, exists, grid, in_order=False)
        return blockwise_attention(q, k, v, plan, formula, bias)

    def order(self, N: int, mask: AttentionMask) -> tuple[Tensor, Tensor] | None:
        """Window after window, on a grid of whole windows."""
        if self.options.grid is None or self._dense(N, mask.slopes):
            return None
        if self._by_formula(N, self.relative_bias):
            return None
        windows = self._windows(N, torch.device("cpu"), self._grid(mask))
        if windows.tokens.numel() != N:  # each token too many would be projected as well
            return None
        return windows.tokens.flatten(), windows.slot_of

    def attend_in_order(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        grid, exists = self._grid(mask), mask.key_padding
        windows = kept_windows(*grid)

        def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
            return _in_windows(q, k, v, windows, windows.keep(exists), bias, 0.0)

        plan = self._plan(windows, exists, grid, in_order=True)
        return blockwise_attention(q, k, v, plan, formula, self._window_bias(q.device, mask))

    def _plan(self, windows: Windows, exists: Tensor | None, grid: Grid, *, in_order: bool) -> Plan:
        """The windows as blocks of rows in the `order`, or in that of the tokens."""
        if exists is None or bool(exists.all()):
            return _kept_plans(*grid)[in_order]
        return _masked_plan(_blocks(windows)[in_order], windows.keep(exists))

    def _dense(self, N: int, slopes: Tensor | None) -> bool:
        """Whether all pairs in one masked call are faster than windows."""
        return N <= SHORT and self.relative_bias is None and slopes is None

    def _by_formula(self, N: int, bias: Tensor | None) -> bool:
        """Whether the formula is faster than the kernel, which takes windows with a bias sample by
        sample."""
        return N <= SHORT_WITH_BIAS and bias is not None

    def _together(self, N: int, device: torch.device, mask: AttentionMask) -> Tensor:
        """Bool [N, N]: pairs of one group."""
        if self._has_grid(mask):
            windows = self._windows(N, device, self._grid(mask))
            group = windows.group.flatten()[windows.slot_of]
        else:
            (window,), (shift,) = self.options.windows, self.options.shifts
            group = (torch.arange(N, device=device) - shift).div(window, rounding_mode="floor")
        return group[:, None] == group[None, :]

    def _has_grid(self, mask: AttentionMask) -> bool:
        """A call may name another grid; it cannot turn a sequence into one."""
        if self.options.grid is None and mask.grid is not None:
            raise OptionError(
                f"grid={mask.grid}: this shifted_window was built for sequences; give the option "
                "grid=(rows, columns) when it is built, and calls may name another"
            )
        return self.options.grid is not None

    def _grid(self, mask: AttentionMask | None) -> Grid:
        """The grid of a call, with windows no longer than its sides: the rest would be padding."""
        grid = self.options.grid if mask is None else mask.grid or self.options.grid
        assert grid is not None
        rows, columns = (min(pair) for pair in zip(grid, self.options.windows, strict=True))
        return grid, (rows, columns), self.options.shifts

    def _windows(self, N: int, device: torch.device, grid: Grid) -> Windows:
        rows, columns = grid[0]
        if rows * columns != N:
            raise OptionError(f"grid={grid[0]}: holds {rows * columns} tokens, the input has {N}")
        if device.type == "cpu" and not torch.compiler.is_compiling():
            return kept_windows(*grid)
        return cut_grid(*grid, device)

    def _positions(self, N: int, device: torch.device, mask: AttentionMask) -> Tensor:
        """Coordinates [N, axes] of the tokens."""
        index = torch.arange(N, device=device)
        if self.options.grid is None:
            return index[:, None]
        columns = self._grid(mask)[0][1]
        return torch.stack([index // columns, index % columns], -1)

    def _bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Bias [1, H, N, M] for coordinates [N, axes] and [M, axes].

        Pairs further apart than a window, which are never seen, read an entry of no meaning.
        """
        return self._entries(relative_index(queries, keys, self.options.windows))

    def _entries(self, index: Tensor) -> Tensor:
        """Bias [1, H, N, M] of the entries [N, M]."""
        assert self.relative_bias is not None
        return rearrange(self.relative_bias[index], "n m h -> 1 h n m")


@lru_cache(maxsize=32)
def _kept_plans(
    grid: tuple[int, int], sizes: tuple[int, ...], shifts: tuple[int, ...]
) -> tuple[Plan, Plan]:
    with torch.inference_mode(False):
        windows = kept_windows(grid, sizes, shifts)
        apart, together = (_masked_plan(part, windows.keep(None)) for part in _blocks(windows))
        return apart, together


def _blocks(windows: Windows) -> tuple[Part, Part]:
    """The windows among rows in the order of the tokens, and among rows in that of the windows."""
    count, T = windows.tokens.shape
    real = None if windows.tokens.numel() == len(windows.slot_of) else windows.group != -2
    apart = IndexedPart(count, T, 0, T, 0, index=windows.tokens, real=real)
    return apart, Part(count, T, 0, T, 0)


def _masked_plan(part: Part, keep: Tensor | None) -> Plan:
    """keep: [1 or B, windows, T or 1, T] or None. Windows that need no mask, which come first, are
    a part of their own."""
    if keep is None:
        return [[part]]
    plan = []
    for seen in keep:
        free = int(seen.flatten(1).all(-1).long().cumprod(0).sum())
        masked = replace(part, mask=_hiding(seen)[:, None])
        parts = [part.piece(0, free), masked.piece(free, part.blocks - free)]
        plan.append([part for part in parts if part.blocks])
    return plan


def _hiding(seen: Tensor) -> Tensor:
    """0 where a key is seen, else −inf."""
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, float("-inf"))


def _grid_formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    windows: Windows,
    keep: Tensor | None,
    bias: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """Attention within the windows; keep: [1 or B, windows, T or 1, T], bias: [H, T, T]."""
    q, k, v = (x.index_select(2, windows.tokens.flatten()) for x in (q, k, v))
    out = _in_windows(q, k, v, windows, keep, bias, dropout_p)
    return out.index_select(2, windows.slot_of)


def _in_windows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    windows: Windows,
    keep: Tensor | None,
    bias: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """The same for rows that stand in the order of the windows."""
    B, T = q.shape[0], windows.tokens.shape[1]
    if keep is not None:
        keep = rearrange(keep.expand(B, -1, -1, -1), "b c i j -> (b c) 1 i j")
    if bias is not None:
        bias = bias[None]
    q, k, v = (rearrange(x, "b h (c t) d -> (b c) h t d", t=T) for x in (q, k, v))
    out = masked_attention(q, k, v, keep, bias, dropout_p)
    return rearrange(out, "(b c) h t d -> b h (c t) d", b=B)


def _sequence_parts(N: int, T: int, shift: int, *, causal: bool) -> list[Part]:
    """The groups of a sequence: what the shift leaves of the first window, and all others."""
    first = min(shift, N)
    whole = (N - first) // T
    rest = first + whole * T
    sizes = ((1, 0, first, T - shift), (whole, first, T, 0), (1, rest, N - rest, 0))
    return [
        Part(blocks, rows, start, rows, start, _causal_mask(rows) if causal else None, slot=slot)
        for blocks, start, rows, slot in sizes
        if blocks and rows
    ]


def _causal_mask(rows: int) -> Tensor:
    return _hiding(torch.ones(1, 1, rows, rows, dtype=torch.bool, device="cpu").tril())


def _hidden(part: Part, exists: Tensor) -> Part:
    """The part without the keys that do not exist [N]."""
    stop = part.key + part.blocks * part.rows
    hidden = _hiding(exists[part.key : stop].view(part.blocks, 1, 1, part.span))
    return replace(part, mask=hidden if part.mask is None else part.mask + hidden)
