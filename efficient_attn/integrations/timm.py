"""Any variant in timm's vision transformers: as their ``attn_layer``, or in a built model's place.

    timm.create_model("vit_small_patch16_224", attn_layer=attention_layer("performer"))
    ea.swap(model, "performer")

timm itself is not imported: its `Attention` is known by what it consists of.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from einops import rearrange
from torch import Tensor, nn

from efficient_attn.attention import AttentionMask, make_core
from efficient_attn.attention.apply import attend

_PARTS = ("qkv", "q_norm", "k_norm", "attn_drop", "proj", "proj_drop")


class TimmAttention(nn.Module):
    """Self-attention of timm's vision transformers around a variant.

    dim: E, width of tokens; num_heads: H, or dim_head: width of one. qkv_bias, proj_bias: of the
    projections; qk_norm, scale_norm: norms of queries and keys, of the output; attn_drop,
    proj_drop: dropout of weights and output. Parameters have timm's names; a variant's own stand
    under ``core.``. options: the variant's.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        dim_head: int | None = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Callable[..., nn.Module] | None = None,
        device: Any = None,
        dtype: Any = None,
        *,
        variant: str = "full",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if dim_head is None and dim % num_heads:
            raise ValueError(f"dim={dim} is no multiple of num_heads={num_heads}")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.num_heads, self.head_dim = num_heads, dim_head or dim // num_heads
        wide = self.num_heads * self.head_dim
        norm: Callable[..., nn.Module] = norm_layer or nn.LayerNorm
        self.qkv = nn.Linear(dim, 3 * wide, bias=qkv_bias, **factory)
        self.q_norm = norm(self.head_dim, **factory) if qk_norm else nn.Identity()
        self.k_norm = norm(self.head_dim, **factory) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.norm = norm(wide, **factory) if scale_norm else nn.Identity()
        self.proj = nn.Linear(wide, dim, bias=proj_bias, **factory)
        self.proj_drop = nn.Dropout(proj_drop)
        self.core = make_core(variant, num_heads, self.head_dim, **factory, **(options or {}))

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """x [B, N, E] -> [B, N, E]. attn_mask: bool (True = take part) or added, broadcastable to
        [B, H, N, N]; `UnsupportedAttention` where the variant has none."""
        q, k, v = rearrange(self.qkv(x), "b n (t h d) -> t b h n d", t=3, h=self.num_heads)
        out, _ = attend(
            self.core,
            self.q_norm(q),
            self.k_norm(k),
            v,
            AttentionMask(is_causal, pairwise=attn_mask),
            cross=False,
            dropout_p=self.attn_drop.p if self.training else 0.0,
        )
        out = self.norm(rearrange(out, "b h n d -> b n (h d)"))
        dropped: Tensor = self.proj_drop(self.proj(out))
        return dropped


def attention_layer(variant: str, **options: Any) -> Callable[..., nn.Module]:
    """What timm's models take as ``attn_layer``: attention of this variant with these options."""
    return partial(TimmAttention, variant=variant, options=options)


def is_attention(module: nn.Module) -> bool:
    """Whether it is timm's `Attention`, by its name and parts."""
    named = type(module).__name__ == "Attention" and type(module).__module__.startswith("timm.")
    return named and all(hasattr(module, part) for part in _PARTS)


def stand_in(module: Any, variant: str, **options: Any) -> TimmAttention:
    """A timm `Attention` with another variant. Its parts are shared, not copied."""
    weight = module.qkv.weight
    made = TimmAttention(
        module.qkv.in_features,
        module.num_heads,
        module.head_dim,
        device=weight.device,
        dtype=weight.dtype,
        variant=variant,
        options=options,
    )
    for part in (*_PARTS, "norm"):
        if hasattr(module, part):
            setattr(made, part, getattr(module, part))
    return made
