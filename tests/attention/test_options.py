"""An option or size of the wrong name, type or range is an error written for the person."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shipped import SHIPPED
from torch import nn

import efficient_attn as ea

from .conftest import OPTIONS, qkv

EACH_VARIANT = pytest.mark.parametrize("name", SHIPPED)


def build(name: str, **options: Any) -> nn.Module:
    module: nn.Module = ea.MultiHeadAttention(16, 2, name, **options)
    return module


def required(name: str) -> dict[str, Any]:
    return OPTIONS.get(name, [{}])[0]


@EACH_VARIANT
def test_an_option_of_the_wrong_name(name: str) -> None:
    for call in (
        lambda: build(name, **required(name), wimdow=3),
        lambda: ea.attention(*qkv(4), variant=name, **required(name), wimdow=3),
    ):
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        message = str(caught.value)
        assert "wimdow" in message
        assert all(option in message for option in ea.describe(name).options), message


@pytest.mark.parametrize("value", ["banana", object(), [1, 2, 3, 4], {"a": 1}], ids=type)
@EACH_VARIANT
def test_an_option_of_the_wrong_type(name: str, value: Any) -> None:
    for option in ea.describe(name).options:
        with pytest.raises((ValueError, TypeError)) as caught:
            build(name, **{**required(name), option: value})
        assert option in str(caught.value)
        assert repr(value) in str(caught.value) or str(value) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("full", "implementation", "fussed"),
        ("full", "implementation", None),
        ("local_window", "window", -1),
        ("local_window", "window", (1, -1)),
        ("local_window", "window", (1, 2, 3)),
        ("local_window", "window", 2.5),
        ("local_window", "window", True),
        ("local_window", "window", None),
        ("local_window", "global_tokens", -1),
        ("local_window", "global_tokens", 1.5),
        ("linformer", "k", 0),
        ("linformer", "k", -4),
        ("linformer", "k", "4"),
        ("linformer", "k", True),
        ("linformer", "max_len", 0),
        ("linformer", "share", "head"),
        ("linformer", "seed", "x"),
        ("performer", "num_features", 0),
        ("performer", "num_features", 8.0),
        ("performer", "redraw_interval", 0),
        ("performer", "redraw_interval", -1),
        ("performer", "seed", 1.5),
        ("shifted_window", "window", 0),
        ("shifted_window", "window", -2),
        ("shifted_window", "shift", -1),
        ("shifted_window", "shift", 4),
        ("shifted_window", "shift", 100),
        ("shifted_window", "grid", (0, 3)),
        ("shifted_window", "grid", (3,)),
        ("shifted_window", "grid", 3.5),
        ("shifted_window", "relative_bias", "yes"),
        ("shifted_window", "relative_bias", 2),
    ],
    ids=str,
)
def test_an_option_out_of_range(name: str, option: str, value: Any) -> None:
    base = {"window": 4, "shift": 1} if name == "shifted_window" else required(name)
    with pytest.raises((ValueError, TypeError)) as caught:
        build(name, **{**base, option: value})
    message = str(caught.value)
    assert option in message
    # Of a pair, the offending part is enough.
    parts = value if isinstance(value, tuple) else ()
    assert any(str(x) in message for x in (value, *parts)), message


def test_a_pair_of_windows_needs_a_grid() -> None:
    with pytest.raises((ValueError, TypeError), match="window"):
        build("shifted_window", window=(2, 3), shift=0)


@pytest.mark.parametrize("kwarg", ["embed_dim", "num_heads"])
def test_sizes_must_be_positive(kwarg: str) -> None:
    sizes = {"embed_dim": 16, "num_heads": 2, kwarg: 0}
    with pytest.raises((ValueError, TypeError), match=kwarg):
        ea.MultiHeadAttention(**sizes)


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"embed_dim": 10, "num_heads": 4}, "num_heads"),
        ({"embed_dim": 16, "num_heads": 4, "num_kv_heads": 3}, "num_kv_heads"),
        ({"embed_dim": 16, "num_heads": 4, "num_kv_heads": 0}, "num_kv_heads"),
        ({"embed_dim": 16, "num_heads": 4, "dropout": 1.5}, "dropout"),
        ({"embed_dim": 16, "num_heads": 4, "dropout": -0.1}, "dropout"),
        ({"embed_dim": 16, "num_heads": 4, "head_dim": 0}, "head_dim"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit(kwargs: dict[str, Any], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        ea.MultiHeadAttention(**kwargs)


def test_linformer_says_when_the_input_is_too_long() -> None:
    module = build("linformer", k=4, max_len=8)
    module(torch.randn(1, 8, 16))
    with pytest.raises(ValueError, match="max_len") as caught:
        module(torch.randn(1, 9, 16))
    assert "8" in str(caught.value)
    assert "9" in str(caught.value)


def test_a_grid_says_when_the_length_does_not_fit() -> None:
    module = build("shifted_window", window=2, shift=1, grid=(3, 4))
    with pytest.raises(ValueError, match="grid") as caught:
        module(torch.randn(1, 11, 16))
    assert "11" in str(caught.value)
