"""The report page in a real browser: without the network, by keyboard, on a phone, in the dark."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from synthetic import TIMES, accuracy, cells, cost, scores

from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.cli import main

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

KNOBS = {
    "local_window": "window",
    "shifted_window": "window",
    "performer": "num_features",
    "linformer": "k",
}


def everything() -> list[Record]:
    """Sizes with ties, failures, several knobs, two number formats, tasks with capabilities."""
    lengths = (128, 256, 512, 1024, 2048, 4096)
    patterns = ("noncausal_self", "causal_self")
    failing = {
        ("full_naive", 2048): "oom",
        ("full_naive", 4096): "oom",
        ("performer", 512): "crashed",
    }
    records = cells(lengths, patterns=patterns, noise=0.15, fail=failing)
    records += cells(
        (256, 1024, 4096), patterns=patterns, noise=0.15, batch=4, heads=4, head_dim=32
    )
    records += cells(
        (256, 512, 1024), ("full", "local_window"), patterns, ("forward",), dtype="bfloat16"
    )
    records += [
        cost(
            "local_window", n, pattern=pattern, options={"window": width, "global_tokens": 0},
            median=0.3 + 2e-3 * n * (width / 64) ** 0.5, noise=0.1, seed=width,
        )
        for pattern in patterns for n in lengths for width in (16, 256)
    ]  # fmt: skip
    tasks = [("mqar", "recall", 0.0), ("byte_lm", "locality", 0.6)]
    for task, capability, shift in tasks:
        values = {
            "full": 0.95,
            "local_window": 0.3 + shift,
            "performer": 0.93,
            "shifted_window": 0.2 + shift,
        }
        values["no_mixing"] = 0.1
        for record in scores(values, task=task):
            asked = {**record.request["task"], "capability": capability}
            records.append(replace(record, request={**record.request, "task": asked}))
    return [
        *records,
        accuracy("linformer", task="mqar", status="crashed", reason="first line\nsecond line"),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("report") / "results"
    store = Store(results)
    for record in everything():
        store.write(record)
    assert main(["report", str(results)]) == 0
    return results


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as session:
        launched = session.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield launched
        launched.close()


Opener = Callable[..., Any]


@pytest.fixture
def visit(browser: Any, folder: Path) -> Iterator[Opener]:
    """Opens the page at an address; at the end nothing was asked of anyone, nothing went wrong."""
    troubles: list[str] = []
    contexts = []

    def go(address: str = "", **context: Any) -> Any:
        contexts.append(browser.new_context(**context))
        tab = contexts[-1].new_page()
        tab.set_default_timeout(120_000)
        tab.on("console", lambda said: troubles.append(said.text))
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        own = (folder / "report.html").as_uri()

        def answer(route: Any) -> None:
            if route.request.url.split("#")[0] == own:
                route.continue_()
            else:
                troubles.append(f"asked for {route.request.url}")
                route.abort()

        contexts[-1].route("**/*", answer)
        tab.goto(own + address)
        tab.wait_for_selector("html[data-ready]")
        return tab

    yield go
    for context in contexts:
        context.close()
    assert not troubles


def to(tab: Any, address: str) -> None:
    """Changes the address and waits until the page has followed."""
    tab.evaluate(
        """async (address) => {
            const done = new Promise((go) => addEventListener("hashchange", go, { once: true }));
            location.hash = address;
            await done;
        }""",
        address,
    )


def test_the_page_shows_what_was_run(visit: Opener) -> None:
    tab = visit()
    text = tab.inner_text("#summary")
    for expected in ("Example CPU", "abc1234", "torch 2.13.0", "causal self-attention", "byte_lm"):
        assert expected in text
    assert "first line" in tab.inner_text("#failures")
    assert "chance" in tab.inner_text("#accuracy")


def requests(count: int) -> list[dict[str, Any]]:
    """Random requests: measured sizes and others, limits, needs."""
    rng = random.Random(8)
    asked = []
    for _ in range(count):
        one: dict[str, Any] = {
            "length": rng.choice([256, 1024, 4096, rng.randint(60, 12_000)]),
            "pattern": rng.choice(["noncausal_self", "causal_self"]),
            "pass": rng.choice(["forward", "forward_backward"]),
        }
        if rng.random() < 0.6:
            one |= {
                "batch": rng.choice([1, 2, 4]),
                "heads": rng.choice([4, 8]),
                "head_dim": rng.choice([32, 64]),
            }
        if rng.random() < 0.3:
            one["memory"] = round(10 ** rng.uniform(-3, 1), 4)
        if rng.random() < 0.3:
            one["ms"] = round(10 ** rng.uniform(-1, 2), 3)
        one["weights"] = "1" if rng.random() < 0.2 else None
        one["exact"] = "1" if rng.random() < 0.15 else None
        if rng.random() < 0.5:
            names = rng.sample(["recall", "locality", "2d"], k=rng.choice([1, 1, 2]))
            one["needs"] = ",".join(f"{name}:{rng.randint(1, 5)}" for name in names)
            one["tolerance"] = rng.choice([95, 80, 50])
        asked.append({name: value for name, value in one.items() if value is not None})
    return asked


def words(one: dict[str, Any]) -> list[str]:
    """The same request for the command."""
    given = [
        *("--length", str(one["length"]), "--pattern", one["pattern"], "--pass", one["pass"]),
        *("--batch", str(one.get("batch", 1)), "--heads", str(one.get("heads", 8))),
        *("--head-dim", str(one.get("head_dim", 64))),
    ]
    if "memory" in one:
        given += ["--memory-gb", str(one["memory"])]
    if "ms" in one:
        given += ["--milliseconds", str(one["ms"])]
    given += ["--need-weights"] if "weights" in one else []
    given += ["--exact-only"] if "exact" in one else []
    if "needs" in one:
        given += ["--needs", *one["needs"].replace(":", "=").split(",")]
        given += ["--tolerance", str(one["tolerance"] / 100)]
    return given


def test_the_picker_ranks_as_the_command_does(visit: Opener, folder: Path, capsys: Any) -> None:
    tab = visit()
    seen = {"choices": 0, "ties": 0, "rejections": 0, "guesses": 0, "keeps": 0, "knobs": set()}
    for one in requests(25):
        main(["pick", "--json", "--from", str(folder), *words(one)])
        expected = json.loads(capsys.readouterr().out)
        to(tab, "pick?" + urlencode({f"p.{name}": value for name, value in one.items()}))
        shown = [row.inner_text() for row in tab.query_selector_all("#ranking tbody tr")]
        names = [
            row.get_attribute("data-contestant")
            for row in tab.query_selector_all("#ranking tbody tr")
        ]
        assert names == [choice["contestant"] for choice in expected["choices"]], one
        for text, choice in zip(shown, expected["choices"], strict=True):
            assert choice["evidence"] in text, one
            assert told(choice["time"]["value"], text), (one, choice["time"], text)
            assert ("ties with the first" in text) == choice["tied"], one
            if choice["to_full"]:
                assert told(choice["to_full"]["value"], text), one
            if choice["memory_bytes"]:
                assert told(choice["memory_bytes"] / 2**20, text), one
            if choice["kept"]:
                share = choice["kept"]["share"]
                assert ("not measured" if share is None else "%") in text
                seen["keeps"] += share is not None
            own = choice["options"].get(KNOBS.get(choice["variant"], ""))
            seen["knobs"].add((choice["variant"], own))
            seen["ties"] += choice["tied"]
            seen["guesses"] += choice["evidence"] != "measured"
        out = {
            (row.get_attribute("data-contestant"), row.inner_text())
            for row in tab.query_selector_all("#rejections li")
        }
        assert out == {
            (name, f"{name} {item['reason'].removeprefix(f'{name} ')}")
            for item in expected["rejections"]
            for name in [item["contestant"]]
        }, one
        unmeasured = "Its accuracy was not measured" in expected["verdict"]
        assert ("The accuracy of" in tab.inner_text("#verdict")) == unmeasured, one
        advised = tab.locator("#ranking tr.best th").all_inner_texts()
        assert bool(advised) == bool(expected["choices"])
        if advised and expected["verdict"].startswith("Stay with full"):
            assert advised[0].startswith("full")
        seen["choices"] += len(names)
        seen["rejections"] += len(out)
    # The draw asks for everything there is to answer.
    counts = [seen[name] for name in ("choices", "rejections", "guesses", "keeps", "ties")]
    assert min(counts) >= 5, seen
    assert len(seen["knobs"]) > 6


def told(value: float, text: str) -> bool:
    """Whether three significant digits of a value stand in a text."""
    numbers = [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*\.?\d*", text)]
    return any(number == pytest.approx(value, rel=5.1e-3) for number in numbers)


def test_what_was_not_measured_gives_the_command_that_measures_it(visit: Opener) -> None:
    tab = visit("#pick?p.dtype=bfloat16&p.pass=forward_backward")
    assert "hold no measurement" in tab.inner_text("#verdict")
    assert "efficient-attn sweep" in tab.inner_text("#pick-answer")


def test_wrong_numbers_are_explained_and_do_not_stop_the_page(visit: Opener) -> None:
    tab = visit("#pick?p.length=0.5&p.ms=-1")
    assert "whole number" in tab.inner_text("#verdict")
    tab.fill("#pick-length", "512")
    tab.fill("#pick-ms", "")
    assert tab.inner_text("#verdict").startswith(("Take", "Stay"))


def test_by_keyboard_alone(visit: Opener) -> None:
    tab = visit()
    tab.keyboard.press("Tab")
    assert "Skip" in tab.evaluate("document.activeElement.textContent")
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.id") == "pick-length"
    before = tab.inner_text("#verdict")
    tab.keyboard.press("Control+A")
    tab.keyboard.type("128")
    assert tab.inner_text("#verdict") != before
    order = [tab.evaluate("document.activeElement.id")]
    while order[-1] != "pick-tolerance" and len(order) < 40:
        tab.keyboard.press("Tab")
        order.append(tab.evaluate("document.activeElement.id"))
    assert order[:4] == ["pick-length", "pick-slider", "pick-pattern", "pick-pass"]
    assert "pick-need-recall" in order
    tab.focus("#pick-need-recall")
    tab.keyboard.press("ArrowRight")
    assert "keeps" in tab.inner_text("#ranking")
    tab.focus("#curves-chart")
    tab.keyboard.press("ArrowRight")
    first = tab.inner_text("#voice")
    assert "full" in first
    assert "N = 128" in first
    tab.keyboard.press("ArrowRight")
    assert "N = 256" in tab.inner_text("#voice")
    tab.keyboard.press("ArrowUp")
    assert not tab.inner_text("#voice").startswith("full,")
    tab.focus("#m-sort-median")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "m-sort-median"
    assert tab.locator("#records th[aria-sort=ascending]").inner_text().startswith("ms")


def test_every_control_has_a_name_and_every_table_its_heads(visit: Opener) -> None:
    tab = visit()
    nameless = tab.evaluate(
        """() => [...document.querySelectorAll("input, select, button, [role=region], table")]
            .filter((one) => !(one.labels?.length || one.getAttribute("aria-label") ||
                one.textContent.trim() || one.caption))
            .map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    assert tab.locator("th:not([scope])").count() == 0
    ids = tab.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    assert tab.get_attribute("#verdict", "aria-live") == "polite"


