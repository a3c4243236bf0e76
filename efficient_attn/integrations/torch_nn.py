"""Any variant where a model of torch.nn has its `MultiheadAttention`, with the same weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.attention import MultiHeadAttention
from efficient_attn.attention.masks import causal_keep


class TorchAttention(MultiHeadAttention):
    """`MultiHeadAttention` that is called as `torch.nn.MultiheadAttention` is.

    Either order of batch and length, inputs without a batch, weights given unless they are
    declined. give_weights=False declines them always: for models that ask by default and use none.
    """

    _qkv_same_embed_dim = False  # by which torch.nn's layers leave fused paths that pass us by
    batch_first: bool
    give_weights: bool

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `torch.nn.MultiheadAttention.forward`; is_causal hints that attn_mask is causal."""
        if query.is_nested or key.is_nested or value.is_nested:
            raise ValueError(
                "nested tensors are not supported: pad them (torch.nested.to_padded_tensor) and "
                "give key_padding_mask"
            )
        batched = query.dim() == 3
        swapped = batched and not self.batch_first

        def turned(x: Tensor) -> Tensor:
            return x.transpose(0, 1) if swapped else x if batched else x[None]

        q = turned(query)
        k = q if key is query else turned(key)
        v = k if value is key else turned(value)
        if not batched and key_padding_mask is not None:
            key_padding_mask = key_padding_mask[None]
        if is_causal and attn_mask is None:
            raise ValueError("is_causal says that attn_mask is causal: give attn_mask as well")
        causal = attn_mask is not None and is_causal and _is_causal(attn_mask)
        out, weights = super().forward(
            q,
            k,
            v,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights and self.give_weights,
            attn_mask=None if causal else attn_mask,
            average_attn_weights=average_attn_weights,
            is_causal=causal,
        )
        if not batched:
            return out[0], None if weights is None else weights[0]
        return turned(out), weights


def stand_in(
    module: nn.MultiheadAttention, variant: str, give_weights: bool = True, **options: Any
) -> TorchAttention:
    """`module` with another variant. Its parameters are shared, not copied.

    ValueError for what has no counterpart: bias_k and bias_v, add_zero_attn.
    """
    made = TorchAttention.from_torch(module, variant, **options)
    assert isinstance(made, TorchAttention)
    made.batch_first, made.give_weights = module.batch_first, give_weights
    for name, parameter in module.named_parameters():
        if name.startswith("out_proj."):
            setattr(made.out_proj, name.removeprefix("out_proj."), parameter)
        else:
            setattr(made, name, parameter)
    return made


def _is_causal(mask: Tensor) -> bool:
    """Whether a mask (True = ignore, or added) says what the hint says; True without a look where a
    traced program could not look."""
    if torch.compiler.is_compiling():
        return True
    N, M = mask.shape[-2:]
    if N != M:
        return False
    ignored = mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min
    free = mask.dtype == torch.bool or not bool((mask.masked_fill(ignored, 0.0) != 0).any())
    return free and bool((ignored == ~causal_keep(N, M, mask.device)).all())
