"""In which language figures speak: English, or Chinese with a font that has its characters.

Figures are drawn within `speaking`; `say` gives the words. matplotlib takes every character from
the first font of a list that has it. Where no installed font has Chinese ones, PNG and PDF would
show boxes and are refused; SVG is written with its text as text, so that the reader's own fonts,
named in the file, draw it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, get_args

import matplotlib as mpl
from matplotlib.font_manager import fontManager

from efficient_attn.analysis.select import Setting
from efficient_attn.plots.chinese import CHINESE

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)

CJK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Heiti SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Noto Sans CJK JP",
    "Droid Sans Fallback",
    "Arial Unicode MS",
)
"""Families with Chinese characters, the ones made for simplified Chinese first."""

_spoken: ContextVar[Language] = ContextVar("language", default="en")


@contextmanager
def speaking(language: str, formats: Sequence[str] = ()) -> Iterator[None]:
    """Figures drawn and saved within speak `language`.

    formats: endings of the files that will be written. ValueError for a language that is not one
    of `LANGUAGES`, and where a format cannot hold Chinese text on this machine.
    """
    if language not in LANGUAGES:
        raise ValueError(f"language={language!r}: allowed are {', '.join(LANGUAGES)}")
    settings: dict[Any, Any] = {}
    if language == "zh":
        settings = _fonts([kind for kind in formats if kind != "svg"])
    token = _spoken.set(language)
    try:
        with mpl.rc_context(settings), warnings.catch_warnings():
            if settings.get("svg.fonttype") == "none":
                # The reader's fonts have what the ones measured with here lack.
                warnings.filterwarnings("ignore", "Glyph .* missing from font")
            yield
    finally:
        _spoken.reset(token)


def spoken() -> Language:
    return _spoken.get()


def say(text: str, **values: Any) -> str:
    """`text`, a template of ``str.format`` where there are values, in the language spoken.

    KeyError for a text without a translation.
    """
    words = text if spoken() == "en" else CHINESE[text]
    return words.format(**values) if values else words


def say_setting(setting: Setting) -> str:
    """What a curve keeps fixed, in the language spoken."""
    between = ", " if spoken() == "en" else "，"
    return between.join(say(text, **values) for text, values in setting.parts())


def chinese_font() -> str | None:
    """The first installed family of `CJK_FONTS`."""
    installed = {font.name for font in fontManager.ttflist}
    return next((name for name in CJK_FONTS if name in installed), None)


def _fonts(painted: Sequence[str]) -> dict[Any, Any]:
    """Settings of matplotlib; painted: formats whose text is drawn here and not by the reader."""
    font = chinese_font()
    latin = list(mpl.rcParams["font.sans-serif"])
    if font is not None:
        # Only families named one by one stand in for each other character by character.
        return {"font.family": [latin[0], font]}
    if painted:
        raise ValueError(
            f"no installed font has Chinese characters, which {' and '.join(painted)} files need: "
            "install one (Debian, Ubuntu: apt-get install fonts-noto-cjk; elsewhere Noto Sans CJK "
            "SC) and remove matplotlib's font cache, or ask for --format svg, whose text the "
            "reader's own fonts draw"
        )
    return {
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.sans-serif": [latin[0], *CJK_FONTS],
    }
