"""Labelled texts of all forms that are read, and what is refused."""

import sys
from pathlib import Path

import numpy as np
import pytest

from efficient_attn.tasks.texts import PAD, Columns, Parts, encoded, histograms, read_texts

ONE = Columns("label", ("text",))
TWO = Columns("label", ("text1", "text2"))
SAID = {f"text {n}".encode(): "ab"[n % 2] for n in range(60)}


def table(name: Path, content: str | bytes) -> str:
    name.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(name)


def read(source: str | Path, columns: Columns = ONE) -> Parts:
    return read_texts(str(source), columns, "task.source")


def said(parts: Parts) -> dict[bytes, str]:
    """Label by text, of all parts; no text is in two."""
    rows = [row for part in parts.values() for row in part]
    found = {row.texts[0]: row.label for row in rows}
    assert len(found) == len(rows)
    return found


FORMS = {
    "text<TAB>label": b"".join(t + b"\t" + k.encode() + b"\n" for t, k in SAID.items()),
    "label<TAB>text": b"".join(k.encode() + b"\t" + t + b"\n" for t, k in SAID.items()),
    "names": b"text\tlabel\n" + b"".join(t + b"\t" + k.encode() + b"\n" for t, k in SAID.items()),
    "names and more": b"id\tlabel\ttext\n"
    + b"".join(b"7\t" + k.encode() + b"\t" + t + b"\n" for t, k in SAID.items()),
    "CRLF, mark, blank lines": b"\xef\xbb\xbf\r\n"
    + b"".join(t + b"\t" + k.encode() + b"\r\n\r\n" for t, k in SAID.items()),
    "no end of line": b"\n".join(t + b"\t" + k.encode() for t, k in SAID.items()),
}


@pytest.mark.parametrize("form", FORMS)
def test_tables_of_one_text(tmp_path: Path, form: str) -> None:
    parts = read(table(tmp_path / "a.tsv", FORMS[form]))
    assert said(parts) == SAID
    assert len(parts["train"]) > 35


def test_every_byte_but_tabs_and_line_ends_is_kept(tmp_path: Path) -> None:
    odd = [
        b'"quoted" and not"',
        b'"whole"',
        b" spaces ",
        bytes(b for b in range(256) if b not in b"\t\n\r"),
        "Grüße\u2028\x0b\x0c\x85".encode(),
        b"a\rb",
    ]
    lines = odd + [b"filler %d" % n for n in range(60)]
    parts = read(table(tmp_path / "a.tsv", b"".join(b"x\t" + line + b"\n" for line in lines)))
    assert set(said(parts)) == set(lines)


def test_equal_texts_share_a_part_and_the_split_never_changes(tmp_path: Path) -> None:
    lines = [f"text {n % 50}\t{n % 3}\n" for n in range(300)]
    parts = read(table(tmp_path / "a.tsv", "".join(lines)))
    texts = {name: {row.texts for row in rows} for name, rows in parts.items()}
    assert sum(map(len, texts.values())) == 50
    assert len(set.union(*texts.values())) == 50
    backwards = read(table(tmp_path / "b.tsv", "".join(lines[::-1])))
    assert {name: {row.texts for row in rows} for name, rows in backwards.items()} == texts


def test_hash_split_is_80_10_10(tmp_path: Path) -> None:
    parts = read(table(tmp_path / "a.tsv", "".join(f"{n % 2}\ttext {n}\n" for n in range(4000))))
    shares = {name: len(rows) / 4000 for name, rows in parts.items()}
    assert shares == pytest.approx({"train": 0.8, "validation": 0.1, "test": 0.1}, abs=0.02)


@pytest.mark.parametrize("names", [(), ("id1", "id2")], ids=["three columns", "five, as in LRA"])
def test_tables_of_two_texts(tmp_path: Path, names: tuple[str, ...]) -> None:
    lines = ["\t".join((f"{n % 2}.0", *names, f"left {n}", f"right {n}")) for n in range(60)]
    parts = read(table(tmp_path / "a.tsv", "\n".join(lines)), TWO)
    rows = {(row.label, row.texts) for part in parts.values() for row in part}
    assert rows == {(f"{n % 2}.0", (b"left %d" % n, b"right %d" % n)) for n in range(60)}


def test_folder_of_the_published_matching_tables(tmp_path: Path) -> None:
    for name in ("train", "eval", "test"):
        table(tmp_path / f"new_aan_pairs.{name}.tsv", f"1.0\ta\tb\t{name} 1\t{name} 2\n" * 2)
    table(tmp_path / "notes.tsv", "not a part")
    parts = read(tmp_path, TWO)
    assert {name: rows[0].texts[0] for name, rows in parts.items()} == {
        "train": b"train 1",
        "validation": b"eval 1",
        "test": b"test 1",
    }


def texts_in(folder: Path, count: int, name: str = "") -> None:
    folder.mkdir(parents=True)
    for n in range(count):
        (folder / f"{n}.txt").write_text(f"{folder.name} {name} {n}")


def test_folder_with_a_folder_per_label(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        texts_in(tmp_path / label, 30)
        (tmp_path / label / ".DS_Store").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / "readme.md").write_text("x")
    found = said(read(tmp_path))
    assert len(found) == 60
    assert all(text.decode().startswith(label) for text, label in found.items())


