"""The one mask object that variants read, and softmax attention under it.

Inside the package a mask says who takes part: **True = the key is seen**. The doors of the
package translate: `MultiHeadAttention` from torch.nn's "True = ignore", `attention` from
`scaled_dot_product_attention`'s "True = take part".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from efficient_attn.attention.kernels.flash import hand_written


@dataclass(frozen=True)
class AttentionMask:
    """Who may see whom, beyond what the variant itself restricts.

    causal: query i of N sees keys j <= i + (M - N) of M; the last query sees every key.
    key_padding: bool [B, M], True where the key exists; None = all exist.
    pairwise: bool (True = seen) or float (added to the scores; -inf and the lowest number of the
        type mean not seen), broadcastable to [B, H, N, M].
    slopes: [H], ALiBi: slope times distance is taken from the scores.
    grid: (rows, columns) on which the tokens of this call stand; None = as the variant was told.
    """

    causal: bool = False
    key_padding: Tensor | None = None
    pairwise: Tensor | None = None
    slopes: Tensor | None = None
    grid: tuple[int, int] | None = None

    def select(self, index: Tensor) -> AttentionMask:
        """The mask of the samples index [B']; a pairwise one is [B, ...] or the same for all."""
        padding, pairwise = self.key_padding, self.pairwise
        if padding is not None:
            padding = padding.index_select(0, index)
        if pairwise is not None and pairwise.dim() == 4 and pairwise.shape[0] > 1:
            pairwise = pairwise.index_select(0, index)
        return replace(self, key_padding=padding, pairwise=pairwise)

    def keep(self, N: int, M: int, device: torch.device) -> Tensor | None:
        """Dense bool of everything boolean in the mask, broadcastable to [B, H, N, M].

        Only for variants whose cost is N·M anyway, and for small N.
        """
        parts = []
        if self.causal:
            parts.append(causal_keep(N, M, device))
        if self.key_padding is not None:
            parts.append(self.key_padding[:, None, None, :])
        if self.pairwise is not None:
            boolean = self.pairwise.dtype == torch.bool
            parts.append(self.pairwise if boolean else _seen(self.pairwise))
        return intersect(*parts)

    def bias(self, N: int, M: int, device: torch.device) -> Tensor | None:
        """What is added to the scores, finite, broadcastable to [B, H, N, M]; None = nothing."""
        added = None
        if self.pairwise is not None and self.pairwise.dtype != torch.bool:
            added = self.pairwise.masked_fill(~_seen(self.pairwise), 0.0)
        if self.slopes is not None:
            queries = torch.arange(M - N, M, device=device)
            distance = distance_bias(self.slopes, queries, torch.arange(M, device=device))
            added = distance if added is None else added + distance
        return added


def causal_keep(N: int, M: int, device: torch.device, columns: int | None = None) -> Tensor:
    """Bool [N, M], True where key j <= i + (M - N); with `columns`, that many keys instead of M."""
    return torch.ones(N, columns or M, dtype=torch.bool, device=device).tril(M - N)


def intersect(*masks: Tensor | None) -> Tensor | None:
    """Logical and of the masks given, by broadcasting; None when there is none."""
    result: Tensor | None = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else result & mask
    return result


def distance_bias(slopes: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """−slope_h·|i − j| as [1, H, n, m] for the positions `queries` [n] and `keys` [m]."""
    distance = (queries[:, None] - keys[None, :]).abs()
    return -slopes[None, :, None, None] * distance


def _seen(bias: Tensor) -> Tensor:
    """Where a float mask does not exclude."""
    return bias > torch.finfo(bias.dtype).min


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """softmax(q kᵀ/√D + bias) v over the keys kept, through the fused kernel.

    q [..., N, D], k [..., M, D], v [..., M, V], four dimensions in all; keep (bool) and bias
    (finite float) broadcast to [..., N, M]. A query that keeps nothing gets zeros and passes no
    gradient. The fused kernel for CPU does so itself; in others it attends to everything, where
    -inf alone would make NaN, and is zeroed afterwards, in a copy of the output.
    """
    if bias is not None:  # what half precision cannot hold becomes the most it can
        limits = torch.finfo(q.dtype)
        bias = bias.clamp(limits.min, limits.max).to(q.dtype)
    if keep is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout_p)
    if hand_written(q, k, v, keep, bias) and _is_flash(q, k, v, bias, dropout_p):
        attn_mask = keep if bias is None else bias.masked_fill(~keep, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
    alive = keep.any(-1, keepdim=True)
    attn_mask = keep | ~alive
    if bias is not None:
        attn_mask = bias.masked_fill(~attn_mask, float("-inf"))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout_p)
    return out.masked_fill(~alive, 0.0)


def _is_flash(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout_p: float) -> bool:
    """Whether torch takes its fused kernel for these tensors on the CPU, under a mask."""
    chosen = torch._fused_sdp_choice(q, k, v, bias, dropout_p)
    return SDPBackend(chosen) == SDPBackend.FLASH_ATTENTION


def dense_weights(
    q: Tensor, k: Tensor, keep: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """The weights [..., N, M] that `masked_attention` applies, written out.

    Scores and softmax are taken in fp32 at least; a query that keeps nothing has zero weights.
    """
    with torch.autocast(q.device.type, enabled=False):  # which would take fp32 for too much
        dtype = torch.promote_types(q.dtype, torch.float32)
        scores = (q.to(dtype) * q.shape[-1] ** -0.5) @ k.to(dtype).transpose(-1, -2)
        if bias is not None:
            scores = scores + bias.to(dtype)
        if keep is None:
            return scores.softmax(-1).to(q.dtype)
        alive = keep.any(-1, keepdim=True)
        scores = scores.masked_fill(~(keep | ~alive), float("-inf"))
        weights = scores.softmax(-1)
        if hand_written(q, k, keep) and bool(alive.all()):  # which saves a copy of the weights
            return weights.to(q.dtype)
        return weights.masked_fill(~alive, 0.0).to(q.dtype)
