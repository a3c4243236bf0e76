"""The keywords that every model here takes, and what its layers make of them."""

from __future__ import annotations

from typing import Any, TypedDict

from torch import nn

from efficient_attn.attention.errors import require_choice, require_int, require_probability
from efficient_attn.nn.block import make_norm
from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.feedforward import activation_function
from efficient_attn.nn.positions import POSITION_KINDS, make_positions

WITHIN_ATTENTION = ("rotary", "alibi")
"""Positions that attention applies to its queries and keys; the others are added to tokens."""


class EncoderSettings(TypedDict, total=False):
    """Keywords that every model here takes; those left out are as in `DEFAULTS`.

    variant, variant_options: attention; a list of variants is repeated over depth.
    d_model, nhead, num_layers, dim_feedforward (None: 4·d_model), dropout, norm_first, activation,
    norm, drop_path: of the encoder's layers.
    positions: "sinusoidal", "learned" or "none", added to tokens; "rotary" or "alibi", within
    attention.
    short_conv: width of a causal depthwise convolution before each attention; 0 is none.
    """

    variant: Variant
    variant_options: VariantOptions
    d_model: int
    nhead: int
    num_layers: int
    dim_feedforward: int | None
    dropout: float
    norm_first: bool
    activation: str
    norm: str
    drop_path: float
    positions: str
    short_conv: int


DEFAULTS: EncoderSettings = {
    "variant": "full",
    "variant_options": None,
    "d_model": 64,
    "nhead": 4,
    "num_layers": 2,
    "dim_feedforward": None,
    "dropout": 0.0,
    "norm_first": True,
    "activation": "gelu",
    "norm": "layer",
    "drop_path": 0.0,
    "positions": "learned",
    "short_conv": 0,
}


def completed(settings: EncoderSettings) -> EncoderSettings:
    """All settings, those left out by their defaults.

    TypeError for a name that is none, OptionError for a value of wrong type or range.
    """
    unknown = sorted(set(settings) - set(DEFAULTS))
    if unknown:
        raise TypeError(
            f"unknown setting(s) {', '.join(unknown)}; allowed are {', '.join(DEFAULTS)}"
        )
    whole: EncoderSettings = {**DEFAULTS, **settings}
    _check(whole)
    return whole


def _check(settings: EncoderSettings) -> None:
    for size in ("d_model", "nhead", "num_layers"):
        require_int(size, settings[size], low=1)
    if settings["dim_feedforward"] is not None:
        require_int("dim_feedforward", settings["dim_feedforward"], low=1)
    require_probability("dropout", settings["dropout"])
    require_choice("norm_first", settings["norm_first"], [True, False])
    activation_function(settings["activation"])
    require_choice("positions", settings["positions"], [*POSITION_KINDS, *WITHIN_ATTENTION])


def layer_arguments(settings: EncoderSettings) -> dict[str, Any]:
    """Of completed settings, what encoder and decoder layers take alike."""
    positions, width = settings["positions"], settings["dim_feedforward"]
    return {
        "d_model": settings["d_model"],
        "nhead": settings["nhead"],
        "dim_feedforward": 4 * settings["d_model"] if width is None else width,
        "dropout": settings["dropout"],
        "activation": settings["activation"],
        "norm_first": settings["norm_first"],
        "positions": positions if positions in WITHIN_ATTENTION else None,
        "norm": settings["norm"],
        "drop_path": settings["drop_path"],
    }


def added_positions(settings: EncoderSettings, max_len: int) -> nn.Module:
    """The module that adds positions to tokens [B, n, D], of completed settings."""
    positions = settings["positions"]
    kind = "none" if positions in WITHIN_ATTENTION else positions
    return make_positions(kind, max_len, settings["d_model"])


def last_norm(settings: EncoderSettings) -> nn.Module | None:
    """The norm after a stack, of completed settings; post-norm layers end in one already."""
    if not settings["norm_first"]:
        return None
    return make_norm(settings["norm"], settings["d_model"], eps=1e-5)


def initialise(embed: nn.Module, settings: EncoderSettings) -> None:
    """Draw an embedding on the scale of the positions added to it, so that neither drowns."""
    std = 1.0 if settings["positions"] == "sinusoidal" else 0.02
    for name, parameter in embed.named_parameters():
        if name == "bias":
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=std)
