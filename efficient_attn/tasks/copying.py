"""Copying, reversing and sorting random tokens, with others strewn in that must be left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from efficient_attn.nn.seq2seq import PAD, SPECIALS
from efficient_attn.tasks.seq2seq import Ids, Pair, Seq2SeqTask, exact_match, unpadded
from efficient_attn.tasks.task import Batch, Split, generator, require_count, require_split

ORDERS = ("copy", "reverse", "sort")


@dataclass(frozen=True)
class Copying(Seq2SeqTask):
    """Say the tokens of the source in some order, without the distractors.

    With order="reverse", tokens a–p and one distractor (–)::

        source   c a – p c
        target   c p a c

    order: "copy", "reverse" or "sort" (by token, equal ones side by side).
    tokens: how many are to be said; shortest: drawn uniformly from `shortest` … `tokens` where
        given. distractors: as many more, from symbols of their own, at random places.
    symbols: different tokens to be said, and as many different distractors.
    """

    name: ClassVar[str] = "copying"
    metric: ClassVar[str] = "exact_match"
    positions: ClassVar[str] = "sinusoidal"

    order: str = "reverse"
    tokens: int = 32
    shortest: int | None = None
    distractors: int = 0
    symbols: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ORDERS:
            raise ValueError(f"copying.order={self.order!r} is not one of {', '.join(ORDERS)}")
        for name in ("tokens", "symbols"):
            require_count(f"copying.{name}", getattr(self, name))
        require_count("copying.distractors", self.distractors, low=0)
        if self.shortest is not None:
            require_count("copying.shortest", self.shortest)
            if self.shortest > self.tokens:
                raise ValueError(
                    f"copying.shortest={self.shortest} is more than tokens={self.tokens}"
                )

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.tokens + self.distractors

    @property
    def target_length(self) -> int:
        return self.tokens

    @property
    def vocab_size(self) -> int:
        return SPECIALS + self.symbols * (2 if self.distractors else 1)

    def pairs(self, seed: int, batch_size: int) -> Iterator[Batch]:
        draw = generator("copying train", seed)
        while True:
            yield self.draw(draw, batch_size)

    def draw(self, draw: np.random.Generator, count: int) -> Batch:
        """`count` sources [count, M] and their targets [count, N], PAD on the right."""
        low = self.tokens if self.shortest is None else self.shortest
        lengths = draw.integers(low, self.tokens + 1, (count, 1))
        said = SPECIALS + draw.integers(0, self.symbols, (count, self.tokens))
        others = SPECIALS + self.symbols + draw.integers(0, self.symbols, (count, self.distractors))
        inside = np.arange(self.length) < lengths + self.distractors
        # The smallest of random scores are a draw without replacement.
        scores = np.where(inside, draw.random((count, self.length)), np.inf)
        taken = np.zeros_like(inside)
        np.put_along_axis(taken, np.argsort(scores, axis=1)[:, : self.distractors], True, axis=1)

        place = np.arange(self.tokens)
        kept = place < lengths
        source = np.full((count, self.length), PAD)
        source[taken] = others.ravel()
        source[inside & ~taken] = said[kept]
        if self.order == "reverse":
            said = np.take_along_axis(said, np.maximum(lengths - 1 - place, 0), axis=1)
        elif self.order == "sort":
            said = np.sort(np.where(kept, said, self.vocab_size), axis=1)
        target = np.where(kept, said, PAD)
        columns = lengths.max()
        return (
            torch.from_numpy(source[:, : columns + self.distractors]),
            torch.from_numpy(target[:, :columns]),
        )

    def held(self, split: Split) -> list[Pair]:
        require_split(split)
        sources, targets = self.draw(generator("copying", split), self.evaluation)
        return list(zip(unpadded(sources), unpadded(targets), strict=True))

    def score(self, outputs: Sequence[Ids], split: Split) -> dict[str, float]:
        """Share of targets said without a mistake, and of places that hold the right token."""
        targets = [target for _, target in self.held(split)]
        right = sum(
            sum(map(int.__eq__, output, target))
            for output, target in zip(outputs, targets, strict=True)
        )
        longest = sum(max(map(len, pair)) for pair in zip(outputs, targets, strict=True))
        return {"exact_match": exact_match(outputs, targets), "token_accuracy": right / longest}

    def baselines(self) -> dict[str, float]:
        """Guessing every token of known length, and the source as it is."""
        pairs = self.held("test")
        chance = float(np.mean([float(self.symbols) ** -len(target) for _, target in pairs]))
        sources = [source for source, _ in pairs]
        return {"chance": chance, "copy_source": self.score(sources, "test")["exact_match"]}
