"""Attention variants behind one interface.

`register_variant` puts a variant into the registry, `MultiHeadAttention` and `attention` run any
of them; `masks.AttentionMask` is what a variant reads. The package itself can be called, as a
short form of its function: ``efficient_attn.attention(q, k, v)``.
"""

import sys
from types import ModuleType
from typing import Any

from efficient_attn.attention import variants
from efficient_attn.attention.errors import OptionError, UnsupportedAttention
from efficient_attn.attention.functional import attention, make_core
from efficient_attn.attention.masks import AttentionMask
from efficient_attn.attention.multihead import MultiHeadAttention
from efficient_attn.attention.registry import (
    Capabilities,
    VariantSpec,
    describe,
    list_variants,
    make_options,
    refusal,
    register_variant,
    resolve_options,
    unregister_variant,
    variant_class,
)
from efficient_attn.attention.variant import AttentionVariant

__all__ = [
    "AttentionMask",
    "AttentionVariant",
    "Capabilities",
    "MultiHeadAttention",
    "OptionError",
    "UnsupportedAttention",
    "VariantSpec",
    "attention",
    "describe",
    "list_variants",
    "make_core",
    "make_options",
    "refusal",
    "register_variant",
    "resolve_options",
    "unregister_variant",
    "variant_class",
    "variants",
]


class _CallablePackage(ModuleType):
    __wrapped__ = staticmethod(attention)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return attention(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