def test_a_link_restores_the_state(visit: Opener) -> None:
    tab = visit()
    tab.select_option("#curves-pattern", "causal_self")
    tab.select_option("#curves-metric", "memory")
    tab.select_option("#curves-y", "linear")
    tab.uncheck("#show-full_naive")
    tab.fill("#m-q", "performer 1024")
    tab.fill("#pick-length", "3000")
    tab.check("#pick-weights")
    playwright.expect(tab).to_have_url(re.compile("p.weights=1"))
    address = tab.evaluate("location.hash")
    again = visit(address)
    assert again.input_value("#curves-pattern") == "causal_self"
    assert again.input_value("#curves-metric") == "memory"
    assert again.input_value("#curves-y") == "linear"
    assert not again.is_checked("#show-full_naive")
    assert again.input_value("#m-q") == "performer 1024"
    assert again.input_value("#pick-length") == "3000"
    assert again.is_checked("#pick-weights")
    for part in ("#curves", "#records", "#pick-answer"):
        assert again.inner_text(part) == tab.inner_text(part)


def test_another_field_moves_to_what_was_measured_and_says_so(visit: Opener) -> None:
    tab = visit()
    tab.select_option("#curves-pass", "forward_backward")
    tab.select_option("#curves-dtype", "bfloat16")
    assert tab.input_value("#curves-pass") == "forward"
    assert "another pass" in tab.inner_text("#curves-body")


