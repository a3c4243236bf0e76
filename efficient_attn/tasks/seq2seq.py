"""What tasks from one sequence to another share: both ways of decoding, and their figures."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.mask_predict import MaskPredict, mask_at_random
from efficient_attn.nn.mode import evaluating
from efficient_attn.nn.seq2seq import EOS, PAD, Seq2Seq, teacher_forcing
from efficient_attn.tasks.task import (
    Batch,
    Capability,
    ModelConfig,
    Split,
    Task,
    TaskPattern,
    require_count,
    require_split,
)

Ids: TypeAlias = list[int]
Pair: TypeAlias = tuple[Ids, Ids]
Decoder: TypeAlias = Callable[[Tensor], list[Ids]]

DECODINGS = ("autoregressive", "mask_predict")
CONTESTS = ("self", "cross", "both")
EVALUATION_CHUNK = 64


@dataclass(frozen=True)
class Seq2SeqTask(Task):
    """A source and a target, and a model of encoder and decoder between them.

    decoding: "autoregressive" (`Seq2Seq`), or "mask_predict" (`MaskPredict`, all tokens at once).
    contest: where the contestant stands: "self" (self-attention of encoder and decoder), "cross"
        (attention from target to source; all self-attention is `full`), or "both". A variant that
        cannot stand there is refused when the model is built: "cross" and "both" ask for
        cross-attention between any lengths, all but "cross" for causal self-attention where
        decoding is autoregressive.
    cross: variant of the attention from target to source where it is not the contestant's.
    num_beams: of the search that is scored (autoregressive); 1 is greedy.
    iterations: refinements that are reported (mask_predict); the last is scored.
    length_candidates: target lengths tried (mask_predict).
    """

    decoding: str = "autoregressive"
    contest: str = "self"
    cross: str = "full"
    num_beams: int = 1
    iterations: tuple[int, ...] = (1, 4, 10)
    length_candidates: int = 5
    evaluation: int = 500

    capability: ClassVar[Capability] = "alignment"
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "iterations", tuple(self.iterations))
        for name, allowed in (("decoding", DECODINGS), ("contest", CONTESTS)):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{self.name}.{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}"
                )
        if self.contest != "self" and self.cross != "full":
            raise ValueError(
                f"{self.name}.cross={self.cross!r} says what cross-attention is, but with "
                f"contest={self.contest!r} it is the contestant's; leave cross out"
            )
        for name in ("num_beams", "length_candidates", "evaluation"):
            require_count(f"{self.name}.{name}", getattr(self, name))
        if not self.iterations:
            raise ValueError(f"{self.name}.iterations is empty; give one or more, as [1, 4, 10]")
        for count in self.iterations:
            require_count(f"{self.name}.iterations", count)

    @property
    def pattern(self) -> TaskPattern:  # type: ignore[override]
        if self.contest == "cross":
            return "noncausal_cross"
        return "causal_self" if self.causal else "noncausal_self"

    @property
    def causal(self) -> bool:
        return self.decoding == "autoregressive"

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Numbers of source and target together, PAD, BOS, EOS and MASK among them."""

    @property
    @abstractmethod
    def target_length(self) -> int:
        """Tokens of the longest target, without BOS and EOS."""

    @abstractmethod
    def pairs(self, seed: int, batch_size: int) -> Iterator[Batch]:
        """Endless training batches: sources [B, M] and targets [B, N], PAD on the right."""

    @abstractmethod
    def held(self, split: Split) -> list[Pair]:
        """The pairs of a fixed split."""

    @abstractmethod
    def score(self, outputs: Sequence[Ids], split: Split) -> dict[str, float]:
        """Figures of decoded targets of a whole split, `metric` among them."""

    def build_model(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> nn.Module:
        own, other = (variant, options), (self.cross, None)
        within, across = {
            "self": (own, other),
            "cross": (("full", None), own),
            "both": (own, own),
        }[self.contest]
        kind = Seq2Seq if self.causal else MaskPredict
        return kind(
            self.vocab_size,
            max_len=self.length,
            max_target_len=self.target_length + 1,
            cross_variant=across[0],
            cross_variant_options=across[1],
            **self.settings(*within, model),
        )

    def batches(self, seed: int, batch_size: int) -> Iterator[Batch]:
        """Sources [B, M], and [B, 2, N]: what the decoder reads, and its labels."""
        draw = torch.Generator().manual_seed(seed)
        for source, target in self.pairs(seed, batch_size):
            sides = teacher_forcing(target) if self.causal else mask_at_random(target, draw)
            yield source, torch.stack(sides, 1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        source, target = batch
        return model.loss(source, *target.unbind(1))  # type: ignore[operator]

    def causal_view(self, model: nn.Module, batch: Batch) -> tuple[nn.Module, Tensor]:
        source, target = batch
        with evaluating(model):
            return _TargetSide(model, source), target[:, 0]

    def evaluate(self, model: nn.Module, split: Split) -> float:
        """`metric` of the scored way of decoding."""
        *_, decode = self.decoders(model).values()
        return self.score(self._decoded(model, decode, split, EVALUATION_CHUNK)[0], split)[
            self.metric
        ]

    def details(self, model: nn.Module, split: Split) -> dict[str, dict[str, float]]:
        """Every way of decoding with its figures, one source at a time, and its time for each."""
        figures = {}
        for name, decode in self.decoders(model).items():
            outputs, seconds = self._decoded(model, decode, split, 1)
            figures[name] = {
                **self.score(outputs, split),
                "ms per sequence": 1000 * seconds / len(outputs),
            }
        return figures

    def decoders(self, model: nn.Module) -> dict[str, Decoder]:
        """Ways from sources [B, M] to targets without EOS, by name; the last is the scored one."""
        if isinstance(model, Seq2Seq):
            return {
                "greedy" if beams == 1 else f"beam search, {beams}": _search(model, beams)
                for beams in dict.fromkeys((1, self.num_beams))
            }
        assert isinstance(model, MaskPredict)
        return {
            f"mask-predict, {count}": _refinement(model, count, self.length_candidates)
            for count in self.iterations
        }

    def _decoded(
        self, model: nn.Module, decode: Decoder, split: Split, batch_size: int
    ) -> tuple[list[Ids], float]:
        """The decoded targets of a split, and the seconds that took."""
        require_split(split)
        sources = [source for source, _ in self.held(split)]
        outputs: list[Ids] = []
        with evaluating(model) as device:
            start = time.perf_counter()
            for first in range(0, len(sources), batch_size):
                outputs += decode(padded(sources[first : first + batch_size]).to(device))
            return outputs, time.perf_counter() - start


class _TargetSide(nn.Module):
    """Logits of the target alone: the sources are encoded beforehand."""

    def __init__(self, model: nn.Module, source: Tensor) -> None:
        super().__init__()
        self.model = model
        self.memory = model.encode(source)  # type: ignore[operator]

    def forward(self, target: Tensor) -> Tensor:
        return self.model.decode(target, *self.memory)  # type: ignore[operator]


def padded(rows: Sequence[Ids]) -> Tensor:
    """Rows of any lengths as [B, longest], PAD on the right."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def unpadded(rows: Tensor) -> list[Ids]:
    """The rows of [B, N] without the PAD on their right; `padded` backwards."""
    lengths = (rows != PAD).sum(1).tolist()
    return [row[:length] for row, length in zip(rows.tolist(), lengths, strict=True)]


def exact_match(outputs: Sequence[Ids], targets: Sequence[Ids]) -> float:
    """Share of outputs that are their targets."""
    return sum(map(list.__eq__, outputs, targets)) / len(targets)


def _search(model: Seq2Seq, num_beams: int) -> Decoder:
    def decode(source: Tensor) -> list[Ids]:
        rows = [row.tolist() for row in model.generate(source, num_beams=num_beams).sequences()]
        return [row[:-1] if row[-1] == EOS else row for row in rows]

    return decode


def _refinement(model: MaskPredict, iterations: int, length_candidates: int) -> Decoder:
    def decode(source: Tensor) -> list[Ids]:
        return [
            row.tolist()
            for row in model.generate(
                source, iterations=iterations, length_candidates=length_candidates
            ).sequences()
        ]

    return decode
