"""The single path from a request to a variant: check it can be honoured, then run."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from efficient_attn.attention.masks import AttentionMask, causal_keep
from efficient_attn.attention.registry import refusal
from efficient_attn.attention.variant import AttentionVariant


def attend(
    core: AttentionVariant,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask,
    *,
    cross: bool,
    dropout_p: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Run `core` on split heads; grouped key/value heads are repeated for their query heads.

    q [B, H, N, D], k [B, G, M, D], v [B, G, M, V] with H a multiple of G -> [B, H, N, V] and
    weights [B, H, N, M] on request. Raises `UnsupportedAttention` for what the variant does not
    honour, ValueError for shapes that do not fit.
    """
    k, v = expand_groups(q, k, v)
    mask = _narrow(core, mask, q.shape[-2], k.shape[-2])
    _check(core, q, k, v, mask, cross=cross, need_weights=need_weights)
    if need_weights:
        weights = core.weights(q, k, mask)
        if dropout_p:
            weights = torch.nn.functional.dropout(weights, dropout_p)
        return weights @ v, weights
    return core.run(q, k, v, mask, dropout_p), None


def expand_groups(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat G key/value heads to the H query heads; query head h reads group h // (H / G)."""
    H, G = q.shape[1], k.shape[1]
    if v.shape[1] != G or H % G:
        raise ValueError(
            f"{H} query heads cannot share {G} key heads and {v.shape[1]} value heads: "
            "both must be equal and divide the number of query heads"
        )
    if H == G:
        return k, v
    return k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)


def _narrow(core: AttentionVariant, mask: AttentionMask, N: int, M: int) -> AttentionMask:
    """Read a pairwise mask that only spells out causality as the causal flag.

    torch.nn's stacks pass the square mask along with `is_causal`; a variant without pairwise
    masks honours that mask exactly by being causal.
    """
    pairwise = mask.pairwise
    if pairwise is None or core.capabilities.pairwise_mask or pairwise.shape[-2:] != (N, M):
        return mask
    if pairwise.dtype == torch.bool:
        seen = pairwise
    else:
        seen = pairwise > torch.finfo(pairwise.dtype).min
        if bool((pairwise.masked_fill(~seen, 0.0) != 0).any()):
            return mask
    if bool((seen == causal_keep(N, M, seen.device)).all()):
        return replace(mask, causal=True, pairwise=None)
    return mask


def _check(
    core: AttentionVariant,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask,
    *,
    cross: bool,
    need_weights: bool,
) -> None:
    B, _, N, D = q.shape
    M = k.shape[-2]
    if k.shape[0] != B or v.shape[0] != B or v.shape[-2] != M or k.shape[-1] != D:
        raise ValueError(
            f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}; "
            "expected [B, H, N, D], [B, G, M, D], [B, G, M, V]"
        )
    if B < 1 or N < 1 or M < 1:  # min() would tie them to each other in a traced program
        raise ValueError(f"attention needs a batch and lengths of at least 1, got {B}, {N}, {M}")
    can = core.capabilities
    pattern = f"{'causal' if mask.causal else 'noncausal'}_{'cross' if cross else 'self'}"
    if not getattr(can, pattern):
        raise refusal(core.name, pattern)
    if can.equal_lengths and N != M:
        raise refusal(core.name, "unequal_lengths", f"got {N} queries and {M} keys")
    for capability, asked in (
        ("key_padding", mask.key_padding is not None),
        ("pairwise_mask", mask.pairwise is not None),
        ("alibi", mask.slopes is not None),
        ("weights", need_weights),
    ):
        if asked and not getattr(can, capability):
            raise refusal(core.name, capability)
    if mask.key_padding is not None and mask.key_padding.shape != (B, M):
        raise ValueError(
            f"key padding mask has shape {tuple(mask.key_padding.shape)}, expected {(B, M)}"
        )
