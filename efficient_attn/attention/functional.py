"""Attention on split heads as a function, in the manner of `scaled_dot_product_attention`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention.apply import attend
from efficient_attn.attention.masks import AttentionMask
from efficient_attn.attention.registry import make_options, resolve_options, variant_class
from efficient_attn.attention.variant import AttentionVariant


def make_core(
    variant: str,
    heads: int,
    head_dim: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> AttentionVariant:
    """The variant's module for split heads, with checked options."""
    made = make_options(variant, options)
    return variant_class(variant)(heads, head_dim, made, device=device, dtype=dtype)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    variant: str = "full",
    key_padding_mask: Tensor | None = None,
    need_weights: bool = False,
    parameters: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> Any:
    """Attention of `variant` on split heads. Bool masks: **True = take part**.

    q [B, H, N, D], k [B, G, M, D], v [B, G, M, V], H a multiple of G (grouped-query);
    attn_mask bool, or float added to the scores, broadcastable to [B, H, N, M];
    key_padding_mask bool [B, M]; scale: factor of the scores, 1/sqrt(D) when None.
    parameters: learned or drawn tensors of the variant by name (`core.state_dict()` of a module),
    e.g. ``{"E": ..., "F": ...}`` of linformer; those not given are drawn from the option ``seed``.
    options: the variant's own (`describe`); one may be called k, so tensors go by position.

    Returns [B, H, N, V], or that and the weights [B, H, N, M] with need_weights. Raises
    `UnsupportedAttention` when the variant cannot honour the request.
    """
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise ValueError(
            f"expected q [B, H, N, D], k [B, G, M, D], v [B, G, M, V]; got {tuple(q.shape)}, "
            f"{tuple(k.shape)}, {tuple(v.shape)}"
        )
    for name, given in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
        if given is not None and given.dtype != torch.bool:
            if name == "attn_mask" and given.is_floating_point():
                continue
            raise TypeError(f"{name} has dtype {given.dtype}: give bool, True = take part")
    M = k.shape[-2]
    resolved = resolve_options(variant, options, max_len=M)
    core = make_core(variant, q.shape[1], q.shape[-1], device=q.device, dtype=q.dtype, **resolved)
    core.train(dropout_p > 0)
    if scale is not None:
        q = q * (scale * q.shape[-1] ** 0.5)
    mask = AttentionMask(is_causal, key_padding_mask, attn_mask)
    call = _Attend(core, mask, cross=q.shape[-2] != M, dropout_p=dropout_p, weights=need_weights)
    # What was drawn here is constant; what the caller gave may want gradients.
    tensors = {name: drawn.detach() for name, drawn in call.named_parameters()}
    tensors |= {f"core.{name}": given for name, given in (parameters or {}).items()}
    out, weights = torch.func.functional_call(call, tensors, (q, k, v))
    return (out, weights) if need_weights else out


class _Attend(torch.nn.Module):
    """`attend` as a module, so that the core's tensors can be replaced by the caller's."""

    def __init__(
        self,
        core: AttentionVariant,
        mask: AttentionMask,
        *,
        cross: bool,
        dropout_p: float,
        weights: bool,
    ) -> None:
        super().__init__()
        self.core, self.mask, self.cross = core, mask, cross
        self.dropout_p, self.need_weights = dropout_p, weights

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
        return attend(
            self.core,
            q,
            k,
            v,
            self.mask,
            cross=self.cross,
            dropout_p=self.dropout_p,
            need_weights=self.need_weights,
        )