def test_folder_of_parts_as_of_imdb(tmp_path: Path) -> None:
    for part, count in (("train", 40), ("test", 5)):
        for label in ("neg", "pos"):
            texts_in(tmp_path / part / label, count, part)
        (tmp_path / part / "urls_pos.txt").write_text("x")
    texts_in(tmp_path / "train" / "unsup", 3)
    parts = read(tmp_path)
    assert {row.label for row in parts["train"]} == {"neg", "pos"}
    assert len(parts["test"]) == 10
    assert len(parts["train"]) + len(parts["validation"]) == 80
    assert 1 <= len(parts["validation"]) <= 20
    assert len(said(parts)) == 90
    texts_in(tmp_path / "val" / "pos", 2, "val")
    assert len(read_texts(f"{tmp_path}/", ONE, "").get("validation", [])) == 2


def test_without_a_test_validation_reports(tmp_path: Path) -> None:
    table(tmp_path / "train.tsv", "".join(f"{n % 2}\tt {n}\n" for n in range(60)))
    table(tmp_path / "dev.tsv", "0\tsame\n0\tsame\n1\tlast 1\n1\tlast 2\n")
    parts = read(tmp_path)
    assert {row.texts[0] for row in parts["test"]} == {b"last 1", b"last 2", b"same"}
    assert {row.label for row in parts["test"]} == {"0", "1"}  # as train says
    assert len(parts["train"]) + len(parts["validation"]) == 60
    assert len(parts["validation"]) < 20


def test_datasets_on_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"label": datasets.ClassLabel(names=["neg", "pos"]), "text": datasets.Value("string")}
    )

    def made(name: str, count: int, label: int | None = None) -> object:
        labels = [n % 2 if label is None else label for n in range(count)]
        columns = {"label": labels, "text": [f"{name} é {n}" for n in range(count)]}
        return datasets.Dataset.from_dict(columns, features=features)

    made("one", 50).save_to_disk(tmp_path / "one")
    found = said(read(tmp_path / "one"))
    assert found == {f"one é {n}".encode(): str(n % 2) for n in range(50)}

    parts = {"train": made("train", 50), "test": made("test", 4), "other": made("other", 3)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "parts")
    read_parts = read(tmp_path / "parts")
    assert {row.texts[0] for row in read_parts["test"]} == {
        f"test é {n}".encode() for n in range(4)
    }
    assert len(said(read_parts)) == 54

    with pytest.raises(ValueError, match="no column sentence; its columns are label, text"):
        read(tmp_path / "parts", Columns("label", ("sentence",)))
    made("hidden", 3, label=-1).save_to_disk(tmp_path / "hidden")
    with pytest.raises(ValueError, match="row 0 has label -1"):
        read(tmp_path / "hidden")


def test_without_datasets_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'efficient-attn\[data\]'"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a\tx\nb\ty\n", "both columns have 2 different values; .*label<TAB>text"),
        (b"only text\n", r":1: 1 columns without the names label, text"),
        (b"a\tb\tc\n", r":1: 3 columns without the names"),
        (b"0\ta\n0\tb\n1\n", r":3: expected 2 columns .* found 1: '1'"),
        (b"0\ta\n0\tb\n0\tb\tc\n", r":3: expected 2 columns .* found 3"),
        (b'0\ta\n0\t"b\nc"\n', r":3: expected 2 columns .*line breaks"),
        (b"0\ta\n0\t \n", r":2: .*not empty"),
        (b"0\ta\n0\tb\n\n\tc\n", r":4: .*not empty"),
        (b"sentence\tlabel\na\t0\n", r":1 has no column text; .* are sentence, label; rename"),
        (b"sentence\tmood\na\t0\nb\t0\n", r":1: the label 'mood' stands in first lines"),
        ("0\ta\n".encode("utf-16"), "is UTF-16: write it anew as UTF-8"),
        (b"0\ta\n0\tb\n", "has no samples for"),
    ],
)
def test_odd_tables_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(table(tmp_path / "odd.tsv", content))


def test_odd_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"task\.source=.*nowhere.* folder of files per"):
        read(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"label<TAB>text1<TAB>text2"):
        read(tmp_path, TWO)
    for name in ("val", "dev"):
        table(tmp_path / f"{name}.tsv", f"0\t{name} 1\n0\t{name} 2\n")
    with pytest.raises(ValueError, match="more than one validation"):
        read(tmp_path)
    texts_in(tmp_path / "labels" / "a", 2)
    (tmp_path / "labels" / "a" / "blank.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"blank\.txt is empty; remove it"):
        read(tmp_path / "labels")


def test_tokens_and_their_frequencies() -> None:
    texts = [b"ab", b"\xffabcdef", b"xyzx"]
    tokens = encoded(texts, 4)
    assert tokens.tolist() == [[97, 98, PAD, PAD], [255, 97, 98, 99], [120, 121, 122, 120]]
    expected = np.zeros((3, 256), int)
    for row, text in zip(expected, texts, strict=True):
        for byte in text[:4]:
            row[byte] += 1
    assert np.array_equal(histograms(tokens), expected)
