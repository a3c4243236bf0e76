"""The definitions, in float64 and in the most obvious way: what every fast path is held against.

Letters: B batch, H heads, G key/value heads, N queries, M keys, D head width, V value width,
R random features, K projected length. Masks here follow `F.scaled_dot_product_attention`:
bool True = take part, float is added to the scores; `key_padding` is bool [B, M], True = take part.

Which key a query may see is decided pair by pair in Python loops, so that a rule reads like the
sentence that states it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

Options = Mapping[str, Any]
Pair = tuple[Tensor, Tensor]


# --- who sees whom -----------------------------------------------------------------------------


@cache
def causal_pairs(N: int, M: int) -> Tensor:
    """[N, M] bool. Aligned bottom-right: the last query sees every key."""
    return torch.tensor([[j <= i + (M - N) for j in range(M)] for i in range(N)]).reshape(N, M)


@cache
def local_pairs(N: int, window: int | tuple[int, int], global_tokens: int, causal: bool) -> Tensor:
    """[N, N] bool. Query i sees keys i-left … i+right; leading global tokens see and are seen."""
    left, right = (window, window) if isinstance(window, int) else window

    def sees(i: int, j: int) -> bool:
        in_window = i - left <= j <= i + right
        is_global = i < global_tokens or j < global_tokens
        return (in_window or is_global) and (j <= i or not causal)

    return torch.tensor([[sees(i, j) for j in range(N)] for i in range(N)]).reshape(N, N)


def as_pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """An int stands for both axes."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def window_group(i: int, window: int, shift: int) -> int:
    """The window that position i falls in; positions before the shift are a group of their own."""
    return math.floor((i - shift) / window)


@cache
def shifted_pairs(
    N: int,
    window: int | tuple[int, int],
    shift: int | tuple[int, int],
    grid: tuple[int, int] | None,
    causal: bool,
) -> Tensor:
    """[N, N] bool. Tokens see each other when they share a (shifted) window."""

    def group(i: int) -> tuple[int, ...]:
        if grid is None:
            assert isinstance(window, int)
            assert isinstance(shift, int)
            return (window_group(i, window, shift),)
        groups = []
        for position, length, w, s in zip(
            divmod(i, grid[1]), grid, as_pair(window), as_pair(shift), strict=True
        ):
            groups.append(window_group(position, w, s if length > w else 0))
        return tuple(groups)

    def sees(i: int, j: int) -> bool:
        return group(i) == group(j) and (j <= i or not causal)

    return torch.tensor([[sees(i, j) for j in range(N)] for i in range(N)]).reshape(N, N)


# --- softmax over what is seen -----------------------------------------------------------------


def masked_softmax(scores: Tensor, seen: Tensor) -> Tensor:
    """Softmax of `scores` [B, H, N, M] over the pairs `seen`; a row that sees nothing is zero."""
    scores = scores.masked_fill(~seen, -math.inf)
    peak = scores.detach().amax(-1, keepdim=True)
    unnormalised = torch.exp(scores - torch.where(peak.isinf(), 0.0, peak))
    total = unnormalised.sum(-1, keepdim=True)
    return unnormalised / torch.where(total == 0, 1.0, total)


def combine(
    scores: Tensor,
    pairs: Tensor | None,
    key_padding: Tensor | None,
    attn_mask: Tensor | None,
    causal: bool,
) -> Pair:
    """Scores with the float mask added, and the bool [B, H, N, M] of pairs that all masks allow."""
    N, M = scores.shape[-2:]
    seen = torch.ones_like(scores, dtype=torch.bool)
    if causal:
        seen = seen & causal_pairs(N, M)
    if pairs is not None:
        seen = seen & pairs
    if key_padding is not None:
        seen = seen & rearrange(key_padding, "b m -> b 1 1 m")
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        seen = seen & attn_mask
    elif attn_mask is not None:
        # A float mask at the dtype's floor says "never", as -inf does.
        never = attn_mask <= torch.finfo(attn_mask.dtype).min
        seen = seen & ~never
        scores = scores + attn_mask.masked_fill(never, 0.0).double()
    return scores, seen


# --- the variants ------------------------------------------------------------------------------


def full(
    q: Tensor, k: Tensor, v: Tensor, options: Options, core: nn.Module | None, **masks: Any
) -> Pair:
    """softmax(q kᵀ · scale + mask) v."""
    scores, seen = combine(q @ k.mT * options["scale"], None, **masks)
    weights = masked_softmax(scores, seen)
    return weights @ v, weights


