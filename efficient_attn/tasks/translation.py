"""Translation of parallel text: any file with a source and its target on each line."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import nn

from efficient_attn.nn.mode import evaluating
from efficient_attn.nn.seq2seq import SPECIALS
from efficient_attn.tasks.seq2seq import Ids, Pair, Seq2SeqTask, padded
from efficient_attn.tasks.task import Batch, Split, generator, require_count, require_split

POOL = 16
"""Batches that are sorted by length together, so that a batch holds little padding."""

SAMPLES = 3


@dataclass(frozen=True)
class Translation(Seq2SeqTask):
    """Parallel text; BLEU and chrF of sacrebleu, with its default settings.

    source: a TSV file, ``source<TAB>target`` on each line (``efficient-attn prepare verses``).
    vocab: size of the byte-level BPE vocabulary (Sennrich et al. 2016), one for both sides, made
        from the training pairs alone: bytes would be several times longer sequences, whole words
        leave out those that training never showed.
    length: pairs with a longer side, in tokens, are left out everywhere; provenance counts them.
    evaluation: pairs held back for each of validation and test, the same for every seed.
    """

    name: ClassVar[str] = "translation"
    metric: ClassVar[str] = "bleu"
    positions: ClassVar[str] = "sinusoidal"

    length: int = 64
    num_beams: int = 4
    source: str = "data/verses.tsv"
    vocab: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("translation.length", self.length)
        require_count("translation.vocab", self.vocab, low=SPECIALS + 256)

    @property
    def _corpus(self) -> Corpus:
        return read_corpus(self.source, self.vocab, self.length, self.evaluation)

    @property
    def vocab_size(self) -> int:
        return self._corpus.tokenizer.get_vocab_size()

    @property
    def target_length(self) -> int:
        return self.length

    def pairs(self, seed: int, batch_size: int) -> Iterator[Batch]:
        """Every training pair once per epoch; pairs of similar length share a batch."""
        pairs = self._corpus.pairs["train"]
        draw = generator("translation", seed)
        while True:
            order = draw.permutation(len(pairs))
            for first in range(0, len(order), POOL * batch_size):
                pool = sorted(
                    (pairs[index] for index in order[first : first + POOL * batch_size]),
                    key=lambda pair: (len(pair[0]), len(pair[1])),
                )
                starts = range(0, len(pool), batch_size)
                for start in draw.permutation(np.array(starts)):
                    sources, targets = zip(*pool[start : start + batch_size], strict=True)
                    yield padded(sources), padded(targets)

    def held(self, split: Split) -> list[Pair]:
        require_split(split)
        return self._corpus.pairs[split]

    def score(self, outputs: Sequence[Ids], split: Split) -> dict[str, float]:
        """BLEU, chrF (both 0 to 100) and the share of exact matches, of texts."""
        texts = self._corpus.tokenizer.decode_batch([list(output) for output in outputs])
        return text_scores(texts, [target for _, target in self._corpus.texts[split]])

    def sample(self, model: nn.Module) -> str:
        """The first sources of the test part, their targets and what the model makes of them."""
        *_, decode = self.decoders(model).values()
        texts = self._corpus.texts["test"][:SAMPLES]
        with evaluating(model) as device:
            outputs = decode(padded([ids for ids, _ in self.held("test")[:SAMPLES]]).to(device))
        said = self._corpus.tokenizer.decode_batch(outputs)
        return "\n\n".join("\n".join([*pair, own]) for pair, own in zip(texts, said, strict=True))

    def baselines(self) -> dict[str, float]:
        """BLEU of other pairs' targets, of the most frequent target, and of the sources."""
        test = self._corpus.texts["test"]
        known = [target for _, target in self._corpus.texts["train"]]
        references = [target for _, target in test]
        draw = generator("translation chance", 0)
        frequent = Counter(known).most_common(1)[0][0]
        guesses = {
            "chance": [known[index] for index in draw.integers(0, len(known), len(test))],
            "most_frequent_target": [frequent] * len(test),
            "copy_source": [source for source, _ in test],
        }
        return {name: text_scores(texts, references)["bleu"] for name, texts in guesses.items()}

    def provenance(self) -> dict[str, Any]:
        """Hash of the file, and how many pairs are used and left out for their length."""
        corpus = self._corpus
        return {
            "source": self.source,
            "sha256": corpus.sha256,
            "pairs": {name: len(pairs) for name, pairs in corpus.pairs.items()},
            "left_out": corpus.left_out,
        }


