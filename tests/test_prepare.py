"""`efficient-attn prepare verses`: what is written, and what it says where something is missing."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from efficient_attn import cli
from efficient_attn.commands import prepare

BOOKS = {"ot": [SimpleNamespace(name="First", chapter_lengths=[2, 1])]}


class Bible:
    def __init__(self, verses: dict[tuple[int, int], str]) -> None:
        self.verses = verses

    def get_structure(self) -> SimpleNamespace:
        return SimpleNamespace(get_books=lambda: BOOKS)

    def get(self, books: list, chapters: list, verses: list, clean: bool) -> str:
        assert (books, clean) == (["First"], True)
        return self.verses.get((chapters[0], verses[0]), "")


@pytest.fixture
def _texts(monkeypatch: pytest.MonkeyPatch) -> None:
    english = Bible({(1, 1): " In the\n beginning ", (1, 2): "And", (2, 1): "light."})
    spanish = Bible({(1, 1): "EN el principio", (2, 1): "la\tluz."})
    monkeypatch.setattr(prepare, "_open", lambda folder: (english, spanish))


@pytest.mark.usefixtures("_texts")
def test_verses_of_both_bibles_become_pairs(tmp_path: Path, capsys) -> None:
    out = tmp_path / "deep" / "verses.tsv"
    assert cli.main(["prepare", "verses", "--out", str(out)]) == 0
    assert out.read_text() == "In the beginning\tEN el principio\nlight.\tla luz.\n"
    assert "2 pairs" in capsys.readouterr().out
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.usefixtures("_texts")
def test_what_is_there_stays_without_force(tmp_path: Path) -> None:
    out = tmp_path / "verses.tsv"
    out.write_text("mine")
    assert cli.main(["prepare", "verses", "--out", str(out)]) == 0
    assert out.read_text() == "mine"
    assert cli.main(["prepare", "verses", "--out", str(out), "--force"]) == 0
    assert "principio" in out.read_text()


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.usefixtures("_texts")
def test_a_folder_is_no_file_to_write(tmp_path: Path, capsys, force: list[str]) -> None:
    assert cli.main(["prepare", "verses", "--out", str(tmp_path), *force]) == 2
    assert f"{tmp_path} is a folder: name the file to write" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_missing_texts_and_reader_say_what_to_install(tmp_path: Path, capsys, monkeypatch) -> None:
    pytest.importorskip("pysword")
    words = ["prepare", "verses", "--out", str(tmp_path / "out.tsv"), "--sword", str(tmp_path)]
    assert cli.main(words) == 2
    assert "apt-get install sword-text-kjv sword-text-sparv" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pysword.modules", None)
    assert cli.main(words) == 2
    assert "pip install 'efficient-attn[text]'" in capsys.readouterr().err
    assert not (tmp_path / "out.tsv").exists()


@pytest.mark.skipif(
    not (prepare.SWORD / "mods.d" / f"{prepare.SPANISH}.conf").is_file(),
    reason="sword-text-kjv and sword-text-sparv are not installed",
)
def test_the_first_verses() -> None:
    pytest.importorskip("pysword")
    found = prepare.verses()
    first, second = next(found), next(found)
    assert first[0] == "In the beginning God created the heaven and the earth."
    assert first[1] == "EN el principio crió Dios los cielos y la tierra."
    assert second[0].startswith("And the earth was without form")
