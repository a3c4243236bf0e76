"""What the report page is told, and that the file needs nothing but itself."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import TIMES, cells, cost, scores

from efficient_attn.analysis.ratios import ratio
from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.cli import main
from efficient_attn.plots.report.build import SCRIPTS, page, report
from efficient_attn.plots.report.payload import payload
from efficient_attn.plots.report.rounds import Rounds
from efficient_attn.plots.style import dark, style_of

CARD_DARK = "#171b22"


def unpacked(html: str) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="[^"]+">([^<]+)</script>', html)
    assert found
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def rows(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The columns as rows, with names for numbers."""
    columns = told["costs"]
    found = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    for row in found:
        row["contestant"] = told["contestants"][row["contestant"]][0]
        row["status"] = told["statuses"][row["status"]]
        row |= {
            name: told["groups"][row["group"]][name]
            for name in ("pattern", "pass", "batch", "dtype")
        }
    return found


def test_every_record_is_told_as_it_was_measured() -> None:
    records = cells((128, 256), noise=0.05, fail={("full_naive", 256): "oom"})
    told = {
        (row["contestant"], row["pattern"], row["pass"], row["length"]): row
        for row in rows(payload(records))
    }
    assert len(told) == len(records)
    for record in records:
        request = record.request
        row = told[record.contestant, request["pattern"], request["pass"], request["length"]]
        assert row["status"] == record.status
        if record.ok:
            assert row["median"] == pytest.approx(record.result["median_ms"], rel=1e-5)
            assert row["memory"] == record.result["peak_tensor_bytes"]
        else:
            assert row["median"] is None
            assert row["memory"] is None


def test_the_ratio_to_full_is_the_paired_one() -> None:
    records = cells((256,), ("full", "local_window"), ("causal_self",), ("forward",), noise=0.3)
    full, window = records
    (row,) = (row for row in rows(payload(records)) if row["contestant"] == "local_window")
    expected = ratio(window, full)
    assert row["paired"] == 1
    assert [row["ratio"], row["ratio_low"], row["ratio_high"]] == pytest.approx(
        [expected.value, expected.low, expected.high], rel=1e-5
    )


def test_of_two_answers_the_newest_is_told_and_the_other_counted() -> None:
    old = cost("full", 256, median=9.0, created="2026-01-01T00:00:00")
    new = cost("full", 256, median=1.0, created="2026-02-01T00:00:00")
    told = payload([new, old])
    assert told["superseded"] == 1
    (row,) = rows(told)
    assert row["median"] == pytest.approx(new.result["median_ms"], rel=1e-5)


def test_environments_are_told_apart_by_what_someone_changed() -> None:
    first = cost("full", 128)
    busy = replace(cost("full", 256), environment={**first.environment, "load_before": 7.0})
    other = replace(cost("full", 512), environment={**first.environment, "torch": "2.14.0"})
    one, two = payload([first, busy, other])["environments"]
    assert one["records"] == 2
    assert one["load"] == [0.1, 7.0]
    assert two["fields"]["torch"] == "2.14.0"


def test_accuracy_comes_with_baselines_price_and_failures() -> None:
    (task,) = payload(scores())["accuracy"]
    assert task["baselines"] == {"chance": 0.1}
    by_name = {score["contestant"]: score for score in task["scores"]}
    assert by_name["linformer"]["status"] == "unsupported"
    assert "causal" in by_name["linformer"]["reason"]
    assert len(by_name["full"]["seeds"]) == 3
    assert by_name["full"]["price"] is None
    assert by_name["local_window"]["price"][0] == pytest.approx(0.77, abs=0.05)


times = st.lists(st.floats(0.5, 2.0), min_size=3, max_size=12)


@settings(max_examples=60, deadline=None)
@given(times, times, times, st.booleans())
def test_ties_are_the_ratios_that_do_not_exclude_one(
    one: list[float], two: list[float], three: list[float], together: bool
) -> None:
    records = [
        cost(name, 256, samples=samples, cell="a" if together else name)
        for name, samples in zip(("full", "performer", "linformer"), (one, two, three), strict=True)
    ]
    beside = Rounds(records, records)
    for place, record in enumerate(records):
        expected = [
            other
            for other, partner in enumerate(records)
            if other != place and ratio(record, partner).low <= 1.0
        ]
        assert (beside.ties(place) or []) == expected


