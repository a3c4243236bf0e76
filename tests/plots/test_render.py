"""Every figure of a results folder lands in files that viewers can open."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from synthetic import cells, cost, counted, scores

from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store
from efficient_attn.plots.render import plot


def fill(folder: Path, records: list[Record]) -> Path:
    store = Store(folder)
    for record in records:
        store.write(record)
    return folder


def test_all_figures_in_all_formats(tmp_path: Path) -> None:
    fill(tmp_path, counted(cells((256, 512), patterns=("causal_self",))) + scores())
    paths = plot(tmp_path)
    names = (
        "complexity",
        "map",
        "crossover",
        "crossover_naive",
        "peak",
        "accuracy",
        "front",
        "front_memory",
    )
    assert {path.name for path in paths} == {
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    }
    for path in paths:
        assert path.parent == tmp_path / "figures"
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_another_folder_and_one_format(tmp_path: Path) -> None:
    fill(tmp_path / "results", [cost("full", 256), cost("full", 512)])
    paths = plot(tmp_path / "results", tmp_path / "out", formats=("pdf",))
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "out/complexity.pdf",
        "out/map.pdf",
    ]
    assert not (tmp_path / "results" / "figures").exists()


def test_each_setting_has_a_file_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path, [cost("full", n, batch=b) for n in (256, 512) for b in (1, 4)])
    names = [path.stem for path in plot(tmp_path, formats=("png",))]
    assert len(names) == len(set(names)) == 4
    assert names[:2] == ["complexity", "map"]
    assert names[2].startswith("complexity_batch-")


def test_only_failures_still_draw(tmp_path: Path) -> None:
    records = [cost("full", 256, status="oom", reason="too large")]
    records += [record for record in scores() if not record.ok]
    assert {path.stem for path in plot(fill(tmp_path, records), formats=("png",))} == {
        "complexity",
        "accuracy",
    }


def test_mistakes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no records under"):
        plot(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="gif; allowed: png, svg, pdf"):
        plot(tmp_path, formats=("gif",))
    with pytest.raises(ValueError, match="language='fr': allowed are en, zh"):
        plot(fill(tmp_path, [cost()]), language="fr")
    with pytest.raises(ValueError, match="until=2097152: allowed are lengths up to 1048576"):
        plot(tmp_path, until=2**21)
