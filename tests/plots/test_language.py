"""Figures speak Chinese where asked, completely, and say so where no font can."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from synthetic import cells, cost, counted, scores
from test_quality import recall

from efficient_attn.analysis.select import PASS_NAMES, PATTERN_NAMES, Setting
from efficient_attn.bench.store import Store
from efficient_attn.plots import language
from efficient_attn.plots.accuracy import accuracy_figure
from efficient_attn.plots.chinese import CHINESE
from efficient_attn.plots.crossover_map import crossover_figure, map_figure
from efficient_attn.plots.curves import complexity_figure
from efficient_attn.plots.front import front_figure
from efficient_attn.plots.language import say, say_setting, speaking, spoken
from efficient_attn.plots.peak import peak_figure
from efficient_attn.plots.quality import knob_figure, state_figure
from efficient_attn.plots.render import plot
from efficient_attn.plots.visibility import visibility_figure

ENGLISH_WORD = re.compile(r"[A-Za-z]{3,}")
# Names that stay as they are in every language.
NAMES = {
    "full", "full_naive", "linformer", "local_window", "performer", "shifted_window", "float32",
    "cpu", "core", "Example", "CPU", "oom", "timeout", "unsupported", "MiB", "mqar", "digits",
    "accuracy", "chance", "window", "global_tokens", "left", "right", "None",
    "implementation", "eager", "KiB", "no_mixing", "num_features",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _any_font(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said does not depend on the fonts of the machine that tests it."""
    monkeypatch.setattr(language, "chinese_font", lambda: None)


def figures() -> dict[str, Callable[[], Figure]]:
    fail = {("full_naive", 512): "timeout", ("full_naive", 1024): "oom"}
    costs = counted(cells((128, 256, 512, 1024), fail=fail))
    accuracy = scores(length=600) + scores(task="digits", pattern="noncausal_self")
    wide = [cost("full", n, batch=2, padding=0.25, threads=1, compile=True) for n in (256, 512)]
    return {
        "complexity": lambda: complexity_figure(costs, until=4096),
        "map": lambda: map_figure(costs, until=4096),
        "crossover": lambda: crossover_figure(costs),
        "peak": lambda: peak_figure(costs),
        "accuracy": lambda: accuracy_figure(accuracy),
        "front": lambda: front_figure(costs + accuracy),
        "memory": lambda: front_figure(costs + accuracy, "memory"),
        "training": lambda: front_figure(accuracy),
        "state": lambda: state_figure(recall()),
        "knobs": lambda: knob_figure(recall()),
        "setting": lambda: complexity_figure(wide),
        "show": lambda: visibility_figure("local_window", {"window": 2}, length=8),
    }


def texts(figure: Figure) -> list[str]:
    found = figure.findobj(Text)
    return [t.get_text() for t in found if isinstance(t, Text) and t.get_text().strip()]


@pytest.mark.parametrize("name", list(figures()))
def test_no_english_is_left_in_a_chinese_figure(name: str) -> None:
    with speaking("zh", ("svg",)):
        assert spoken() == "zh"
        found = texts(figures()[name]())
    left = {word for text in found for word in re.findall(r"[A-Za-z_0-9]+", text)}
    left = {word for word in left if ENGLISH_WORD.search(word)} - NAMES
    assert not left
    assert any(re.search("[\u4e00-\u9fff]", text) for text in found)
    assert spoken() == "en"


def test_every_pattern_pass_and_part_of_a_setting_has_words() -> None:
    assert set(PATTERN_NAMES.values()) | set(PASS_NAMES.values()) <= set(CHINESE)
    kinds: list[dict[str, Any]] = [
        {"threads": 1},
        {"threads": 2, "compile": True, "key_length": 99, "padding": 0.5, "scope": "block"},
    ]
    for kind in kinds:
        setting = Setting.of(cost("full", 256, **kind))
        assert say_setting(setting) == str(setting)
        with speaking("zh", ("svg",)):
            assert re.search("[\u4e00-\u9fff]", say_setting(setting))


def test_templates_keep_their_names() -> None:
    def fields(text: str) -> set[str | None]:
        return {name for _, name, _, _ in Formatter().parse(text)} - {None}

    for english, chinese in CHINESE.items():
        assert fields(english) == fields(chinese), english


def test_an_unknown_text_and_language_are_errors() -> None:
    with speaking("zh", ("svg",)), pytest.raises(KeyError):
        say("a text that nobody translated")
    with pytest.raises(ValueError, match="language='de': allowed are en, zh"), speaking("de"):
        pass
    assert spoken() == "en"


def test_without_a_font_png_is_refused_and_svg_keeps_its_text(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    store = Store(tmp_path)
    for record in [cost("full", 256), cost("full", 512)]:
        store.write(record)
    with pytest.raises(ValueError, match=r"png and pdf files need.*fonts-noto-cjk.*--format svg"):
        plot(tmp_path, formats=("png", "pdf"), language="zh")
    assert not (tmp_path / "figures").exists()
    paths = plot(tmp_path, formats=("svg",), language="zh")
    assert [path.name for path in paths] == ["complexity.svg", "map.svg"]
    drawn = paths[0].read_text(encoding="utf-8")
    assert "长度 N" in drawn
    assert "Noto Sans CJK SC" in drawn
    assert not [w for w in recwarn if "missing from font" in str(w.message)]


def test_with_a_font_it_is_named_after_the_latin_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "chinese_font", lambda: "WenQuanYi Micro Hei")
    assert language._fonts(["png"])["font.family"][1:] == ["WenQuanYi Micro Hei"]