@dataclass(frozen=True)
class Corpus:
    """A parallel text, cut into tokens.

    texts, pairs: source and target of train, validation and test, as text and as tokens.
    left_out: pairs with a side that was too long. tokenizer: a `tokenizers.Tokenizer`.
    """

    texts: dict[str, list[tuple[str, str]]]
    pairs: dict[str, list[Pair]]
    left_out: int
    tokenizer: Any
    sha256: str


@lru_cache(maxsize=4)
def read_corpus(source: str, vocab: int, length: int, held: int) -> Corpus:
    """Read, split and tokenise; ValueError where too few pairs are left to train on."""
    content = _content(source)
    lines = _text(source, content).removesuffix("\n").split("\n")
    rows = [_row(source, number, line) for number, line in enumerate(lines, start=1)]
    order = generator("translation split", 0).permutation(len(rows))
    rows = [rows[index] for index in order]
    reserve = 3 * held  # where held pairs come from: the vocabulary must not know them
    tokenizer = _tokenizer([text for row in rows[reserve:] for text in row], vocab)
    encoded = [
        [encoding.ids for encoding in tokenizer.encode_batch(list(side))]
        for side in zip(*rows, strict=True)
    ]
    fits = [all(len(ids) <= length for ids in pair) for pair in zip(*encoded, strict=True)]
    if sum(fits[:reserve]) < 2 * held or sum(fits) == 2 * held:
        raise ValueError(
            f"translation.source={source!r} has {sum(fits)} pairs of at most length={length} "
            f"tokens, {sum(fits[:reserve])} of the {reserve} from which evaluation={held} holds "
            "back twice as many: raise length, lower evaluation or give more text"
        )
    kept = [(row, pair) for row, *pair, fit in zip(rows, *encoded, fits, strict=True) if fit]
    parts = {
        "validation": kept[:held],
        "test": kept[held : 2 * held],
        "train": kept[2 * held :],
    }
    return Corpus(
        {name: [row for row, _ in part] for name, part in parts.items()},
        {name: [(pair[0], pair[1]) for _, pair in part] for name, part in parts.items()},
        len(rows) - len(kept),
        tokenizer,
        hashlib.sha256(content).hexdigest(),
    )


def text_scores(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF of sacrebleu (Post 2018; Popović 2015), and the share of exact matches."""
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ImportError(_INSTALL.format("scored with sacrebleu")) from error
    return {
        "bleu": float(BLEU().corpus_score(list(outputs), [list(references)]).score),
        "chrf": float(CHRF().corpus_score(list(outputs), [list(references)]).score),
        "exact_match": sum(map(str.__eq__, outputs, references)) / len(references),
    }


_INSTALL = "translations are {}: pip install 'efficient-attn[text]'"


def _content(source: str) -> bytes:
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(
            f"translation.source={source!r} is no file; give a TSV of source<TAB>target, or make "
            f"one of Bible verses: efficient-attn prepare verses --out {source}"
        )
    return path.read_bytes()


def _text(source: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"translation.source={source!r} is not UTF-8 from byte {error.start} on: write it anew "
            f"in that encoding, e.g. iconv -f latin1 -t utf-8 {source}"
        ) from error


def _row(source: str, number: int, line: str) -> tuple[str, str]:
    columns = line.rstrip("\r").split("\t")
    if len(columns) != 2 or not all(column.strip() for column in columns):
        raise ValueError(f"{source}:{number}: expected source<TAB>target, found {line[:60]!r}")
    return columns[0], columns[1]


def _tokenizer(texts: Sequence[str], vocab: int) -> Any:
    """Byte-level BPE: no text is unknown, and decoding gives the text back as it was."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ImportError(_INSTALL.format("tokenised with tokenizers")) from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["[PAD]", "[BOS]", "[EOS]", "[MASK]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