def test_a_ratio_prefers_the_runs_that_share_a_cell() -> None:
    full = cost("full", 256, median=1.0, cell="a", created="2026-01-01T00:00:00")
    paired = cost("performer", 256, median=2.0, cell="a", created="2026-01-01T00:00:00")
    alone = cost("performer", 256, median=9.0, cell="b", created="2026-02-01T00:00:00")
    found = Rounds([full, paired, alone], [full, alone]).to_full(1)
    assert found is not None
    assert found.paired
    assert found.value == pytest.approx(2.0, rel=0.1)


def test_the_page_asks_for_nothing_and_is_the_same_each_time(tmp_path: Path) -> None:
    records = cells((128, 256)) + scores()
    html = page(records, "a <b>& title")
    assert html == page(records, "a <b>& title")
    assert len(html) < 6e6
    assert "<title>a &lt;b&gt;&amp; title" in html
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(
        r"@import|url\((?!#)|<(link|script|img)[^>]+(src|href)=[\"'](?!data:)", html
    )
    assert "{{" not in html
    assert unpacked(html)["title"] == "a <b>& title"


def test_five_thousand_records_stay_small() -> None:
    records: list[Record] = []
    for batch in (1, 2, 3, 4):
        for heads in (1, 2, 4, 8):
            records += cells((128, 512), tuple(TIMES), batch=batch, heads=heads, noise=0.1)
    html = page(records, "many")
    # A hundred thousand such records must stay below 6 MB beside the page itself.
    assert len(html) < 80_000 + 55 * len(records) + 60_000


def test_the_command_writes_the_page_and_its_path(tmp_path: Path, capsys: Any) -> None:
    store = Store(tmp_path / "results")
    for record in cells((128,), ("full", "performer")):
        store.write(record)
    assert main(["report", str(tmp_path / "results")]) == 0
    assert Path(capsys.readouterr().out.strip()) == tmp_path / "results" / "report.html"
    assert main(["report", str(tmp_path / "results"), "--out", str(tmp_path / "a/b.html")]) == 0
    assert (tmp_path / "a" / "b.html").read_text() == (
        tmp_path / "results" / "report.html"
    ).read_text()


def test_files_that_cannot_be_read_are_told_on_the_page(tmp_path: Path, capsys: Any) -> None:
    Store(tmp_path).write(cost("full", 128))
    (tmp_path / "records" / "broken.json").write_text("{")
    assert main(["report", str(tmp_path)]) == 1
    assert "broken.json" in capsys.readouterr().err
    (told,) = unpacked((tmp_path / "report.html").read_text())["left_out"]
    assert "broken.json" in told


def test_mistakes_are_explained(tmp_path: Path, capsys: Any) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "no records" in capsys.readouterr().err
    Store(tmp_path).write(cost("full", 128))
    with pytest.raises(IsADirectoryError, match="name a file"):
        report(tmp_path, tmp_path)


def test_the_page_ships_with_the_package() -> None:
    tomllib = pytest.importorskip("tomllib")
    settings_file = Path(__file__).parents[2] / "pyproject.toml"
    shipped = tomllib.loads(settings_file.read_text("utf-8"))["tool"]["setuptools"]
    package = "efficient_attn.plots.report"
    assert package in shipped["packages"]
    names = [item.name for item in files(package).iterdir() if not item.name.startswith("__")]
    sources = {name for name in names if not name.endswith(".py")}
    assert sources == {"template.html", "page.css", *(f"{name}.js" for name in SCRIPTS)}
    for name in sources:
        assert any(fnmatch(name, pattern) for pattern in shipped["package-data"][package])


@pytest.mark.parametrize("contestant", [*TIMES, "a stranger", "another", "peer:sdpa"])
def test_dark_colours_show_on_the_dark_card(contestant: str) -> None:
    assert contrast(dark(style_of(contestant).color), CARD_DARK) >= 3.0
    assert f"--card: light-dark(#ffffff, {CARD_DARK})" in files(
        "efficient_attn.plots.report"
    ).joinpath("page.css").read_text("utf-8")


def contrast(one: str, other: str) -> float:
    """Web Content Accessibility Guidelines 2.2, definition of contrast ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, deep = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (deep + 0.05)
