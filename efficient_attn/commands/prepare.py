"""`efficient-attn prepare`: data sets that the system has installed, as files for the tasks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SWORD = Path("/usr/share/sword")
ENGLISH, SPANISH = "engKJV2006eb", "spaRV1909eb"


def main(arguments: argparse.Namespace) -> int:
    """Write the data set as a TSV file, whole or not at all, and say how much it holds."""
    target = Path(arguments.out)
    if target.is_dir():
        raise IsADirectoryError(
            f"--out {target} is a folder: name the file to write, e.g. {target / 'verses.tsv'}"
        )
    if target.exists() and not arguments.force:
        print(f"{target} is there already; --force writes it again")
        return 0
    lines = [f"{source}\t{aim}\n" for source, aim in verses(arguments.sword)]
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + ".part")
    unfinished.write_text("".join(lines), encoding="utf-8")
    unfinished.replace(target)
    print(f"{len(lines)} pairs in {target}")
    return 0


def verses(folder: str | Path = SWORD) -> Iterator[tuple[str, str]]:
    """English and Spanish of every verse that both Bibles hold, in the order of the books.

    Data: King James Version and Reina-Valera 1909, public domain, of Debian's packages
    sword-text-kjv and sword-text-sparv. Raises ImportError and FileNotFoundError that say what to
    install.
    """
    english, spanish = _open(folder)
    for books in english.get_structure().get_books().values():
        for book in books:
            for chapter, length in enumerate(book.chapter_lengths, start=1):
                for verse in range(1, length + 1):
                    source = _verse(english, book, chapter, verse)
                    target = _verse(spanish, book, chapter, verse)
                    if source and target:
                        yield source, target


def _open(folder: str | Path) -> tuple[Any, Any]:
    try:
        from pysword.modules import SwordModules
    except ImportError as error:
        raise ImportError(
            "verses are read with pysword: pip install 'efficient-attn[text]'"
        ) from error
    installed = Path(folder) / "mods.d"
    if not all((installed / f"{name}.conf").is_file() for name in (ENGLISH, SPANISH)):
        raise FileNotFoundError(
            f"{folder} lacks the texts {ENGLISH} and {SPANISH}: "
            "sudo apt-get install sword-text-kjv sword-text-sparv (Debian, Ubuntu), "
            "or name the folder that holds them with --sword"
        )
    modules = SwordModules(str(folder))
    modules.parse_modules()
    return modules.get_bible_from_module(ENGLISH), modules.get_bible_from_module(SPANISH)


def _verse(bible: Any, book: Any, chapter: int, verse: int) -> str:
    """The verse on one line, without doubled blanks; empty where the Bible does not have it."""
    found = bible.get(books=[book.name], chapters=[chapter], verses=[verse], clean=True)
    return " ".join(found.split())
