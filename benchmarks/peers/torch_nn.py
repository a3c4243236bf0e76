"""torch.nn's attention and Transformer beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import efficient_attn.nn as ours_nn
from efficient_attn import MultiHeadAttention

from .comparison import B, Comparison, E, H, absent, compare, randomise, same, tokens

N, M, FF = 11, 14, 64


def rows() -> Iterator[Comparison]:
    yield from attention_rows()
    yield from encoder_rows()
    yield from decoder_rows()
    yield from transformer_rows()


def causal() -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(N)


def band(rows: int, columns: int) -> Tensor:
    """Bool, True = ignore; the first column stays visible, so that no row is blind."""
    mask = (torch.arange(rows)[:, None] - torch.arange(columns)).abs() > 3
    mask[:, 0] = False
    return mask


def attention_rows() -> Iterator[Comparison]:
    """torch.nn.MultiheadAttention: outputs and the weights of every head."""
    cases: dict[str, dict[str, Any]] = {
        "no mask": {},
        "bool mask": {"attn_mask": band(N, M)},
        "float mask": {"attn_mask": torch.randn(N, M)},
        "float mask per head": {"attn_mask": torch.randn(B * H, N, M)},
        "padding": {"key_padding_mask": absent(M, [M, 5, 9])},
        "float padding": {"key_padding_mask": torch.randn(B, M)},
        "bool mask, padding": {"attn_mask": band(N, M), "key_padding_mask": absent(M, [M, 5, 9])},
    }
    widths: dict[str, dict[str, int]] = {"": {}, ", kdim 20, vdim 24": {"kdim": 20, "vdim": 24}}
    per_head = {"need_weights": True, "average_attn_weights": False}
    for label, width in widths.items():
        inputs = tokens(N), tokens(M, width.get("kdim", E)), tokens(M, width.get("vdim", E))
        for settings, masks in cases.items():
            yield _attention(settings + label, width, inputs, {**masks, **per_head})
        yield _attention(f"padding, averaged weights{label}", width, inputs, cases["padding"])
    x = tokens(N)
    alone: dict[str, dict[str, Any]] = {
        "self, no weights": {},
        "self, causal, no weights": {"attn_mask": causal(), "is_causal": True},
        "self, padding, no weights": {"key_padding_mask": absent(N, [N, 5, 9])},
    }
    for settings, masks in alone.items():
        yield _attention(settings, {}, (x, x, x), {**masks, "need_weights": False})


def _attention(
    settings: str, width: Mapping[str, int], inputs: tuple[Tensor, ...], keywords: dict[str, Any]
) -> Comparison:
    theirs = randomise(nn.MultiheadAttention(E, H, batch_first=True, **width))
    ours = MultiHeadAttention.from_torch(theirs, variant="full")
    keywords = {"need_weights": True, **keywords}
    return compare("nn.MultiheadAttention", settings, theirs, ours, *inputs, **keywords)


def encoder_rows() -> Iterator[Comparison]:
    padding = absent(N, [N, 4, 7])
    yield from _layers(
        "Encoder",
        (tokens(N),),
        {
            "no mask": (),
            "causal": (causal(),),
            "bool mask": (band(N, N),),
            "padding": (None, padding),
            "causal, padding": (causal() < 0, padding),
        },
        padding_at=1,
    )


def decoder_rows() -> Iterator[Comparison]:
    padding = absent(N, [N, 4, 7])
    yield from _layers(
        "Decoder",
        (tokens(N), tokens(M)),
        {
            "no mask": (),
            "causal": (causal(),),
            "causal, memory mask": (causal(), band(N, M)),
            "causal, both padded": (causal() < 0, None, padding, absent(M, [6, M, 9])),
        },
        padding_at=2,
    )


def _layers(
    kind: str, inputs: tuple[Tensor, ...], cases: Mapping[str, tuple[Any, ...]], *, padding_at: int
) -> Iterator[Comparison]:
    """torch.nn's layer, and two of them under a closing norm, post- and pre-norm.

    cases: masks by position, the same for layer and stack; padding_at: which of them is padding.
    """
    for norm_first in (False, True):
        arguments = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
        for settings, masks in cases.items():
            real = None if len(masks) <= padding_at else ~masks[padding_at]
            where = f"{settings}, {'pre' if norm_first else 'post'}-norm"
            layers = [
                getattr(package, f"Transformer{kind}Layer")(E, H, FF, **arguments)
                for package in (nn, ours_nn)
            ]
            stacks = [
                getattr(package, f"Transformer{kind}")(layer, 2, nn.LayerNorm(E))
                for package, layer in zip((nn, ours_nn), layers, strict=True)
            ]
            for name, pair in (("Layer", layers), (", 2 layers", stacks)):
                yield compare(
                    f"nn.Transformer{kind}{name}", where, *same(*pair), *inputs, *masks, real=real
                )


def transformer_rows() -> Iterator[Comparison]:
    padding, source_padding = absent(N, [N, 4, 7]), absent(M, [6, M, 9])
    padded = {
        "src_key_padding_mask": source_padding,
        "tgt_key_padding_mask": padding,
        "memory_key_padding_mask": source_padding,
    }
    for norm_first in (False, True):
        norm = "pre-norm" if norm_first else "post-norm"
        pair = same(
            nn.Transformer(E, H, 2, 2, FF, 0.0, batch_first=True, norm_first=norm_first),
            ours_nn.Transformer(E, H, 2, 2, FF, 0.0, norm_first=norm_first),
        )
        inputs = tokens(M), tokens(N)
        name = "nn.Transformer, 2+2 layers"
        mask = causal()
        yield compare(name, f"causal, {norm}", *pair, *inputs, tgt_mask=mask)
        yield compare(
            name, f"causal, padding, {norm}", *pair, *inputs, real=~padding, tgt_mask=mask, **padded
        )
