"""Figures of one variant show what the variant does: counts of keys, padding, signs, words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.text import Text
from shipped import SHIPPED

from efficient_attn import UnsupportedAttention, describe
from efficient_attn.attention import (
    AttentionVariant,
    OptionError,
    register_variant,
    unregister_variant,
)
from efficient_attn.commands.options import parse_options
from efficient_attn.commands.show import main
from efficient_attn.plots.visibility import visibility_figure

PATTERNS = ("noncausal_self", "causal_self", "noncausal_cross", "causal_cross")
SMALL = {"local_window": {"window": 2}, "shifted_window": {"window": 4, "shift": 2}}
HIDDEN = 2


def draw(variant: str, options: dict[str, Any], **arguments: Any) -> Figure:
    return visibility_figure(variant, options, **{"length": 10, "head_dim": 4, **arguments})


def words(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(Text))  # type: ignore[attr-defined]


def images(figure: Figure, title: str) -> list[np.ndarray]:
    return [np.ma.getdata(axes.images[0].get_array())  # type: ignore[arg-type]
            for axes in figure.axes if title in axes.get_title()]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("variant", SHIPPED)
def test_every_variant_draws_every_pattern_it_has(variant: str, pattern: str) -> None:
    if not getattr(describe(variant).capabilities, pattern):
        with pytest.raises(UnsupportedAttention, match=variant):
            draw(variant, SMALL.get(variant, {}), pattern=pattern)
        return
    figure = draw(variant, SMALL.get(variant, {}), pattern=pattern, heads=2)
    assert len(images(figure, "head ")) == 2
    assert variant in words(figure)
    assert all(name in words(figure) for name in SMALL.get(variant, {}))
    (plain,), (padded,) = images(figure, "no padding"), images(figure, "are padding")
    assert plain.any(1).all()
    missing = round(0.25 * plain.shape[1])
    assert (padded[:, -missing:] == HIDDEN).all()
    assert (padded[:, :-missing] != HIDDEN).all()


def test_window_shows_its_neighbours_and_counts_them() -> None:
    figure = draw("local_window", {"window": (2, 1)})
    i = np.arange(10)
    offset = i[None] - i[:, None]
    assert (images(figure, "no padding")[0] == ((offset >= -2) & (offset <= 1))).all()
    assert "2 to 4 keys per query" in words(figure)


def test_signed_weights_are_centred_and_methods_that_form_none_say_so() -> None:
    linformer = draw("linformer", {"k": 4})
    norms = [axes.images[0].norm for axes in linformer.axes if "head" in axes.get_title()]
    assert all(isinstance(norm, CenteredNorm) for norm in norms)
    assert "never forms them" in words(linformer)
    assert "never forms them" in words(draw("performer", {}))
    assert "never forms them" not in words(draw("full", {}))
    assert "each row sums to 1" in words(draw("performer", {}))
    assert "each row sums to 1" not in words(linformer)


def test_grid_has_a_panel_of_its_groups() -> None:
    figure = draw("shifted_window", {"window": 4, "shift": 2, "grid": (6, 6)}, length=36)
    (groups,) = images(figure, "the 6×6 grid")
    band = (np.arange(6) >= 2).astype(int)
    assert (groups == 2 * band[:, None] + band[None, :]).all()


@pytest.fixture
def mean_of_the_first_three() -> Iterator[str]:
    """A variant of one's own that gives no weights and takes no mask."""

    @dataclass(frozen=True)
    class NoOptions:
        pass

    @register_variant("mean_of_three")
    class MeanOfThree(AttentionVariant):
        Options = NoOptions

        def forward(self, q, k, v, mask, dropout_p=0.0):
            return v[..., :3, :].mean(-2, keepdim=True).expand(*q.shape[:-1], v.shape[-1])

    yield "mean_of_three"
    unregister_variant("mean_of_three")


def test_a_variant_without_weights_is_seen_through_its_outputs(
    mean_of_the_first_three: str,
) -> None:
    figure = draw(mean_of_the_first_three, {})
    (seen,) = images(figure, "keys per query")
    assert (seen == (np.arange(10) < 3)).all()
    assert np.allclose(images(figure, "head 0")[0][:, :3], 1 / 3)
    assert "from the outputs for one-hot values" in words(figure)
    assert "no padded example: mean_of_three takes no key padding mask" in words(figure)


def test_heads_beyond_eight_are_named_not_drawn() -> None:
    figure = draw("full", {}, heads=9, padding=0.0)
    assert len(images(figure, "head ")) == 8
    assert "first 8 of 9 heads" in words(figure)
    assert not images(figure, "are padding")


def test_one_token() -> None:
    figure = draw("full", {}, length=1, heads=1)
    FigureCanvasAgg(figure).draw()
    assert not images(figure, "are padding")


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match=r"pattern='sideways'.*causal_self"):
        draw("full", {}, pattern="sideways")
    with pytest.raises(ValueError, match=r"padding=1.0.*\[0, 1\)"):
        draw("full", {}, padding=1.0)
    with pytest.raises(OptionError, match=r"length=5000.*512"):
        draw("full", {}, length=5000)
    with pytest.raises(OptionError, match=r"windw.*window"):
        draw("local_window", {"windw": 3})


def arguments(**given: Any) -> argparse.Namespace:
    usual = {"variant": "local_window", "length": 8, "pattern": "causal_self", "heads": 2,
             "option": ["window=2"], "out": None, "format": None, "language": "en"}  # fmt: skip
    return argparse.Namespace(**{**usual, **given})


def test_command_writes_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments()) == 0
    assert main(arguments(out="new/figure.v2", format=["svg"])) == 0
    assert main(arguments(out="other.png", option=None)) == 0
    printed = capsys.readouterr().out.split()
    assert printed == [
        "local_window-causal_self-8.png",
        "local_window-causal_self-8.svg",
        "new/figure.v2.svg",
        "other.png",
    ]
    assert all(Path(path).stat().st_size > 1000 for path in printed)


def test_command_refuses_before_it_writes(tmp_path: Path) -> None:
    for wrong in ({"format": ["gif"]}, {"option": ["window"]}, {"variant": "linformer"}):
        with pytest.raises(ValueError):
            main(arguments(out=str(tmp_path / "new" / "figure"), **wrong))
    assert not list(tmp_path.iterdir())


def test_options_are_read_as_literals_else_as_text() -> None:
    pairs = ["window=8", "grid=(6, 6)", "share=none", "relative_bias=true", "shift=null", "a= x=y "]
    assert parse_options(pairs) == {
        "window": 8,
        "grid": (6, 6),
        "share": "none",
        "relative_bias": True,
        "shift": None,
        "a": "x=y",
    }
    assert parse_options(["sides=(1,"]) == {"sides": "(1,"}


@pytest.mark.parametrize("pair", ["window", "=8", "window=", "two words=1"])
def test_an_option_of_another_form_is_named(pair: str) -> None:
    with pytest.raises(ValueError, match=f"'{pair}'.*name=value"):
        parse_options([pair])


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'window' is given twice"):
        parse_options(["window=8", "window=9"])
