"""Copying, reversing and sorting random tokens, with others strewn in that must be left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from efficient_attn.nn.seq2seq import SPECIALS
from efficient_attn.tasks.seq2seq import Ids, Pair, Seq2SeqTask, exact_match
from efficient_attn.tasks.task import Split, generator, require_count, require_split

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

    def pairs(self, seed: int, batch_size: int) -> Iterator[list[Pair]]:
        draw = generator("copying train", seed)
        while True:
            yield [self.draw(draw) for _ in range(batch_size)]

    def draw(self, draw: np.random.Generator) -> Pair:
        """One source and its target."""
        low = self.tokens if self.shortest is None else self.shortest
        said = SPECIALS + draw.integers(0, self.symbols, draw.integers(low, self.tokens + 1))
        others = SPECIALS + self.symbols + draw.integers(0, self.symbols, self.distractors)
        source = np.empty(len(said) + len(others), dtype=np.int64)
        taken = np.zeros(len(source), dtype=bool)
        taken[draw.permutation(len(source))[: len(others)]] = True
        source[taken], source[~taken] = others, said
        target = {"copy": said, "reverse": said[::-1], "sort": np.sort(said)}[self.order]
        return source.tolist(), target.tolist()

    def held(self, split: Split) -> list[Pair]:
        require_split(split)
        draw = generator("copying", split)
        return [self.draw(draw) for _ in range(self.evaluation)]

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