def test_the_chart_zooms_by_mouse_keys_and_buttons(visit: Opener) -> None:
    tab = visit()
    ticks = "#curves-chart text"

    def lengths() -> list[str]:
        return [text for text in tab.locator(ticks).all_text_contents() if text in ("128", "4096")]

    assert lengths() == ["128", "4096"]
    tab.locator("#curves-chart").scroll_into_view_if_needed()
    box = tab.locator("#curves-chart").bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 100)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 120, steps=4)
    tab.mouse.up()
    assert lengths() == []
    tab.keyboard.press("Tab")
    tab.focus("#curves-chart")
    tab.keyboard.press("0")
    assert lengths() == ["128", "4096"]
    tab.click("button[aria-label='Zoom in']")
    assert len(lengths()) < 2


def test_tables_sort_and_filter(visit: Opener) -> None:
    tab = visit()
    tab.select_option("#records label:has-text('contestant') select", "performer")
    tab.click("#m-sort-length")
    tab.click("#m-sort-length")
    rows = [row.split("\t") for row in tab.locator("#records tbody tr").all_inner_texts()]
    assert {row[0] for row in rows} == {"performer"}
    lengths = [int(row[3]) for row in rows]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 4096
    tab.fill("#m-q", "no such words")
    assert "0 of" in tab.inner_text("#records-body")
    tab.click("#records button:has-text('Clear')")
    assert (
        len({row.split("\t")[0] for row in tab.locator("#records tbody tr").all_inner_texts()}) >= 1
    )
    assert tab.input_value("#m-q") == ""


