"""Generating tokens: greedy, sampled and beam search over any model that predicts the next one.

Nothing here knows of attention: a `StepModel` holds whatever it needs in a state of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from efficient_attn.attention.errors import OptionError, require_int, require_number
from efficient_attn.nn.prompts import Prompts, as_rows, highest_token, require_tokens
from efficient_attn.nn.sampling import Sampling

S = TypeVar("S", bound="Selectable")


class Selectable(Protocol):
    """What a model remembers of the tokens of every sample."""

    def select(self: S, index: Tensor) -> S:
        """The state of the samples `index` [B'], which may repeat or leave out some."""


class StepModel(Protocol):
    """A model that predicts the next token of B sequences, as `generate` asks for it."""

    def start(self, tokens: Tensor) -> tuple[Tensor, Any]:
        """The first tokens [B, n] -> logits [B, V] of the next one, `Selectable`."""

    def advance(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One more token of each, [B] -> logits [B, V] of the next one, `Selectable`."""


@dataclass(frozen=True)
class Generated:
    """What was added to the prompts.

    tokens: [B, L], without the prompt; after the end-of-sequence token, which is among them,
        every sample is filled up with the padding token.
    lengths: [B], tokens of each sample that are not padding.
    scores: [B], fp64: sum of the log-probabilities that the model gives to these tokens,
        whatever they were chosen by.
    """

    tokens: Tensor
    lengths: Tensor
    scores: Tensor

    def sequences(self) -> list[Tensor]:
        """The tokens of each sample, [length], without padding."""
        return [
            row[:length] for row, length in zip(self.tokens, self.lengths.tolist(), strict=True)
        ]


@torch.no_grad()
def generate(
    model: StepModel,
    prompts: Prompts,
    *,
    max_new_tokens: int,
    eos: int | None = None,
    pad: int = 0,
    num_beams: int = 1,
    length_penalty: float = 0.6,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | torch.Generator | None = None,
    vocab_size: int | None = None,
) -> Generated:
    """Continue each prompt until `eos` or by `max_new_tokens`.

    The default takes the likeliest token. temperature above 0 draws (see `Sampling`), and needs
    the seed. num_beams above 1 searches for the likeliest sequence (see `beam_search`).

    prompts: [B, n], or B sequences of one token at least, of any lengths. What the prompts have in
        common is read in parallel; then longer ones feed their own tokens while shorter ones
        already continue, so that no padding enters the model.
    pad: what `Generated.tokens` is filled up with.
    vocab_size: where it is given, prompts, eos and pad must be below it.

    Raises `OptionError` for options that are out of range or exclude each other.
    """
    require_int("num_beams", num_beams, low=1)
    sampling = Sampling(temperature, top_k, top_p)
    penalty = LengthPenalty(length_penalty)
    _require_seed(seed)
    task = Continuation.of(prompts, max_new_tokens, eos, pad, vocab_size)
    if num_beams == 1:
        return sample(model, task, sampling, seed)
    if not sampling.greedy:
        raise OptionError(
            f"num_beams={num_beams} with temperature={temperature}: beam search draws nothing; "
            "leave out one of them"
        )
    return beam_search(model, task, num_beams, penalty.alpha)


@dataclass(frozen=True)
class Continuation:
    """The task: prompts with the room for what is to come, and when to end.

    given: [B, longest + max_new_tokens], prompts from the left, padding after them.
    lengths: [B], of the prompts.
    """

    given: Tensor
    lengths: Tensor
    max_new_tokens: int
    eos: int | None
    pad: int

    @classmethod
    def of(
        cls,
        prompts: Prompts,
        max_new_tokens: int,
        eos: int | None = None,
        pad: int = 0,
        vocab_size: int | None = None,
    ) -> Continuation:
        require_int("max_new_tokens", max_new_tokens, low=1)
        highest = highest_token(vocab_size)
        require_int("pad", pad, low=0, high=highest)
        if eos is not None:
            require_int("eos", eos, low=0, high=highest)
        rows = as_rows(prompts)
        require_tokens("prompts", rows, vocab_size)
        lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
        width = int(lengths.max()) + max_new_tokens
        given = torch.full((len(rows), width), pad, dtype=torch.long, device=rows[0].device)
        for place, row in zip(given, rows, strict=True):
            place[: len(row)] = row
        return cls(given, lengths, max_new_tokens, eos, pad)

    def ends(self, tokens: Tensor) -> Tensor:
        """Where `tokens` are the end of a sequence."""
        if self.eos is None:
            return torch.zeros_like(tokens, dtype=torch.bool)
        return tokens == self.eos

    def finish(self, whole: Tensor, counts: Tensor, scores: Tensor) -> Generated:
        """Take the prompts off `whole` [B, W]; counts [B] tokens are new."""
        columns = torch.arange(int(counts.max()), device=whole.device)
        tokens = whole.gather(1, self.lengths.unsqueeze(1) + columns)
        return Generated(
            tokens.masked_fill(columns >= counts.unsqueeze(1), self.pad), counts, scores
        )


def sample(
    model: StepModel,
    task: Continuation,
    sampling: Sampling,
    seed: int | torch.Generator | None = None,
) -> Generated:
    """Token after token by `sampling`; samples that have ended are dropped from the work.

    What is drawn for a sample does not depend on when others end.
    """
    whole, B = task.given.clone(), len(task.given)
    scores = torch.zeros(B, dtype=torch.float64, device=whole.device)
    counts = torch.zeros_like(task.lengths)
    draws = None if sampling.greedy else _generator(seed)
    rows = torch.arange(B, device=whole.device)
    position = int(task.lengths.min())
    logits, state = model.start(whole[:, :position])
    while True:
        uniform = None
        if draws is not None:
            uniform = torch.rand(B, generator=draws, device=draws.device).to(whole.device)[rows]
        free = position >= task.lengths[rows]
        tokens = torch.where(free, sampling.choose(logits, uniform), whole[rows, position])
        gained = _log_probabilities(logits).gather(1, tokens.unsqueeze(1)).squeeze(1)
        whole[rows, position] = tokens
        scores[rows] += gained.masked_fill(~free, 0.0)
        counts[rows] += free
        ended = free & (task.ends(tokens) | (counts[rows] == task.max_new_tokens))
        if ended.any():
            left = (~ended).nonzero().squeeze(1)
            rows, tokens = rows[left], tokens[left]
            if len(left) == 0:
                return task.finish(whole, counts, scores)
            state = state.select(left)
        logits, state = model.advance(tokens, state)
        position += 1


def beam_search(
    model: StepModel, task: Continuation, num_beams: int, length_penalty: float = 0.6
) -> Generated:
    """The best sequence found while keeping the `num_beams` likeliest beginnings of each sample.

    A sequence Y that has ended, by the end token or by length, is rated by
    ``log P(Y) / ((5 + |Y|) / 6) ** length_penalty``, |Y| counting the end token (Wu et al. 2016,
    "Google's Neural Machine Translation System", section 7, equation 14, without coverage). An end
    token counts where it is among the `num_beams` best continuations. The search for a sample
    stops as soon as nothing that goes on can be rated higher than the best that has ended.
    """
    penalty = LengthPenalty(length_penalty)
    B, K = len(task.given), num_beams
    best = _Best(task)
    rows = torch.arange(B, device=task.given.device)
    whole = task.given.unsqueeze(1).repeat(1, K, 1)
    live = torch.full((B, K), -math.inf, dtype=torch.float64, device=rows.device)
    live[:, 0] = 0.0  # all beams are equal so far: only one may go on
    position = int(task.lengths.min())
    logits, state = model.start(task.given[:, :position])
    copies = rows.repeat_interleave(K)
    logits, state = logits[copies], state.select(copies)
    while True:
        counts = position + 1 - task.lengths[rows]
        free, last = counts > 0, counts == task.max_new_tokens
        ahead = _likeliest(live, logits, 2 * K)
        ended = task.ends(ahead.tokens)
        complete = (ended[:, :K] | last[:, None]) & free[:, None]
        ratings = penalty.rate(ahead.scores[:, :K], counts[:, None]).masked_fill(
            ~complete, -math.inf
        )
        best.offer(rows, ratings, ahead, whole, position)

        # At most K of the 2K have ended, so that K can go on.
        scores, kept = ahead.scores.masked_fill(ended, -math.inf).topk(K)
        own = torch.arange(K, device=rows.device).expand(len(rows), K)
        parents = torch.where(free[:, None], ahead.parents.gather(1, kept), own)
        tokens = torch.where(free[:, None], ahead.tokens.gather(1, kept), whole[:, :, position])
        live = torch.where(free[:, None], scores, live)
        hope = penalty.bound(live.amax(1), counts, task.max_new_tokens)
        left = (~free | ~(last | (best.ratings[rows] >= hope))).nonzero().squeeze(1)
        if len(left) == 0:
            return task.finish(best.whole, best.counts, best.scores)
        rows, live, parents, tokens = rows[left], live[left], parents[left], tokens[left]
        whole = whole[left[:, None], parents]
        whole[:, :, position] = tokens
        state = state.select((left[:, None] * K + parents).flatten())
        logits, state = model.advance(tokens.flatten(), state)
        position += 1


@dataclass(frozen=True)
class LengthPenalty:
    """((5 + length) / 6) ** alpha, by which log-probabilities are divided."""

    alpha: float

    def __post_init__(self) -> None:
        require_number("length_penalty", self.alpha)

    def rate(self, scores: Tensor, length: Tensor | int) -> Tensor:
        """Ratings of log-probabilities of sequences of `length` tokens."""
        length = torch.as_tensor(length, device=scores.device)
        return scores / ((5.0 + length.clamp(min=0)) / 6.0) ** self.alpha

    def bound(self, scores: Tensor, length: Tensor, longest: int) -> Tensor:
        """The highest rating within reach of beginnings of `length` tokens."""
        return torch.maximum(self.rate(scores, length + 1), self.rate(scores, longest))


class _Best:
    """The highest rated sequence of each sample that has ended so far."""

    def __init__(self, task: Continuation) -> None:
        self.lengths = task.lengths
        self.whole = task.given.clone()
        self.counts = torch.zeros_like(task.lengths)
        self.scores = torch.zeros(len(task.given), dtype=torch.float64, device=task.given.device)
        self.ratings = torch.full_like(self.scores, -math.inf)

    def offer(
        self, rows: Tensor, ratings: Tensor, ahead: _Candidates, whole: Tensor, position: int
    ) -> None:
        """Take over, for the samples `rows` [A], what is rated [A, K] higher than before: beams of
        `whole` [A, K, W] with another token at `position`."""
        top, place = ratings.max(1)
        higher = (top > self.ratings[rows]).nonzero().squeeze(1)
        place, samples = place[higher], rows[higher]
        self.ratings[samples] = top[higher]
        self.scores[samples] = ahead.scores[higher, place]
        self.counts[samples] = position + 1 - self.lengths[samples]
        self.whole[samples] = whole[higher, ahead.parents[higher, place]]
        self.whole[samples, position] = ahead.tokens[higher, place]


class _Candidates(NamedTuple):
    """Continuations of the beams of A samples, best first, each [A, count]."""

    scores: Tensor
    parents: Tensor
    tokens: Tensor


def _likeliest(live: Tensor, logits: Tensor, count: int) -> _Candidates:
    """The best `count` continuations of the beams by one token.

    live: [A, K], log-probabilities of the beams; logits: [A·K, V].
    """
    K, V = live.shape[1], logits.shape[-1]
    scores = live.unsqueeze(2) + _log_probabilities(logits).unflatten(0, (-1, K))
    scores, places = scores.flatten(1).topk(count)
    return _Candidates(scores, places // V, places % V)


def _log_probabilities(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(-1)


def _generator(seed: int | torch.Generator | None) -> torch.Generator:
    _require_seed(seed)
    if isinstance(seed, torch.Generator):
        return seed
    if seed is None:
        raise OptionError("seed=None: sampling needs a whole number or a torch.Generator")
    return torch.Generator().manual_seed(seed)


def _require_seed(seed: int | torch.Generator | None) -> None:
    if seed is not None and not isinstance(seed, torch.Generator):
        require_int("seed", seed, low=0, high=2**63 - 1)
