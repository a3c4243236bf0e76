"""The lines of Python that use a choice, ready to run as printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from efficient_attn.analysis.request import Request


def snippet(variant: str, options: Mapping[str, Any], request: Request) -> str:
    """A module with the variant and its options, and one forward pass of the requested workload.

    The embedding is heads × head_dim wide. Lengths that an option fixes (`max_len`) are raised to
    the request's; a grid that does not hold the requested length is left out.
    """
    size = request.heads * request.head_dim
    given = {**_placed(options, request), **_where(request)}
    arguments = "".join(f"    {name}={text},\n" for name, text in given.items())
    lines = [
        "import torch",
        "import efficient_attn as ea",
        "",
        "attention = ea.MultiHeadAttention(",
        f"    embed_dim={size},",
        f"    num_heads={request.heads},",
        f'    variant="{variant}",',
        f"{arguments})",
        f"x = torch.randn({request.batch}, {request.length}, {size}{_tensor(request)})",
    ]
    inputs = ["x"]
    if request.workload.cross:
        lines.append(
            f"memory = torch.randn({request.batch}, {request.keys}, {size}{_tensor(request)})"
        )
        inputs += ["memory", "memory"]
    if request.padding:
        kept = request.keys - round(request.padding * request.keys)
        device = "" if request.device == "cpu" else f', device="{request.device}"'
        lines += [
            "# True marks padding, which is ignored.",
            f"padded = (torch.arange({request.keys}{device}) >= {kept})"
            f".expand({request.batch}, -1)",
        ]
        inputs.append("key_padding_mask=padded")
    if request.need_weights:
        inputs.append("need_weights=True")
    if request.workload.causal:
        inputs.append("is_causal=True")
    lines.append(f"output, weights = attention({', '.join(inputs)})")
    return "\n".join(lines) + "\n"


def _placed(options: Mapping[str, Any], request: Request) -> dict[str, str]:
    """Options as Python source, with what depends on the length set for the request."""
    texts = {}
    for name, value in options.items():
        if name == "max_len":
            value = max(request.length, request.keys)
        elif name == "grid" and value is not None and value[0] * value[1] != request.length:
            continue
        if value is not None:  # None leaves the choice to the module, as leaving it out does
            texts[name] = _source(value)
    return texts


def _where(request: Request) -> dict[str, str]:
    placed = {}
    if request.device != "cpu":
        placed["device"] = _source(request.device)
    if request.dtype != "float32":
        placed["dtype"] = f"torch.{request.dtype}"
    return placed


def _tensor(request: Request) -> str:
    return "".join(f", {name}={text}" for name, text in _where(request).items())


def _source(value: Any) -> str:
    """Python for a JSON value; JSON knows no tuples, and options that are pairs are tuples."""
    if isinstance(value, (list, tuple)):
        items = ", ".join(_source(item) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
