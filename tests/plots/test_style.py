"""A contestant looks the same in every figure, and no two demo contestants look alike."""

from __future__ import annotations

import pytest
from synthetic import OPTIONS

from efficient_attn.plots.style import plain_numbers, style_of


def luminance(colour: str) -> float:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_known_contestants_differ_in_colour_and_in_marker() -> None:
    looks = [style_of(name) for name in OPTIONS]
    assert len({look.color for look in looks}) == len(looks)
    assert len({look.marker for look in looks}) == len(looks)
    assert all(luminance(look.color) < 0.75 for look in looks)


def test_an_unknown_name_keeps_its_look_and_leaves_the_known_ones_theirs() -> None:
    assert style_of("cosformer") == style_of("cosformer")
    assert style_of("cosformer").color not in {style_of(name).color for name in OPTIONS}


@pytest.mark.parametrize("name", ["local_window (window=8)", "local_window_small"])
def test_the_same_variant_under_another_name_keeps_its_colour(name: str) -> None:
    look, base = style_of(name, "local_window"), style_of("local_window")
    assert look.color == base.color
    assert look.marker != base.marker
    assert look.linestyle != base.linestyle


def test_many_unknown_names_are_mostly_told_apart() -> None:
    looks = {style_of(f"variant_{i}") for i in range(12)}
    assert len(looks) >= 10


@pytest.mark.parametrize(("value", "text"), [(0.1, "0.1"), (10.0, "10"), (1000.0, "1000")])
def test_ticks_are_plain_numbers(value: float, text: str) -> None:
    assert plain_numbers(value) == text
