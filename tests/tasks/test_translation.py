"""Parallel text: splits, tokens, scores against sacrebleu called by hand, and errors."""

from pathlib import Path

import pytest
import sacrebleu
import torch

from efficient_attn.nn.seq2seq import SPECIALS
from efficient_attn.tasks import ModelConfig, Translation
from efficient_attn.tasks.seq2seq import unpadded
from efficient_attn.tasks.translation import read_corpus, text_scores

SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)
WORDS = ["uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "año", "luz ", "¿qué?"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """200 pairs; the one of number 7 is long."""
    lines = [f"number {n}\t{WORDS[n % 10]} {WORDS[n // 10 % 10].strip()} {n}" for n in range(200)]
    lines[7] += " y" * 300
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def task_of(file: Path, **fields) -> Translation:
    return Translation(
        **{"source": str(file), "vocab": 300, "evaluation": 20, "length": 32, **fields}
    )


def test_parts_are_disjoint_and_all_that_fits(file: Path) -> None:
    corpus = task_of(file)._corpus
    parts = [set(corpus.texts[name]) for name in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [159, 20, 20]
    assert len(set.union(*parts)) == 199
    assert corpus.left_out == 1
    assert task_of(file).provenance()["pairs"] == {"validation": 20, "test": 20, "train": 159}


def test_tokens_give_the_text_back(file: Path) -> None:
    corpus = task_of(file)._corpus
    for part, rows in corpus.texts.items():
        for (source, target), (ids, aims) in zip(rows, corpus.pairs[part], strict=True):
            assert corpus.tokenizer.decode(ids) == source
            assert corpus.tokenizer.decode(aims) == target
            assert min(*ids, *aims) >= SPECIALS
    assert corpus.tokenizer.decode(corpus.tokenizer.encode("Ωμέγα 7").ids) == "Ωμέγα 7"


def test_vocabulary_knows_nothing_of_held_pairs(file: Path) -> None:
    """With the held targets replaced, the vocabulary is the same."""
    corpus = task_of(file)._corpus
    held = {pair for name in ("validation", "test") for pair in corpus.texts[name]}
    lines = []
    for line in file.read_text().splitlines():
        source, target = line.split("\t")
        lines.append(f"{source}\t{'zz zz zz' if (source, target) in held else target}")
    other = file.with_name("other.tsv")
    other.write_text("\n".join(lines))
    assert task_of(other)._corpus.tokenizer.get_vocab() == corpus.tokenizer.get_vocab()


def drawn(batch: tuple[torch.Tensor, torch.Tensor]) -> list[tuple[list[int], list[int]]]:
    """Sources and targets of a training batch without their padding."""
    return list(zip(*map(unpadded, batch), strict=True))


def test_an_epoch_shows_every_pair_once_and_seeds_differ(file: Path) -> None:
    task = task_of(file)
    batches = task.pairs(0, 53)
    epoch = [pair for _ in range(3) for pair in drawn(next(batches))]
    assert sorted(epoch) == sorted(task._corpus.pairs["train"])
    first, again, other = (drawn(next(task.pairs(seed, 8))) for seed in (0, 0, 1))
    assert first == again != other


def test_batches_hold_pairs_of_similar_length(file: Path) -> None:
    batch = drawn(next(task_of(file).pairs(0, 8)))
    spread = max(len(source) for source, _ in batch) - min(len(source) for source, _ in batch)
    lengths = [len(source) for source, _ in task_of(file)._corpus.pairs["train"]]
    assert spread <= (max(lengths) - min(lengths)) / 2


def test_scores_are_sacrebleus(file: Path) -> None:
    task = task_of(file)
    references = [target for _, target in task._corpus.texts["test"]]
    perfect = [target for _, target in task.held("test")]
    assert task.score(perfect, "test") == pytest.approx(
        {"bleu": 100.0, "chrf": 100.0, "exact_match": 1.0}
    )
    cut = [ids[:-2] for ids in perfect]
    texts = [task._corpus.tokenizer.decode(ids) for ids in cut]
    assert task.score(cut, "test") == {
        "bleu": sacrebleu.corpus_bleu(texts, [references]).score,
        "chrf": sacrebleu.corpus_chrf(texts, [references]).score,
        "exact_match": 0.0,
    }


def test_bleu_by_hand() -> None:
    """Precisions 5/6, 3/5, 1/4 and (smoothed) 1/(2·3), no brevity penalty."""
    scores = text_scores(["a b c d e f"], ["a b c x e f"])
    assert scores["bleu"] == pytest.approx(100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25)
    assert scores["exact_match"] == 0.0


def test_baselines_are_of_the_test_part(file: Path) -> None:
    corpus = task_of(file)._corpus
    baselines = task_of(file).baselines()
    assert set(baselines) == {"chance", "most_frequent_target", "copy_source"}
    sources, references = zip(*corpus.texts["test"], strict=True)
    expected = sacrebleu.corpus_bleu(list(sources), [list(references)]).score
    assert baselines["copy_source"] == expected


@pytest.mark.parametrize("decoding", ["autoregressive", "mask_predict"])
def test_models_decode_to_text(file: Path, decoding: str) -> None:
    task = task_of(file, evaluation=4, decoding=decoding, num_beams=2, iterations=[1, 2])
    model = task.build_model("full", {}, SMALL)
    assert 0 <= task.evaluate(model, "test") <= 100
    for figures in task.details(model, "test").values():
        assert {"bleu", "chrf", "exact_match", "ms per sequence"} == set(figures)


def test_a_sample_shows_source_target_and_output(file: Path) -> None:
    task = task_of(file, num_beams=1)
    model = task.build_model("full", {}, SMALL)
    first, *others = task.sample(model).split("\n\n")
    assert tuple(first.split("\n")[:2]) == task._corpus.texts["test"][0]
    assert len(others) == 2


def test_errors_say_what_to_do(tmp_path: Path, file: Path) -> None:
    with pytest.raises(FileNotFoundError, match="efficient-attn prepare verses"):
        task_of(tmp_path / "nothing.tsv").held("test")
    bad = tmp_path / "bad.tsv"
    bad.write_text("one\tuno\ntwo dos\n")
    with pytest.raises(ValueError, match=r"bad.tsv:2: expected source<TAB>target, found 'two dos'"):
        task_of(bad).held("test")
    latin = tmp_path / "latin.tsv"
    latin.write_bytes("year\taño\n".encode("latin1"))
    with pytest.raises(ValueError, match=r"latin.tsv' is not UTF-8 from byte 6 on: .*iconv"):
        task_of(latin).held("test")
    with pytest.raises(ValueError, match="raise length, lower evaluation"):
        task_of(file, length=2).held("test")
    with pytest.raises(ValueError, match="raise length, lower evaluation"):
        task_of(file, evaluation=150).held("test")
    with pytest.raises(ValueError, match="at least 260"):
        task_of(file, vocab=100)


def test_files_of_windows_and_without_a_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "crlf.tsv"
    path.write_bytes(b"\r\n".join(b"one %d\tuno %d" % (n, n) for n in range(20)))
    corpus = read_corpus(str(path), 300, 32, 2)
    assert all("\r" not in text for rows in corpus.texts.values() for row in rows for text in row)
