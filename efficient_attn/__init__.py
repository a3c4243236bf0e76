"""Efficient attention variants behind one interface, measured and compared.

Names resolve on first use, so that commands which need no tensors start without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from efficient_attn.analysis.ask import pick
    from efficient_attn.attention import (
        MultiHeadAttention,
        UnsupportedAttention,
        VariantSpec,
        attention,
        describe,
        list_variants,
        register_variant,
    )
    from efficient_attn.bench.bench_model import bench_model
    from efficient_attn.integrations.swap import swap, unswap
    from efficient_attn.nn.saving import from_pretrained

__version__ = "0.1.0"

__all__ = [
    "MultiHeadAttention",
    "UnsupportedAttention",
    "VariantSpec",
    "attention",
    "bench_model",
    "describe",
    "from_pretrained",
    "list_variants",
    "pick",
    "register_variant",
    "swap",
    "unswap",
]

_ELSEWHERE = {
    "bench_model": "efficient_attn.bench.bench_model",
    "from_pretrained": "efficient_attn.nn.saving",
    "pick": "efficient_attn.analysis.ask",
    "swap": "efficient_attn.integrations.swap",
    "unswap": "efficient_attn.integrations.swap",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _ELSEWHERE:
        globals()[name] = getattr(import_module(_ELSEWHERE[name]), name)
        return globals()[name]
    package = import_module("efficient_attn.attention")
    # `attention` is the package itself: it can be called (see there), so that
    # `ea.attention(q, k, v)` and `import efficient_attn.attention.masks` both mean what they say.
    value = package if name == "attention" else getattr(package, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