def local_window(
    q: Tensor, k: Tensor, v: Tensor, options: Options, core: nn.Module | None, **masks: Any
) -> Pair:
    """Full attention over the pairs of the sliding window."""
    pairs = local_pairs(
        q.shape[-2], options["window"], options.get("global_tokens", 0), masks["causal"]
    )
    scores, seen = combine(q @ k.mT * options["scale"], pairs, **masks)
    weights = masked_softmax(scores, seen)
    return weights @ v, weights


def shifted_window(
    q: Tensor, k: Tensor, v: Tensor, options: Options, core: nn.Module | None, **masks: Any
) -> Pair:
    """Full attention inside each window, plus the relative position bias where there is one."""
    N, window, grid = q.shape[-2], options["window"], options.get("grid")
    pairs = shifted_pairs(N, window, options.get("shift", 0), grid, masks["causal"])
    scores = q @ k.mT * options["scale"]
    if options.get("relative_bias"):
        assert core is not None
        table = core.relative_bias.double()
        index = torch.zeros(N, N, dtype=torch.long)
        for i in range(N):
            for j in range(N):
                if not pairs[i, j] and not pairs[j, i]:
                    continue
                if grid is None:
                    index[i, j] = (i - j) + (window - 1)
                else:
                    wh, ww = as_pair(window)
                    (yi, xi), (yj, xj) = divmod(i, grid[1]), divmod(j, grid[1])
                    index[i, j] = (yi - yj + wh - 1) * (2 * ww - 1) + (xi - xj + ww - 1)
        scores = scores + rearrange(table[index], "n m h -> h n m")
    scores, seen = combine(scores, pairs, **masks)
    weights = masked_softmax(scores, seen)
    return weights @ v, weights


def linformer(
    q: Tensor, k: Tensor, v: Tensor, options: Options, core: nn.Module | None, **masks: Any
) -> Pair:
    """softmax(q (E k)ᵀ · scale) (F v), padded keys and values zeroed before E and F."""
    assert core is not None
    assert not masks["causal"]
    assert masks["attn_mask"] is None
    M = k.shape[-2]
    E, F = core.E.double()[..., :M], core.F.double()[..., :M]
    if masks["key_padding"] is not None:
        kept = rearrange(masks["key_padding"], "b m -> b 1 m 1")
        k = torch.where(kept, k, 0.0)
        F = F * rearrange(masks["key_padding"], "b m -> b 1 1 m")
    weights = torch.softmax(q @ (E @ k).mT * options["scale"], dim=-1) @ F
    return weights @ v, weights


def performer(
    q: Tensor, k: Tensor, v: Tensor, options: Options, core: nn.Module | None, **masks: Any
) -> Pair:
    """Weights ∝ phi(q)·phi(k), phi(x) = exp(x·w - |x|²/2)/√R, taken through logarithms.

    In logarithms phi(q)·phi(k) is a logsumexp over features, and normalising it over the keys is
    a softmax: nothing can overflow or underflow here, whatever the size of q and k.
    """
    assert core is not None
    assert masks["attn_mask"] is None
    features = core.features.double()

    def log_phi(x: Tensor) -> Tensor:
        x = x / x.shape[-1] ** 0.25
        square = x.square().sum(-1, keepdim=True)
        return x @ features.mT - square / 2 - math.log(len(features)) / 2

    joint = rearrange(log_phi(q), "b h n r -> b h n 1 r") + rearrange(
        log_phi(k), "b h m r -> b h 1 m r"
    )
    scores, seen = combine(torch.logsumexp(joint, dim=-1), None, **masks)
    weights = masked_softmax(scores, seen)
    return weights @ v, weights


ORACLES: dict[str, Callable[..., Pair]] = {
    "full": full,
    "local_window": local_window,
    "linformer": linformer,
    "performer": performer,
    "shifted_window": shifted_window,
}


def dense(
    variant: str,
    options: Options,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_padding: Tensor | None = None,
    attn_mask: Tensor | None = None,
    causal: bool = False,
    core: nn.Module | None = None,
) -> Pair:
    """Output [B, H, N, V] and weights [B, H, N, M] of a variant by its definition, in float64.

    q [B, H, N, D], k [B, G, M, D], v [B, G, M, V]; `core` is the module whose learned or drawn
    tensors the definition needs (projections, features, bias table).
    """
    H = q.shape[1]
    q, k, v = q.double(), k.double(), v.double()
    k, v = (repeat(x, "b g m d -> b (g r) m d", r=H // x.shape[1]) for x in (k, v))
    options = {"scale": 1 / math.sqrt(q.shape[-1]), **options}
    masks = {"key_padding": key_padding, "attn_mask": attn_mask, "causal": causal}
    return ORACLES[variant](q, k, v, options, core, **masks)