def test_on_a_phone_nothing_is_wider_than_the_screen(visit: Opener) -> None:
    tab = visit(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert tab.evaluate("innerWidth") == 360
    tab.tap("#curves-chart")
    tab.fill("#pick-length", "2000")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_the_switch(visit: Opener, scheme: str) -> None:
    tab = visit(color_scheme=scheme)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, light = "rgb(14, 17, 22)", "rgb(243, 244, 246)"
    assert tab.evaluate(ground) == (dark if scheme == "dark" else light)
    assert tab.get_attribute("#theme", "aria-pressed") == str(scheme == "dark").lower()
    tab.click("#theme")
    assert tab.evaluate(ground) == (light if scheme == "dark" else dark)
    playwright.expect(tab).to_have_url(re.compile("theme="))
    tab.reload()
    tab.wait_for_selector("html[data-ready]")
    assert tab.evaluate(ground) == (light if scheme == "dark" else dark)


def test_contestants_look_as_in_the_figures(visit: Opener) -> None:
    tab = visit()
    labels = tab.locator("#curves .legend label").all_inner_texts()
    assert [label.split(" (")[0] for label in labels][: len(TIMES)][0] == "full"
    styles = [
        line.get_attribute("style") for line in tab.query_selector_all("#curves .legend .curve")
    ]
    assert "#000000" in styles[0]
    assert any("#0072B2" in style for style in styles)
