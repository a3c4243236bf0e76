"""Mask-predict: a decoder that fills in a whole target at once and refines it a few times.

Source: Ghazvininejad et al., "Mask-Predict: Parallel Decoding of Conditional Masked Language
Models" (2019), sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from efficient_attn.attention.errors import require_int
from efficient_attn.nn.generation import Generated
from efficient_attn.nn.mode import evaluating
from efficient_attn.nn.models import masked_mean
from efficient_attn.nn.seq2seq import BOS, EOS, MASK, PAD, EncoderDecoder, token_loss

LENGTH_LOSS = 0.1
"""Weight of the length's loss beside the tokens'."""


class MaskPredict(EncoderDecoder):
    """The non-autoregressive twin of `Seq2Seq`: the same encoder, a decoder without causality.

    The decoder sees the whole target with some tokens masked and says what stands there; the
    target's length is predicted from the mean over the encoder's outputs and the source's length,
    which every attention variant offers (the paper's extra source token is out of a window's
    sight). Arguments: see `EncoderDecoder`; targets have no BOS or EOS.
    """

    causal = False

    def __init__(self, vocab_size: int, *, max_len: int, **settings: Any) -> None:
        super().__init__(vocab_size, max_len=max_len, **settings)
        d_model = self.target_embed.embedding_dim
        self.source_length = nn.Embedding(max_len + 1, d_model)
        self.length_head = nn.Linear(d_model, self.max_target_len)

    def forward(self, source: Tensor, masked_target: Tensor) -> tuple[Tensor, Tensor]:
        """source [B, M], masked_target [B, N] -> logits of tokens [B, N, V], of lengths [B, L].

        Column n − 1 of the second is length n. Both are padded with PAD on the right.
        """
        memory, padding = self.encode(source)
        return self.decode(masked_target, memory, padding), self.length_logits(source, memory)

    def length_logits(self, source: Tensor, memory: Tensor) -> Tensor:
        """Logits of target lengths 1 … max_target_len, [B, max_target_len]."""
        padded = source == PAD
        features = masked_mean(memory, padded) + self.source_length((~padded).sum(1))
        return self.length_head(features)

    def loss(
        self, source: Tensor, masked_target: Tensor, labels: Tensor, label_smoothing: float = 0.0
    ) -> Tensor:
        """Cross-entropy of the masked tokens and, times `LENGTH_LOSS`, of the length.

        masked_target, labels: [B, N], see `mask_at_random`.
        """
        logits, length_logits = self(source, masked_target)
        length = (masked_target != PAD).sum(1)
        length_loss = F.cross_entropy(length_logits, length - 1)
        return token_loss(logits, labels, label_smoothing) + LENGTH_LOSS * length_loss

    def generate(
        self, source: Tensor, *, iterations: int = 10, length_candidates: int = 5
    ) -> Generated:
        """source [B, M] -> targets, without BOS and EOS, in eval mode.

        iterations: passes through the decoder. length_candidates: so many of the likeliest lengths
        are decoded side by side, and the target with the highest (log P(length) + Σ log P(token)) /
        length is taken. The paper leaves out P(length); then a length that the model rules out,
        and was never trained on, may win.
        scores: log P(length) + Σ log P(token).
        """
        require_int("iterations", iterations, low=1)
        require_int("length_candidates", length_candidates, low=1)
        self._require_source(source)
        with evaluating(self):
            return self._generate(source, iterations, length_candidates)

    def _generate(self, source: Tensor, iterations: int, length_candidates: int) -> Generated:
        memory, padding = self.encode(source)
        count = min(length_candidates, self.max_target_len)
        likeliest = self.length_logits(source, memory).log_softmax(-1).topk(count)
        lengths = 1 + likeliest.indices
        memory = memory.repeat_interleave(count, 0)
        padding = None if padding is None else padding.repeat_interleave(count, 0)

        def predict(tokens: Tensor) -> Tensor:
            logits = self.decode(tokens, memory, padding)
            logits[..., [PAD, BOS, EOS, MASK]] = float("-inf")
            return logits

        tokens, scores = refine(predict, lengths.flatten(), iterations)
        scores = likeliest.values.double() + scores.view(-1, count)
        best = (scores / lengths).argmax(1, keepdim=True)
        lengths, scores = lengths.gather(1, best).squeeze(1), scores.gather(1, best).squeeze(1)
        rows = torch.arange(len(source), device=best.device)
        tokens = tokens.unflatten(0, (-1, count))[rows, best.squeeze(1), : int(lengths.max())]
        return Generated(tokens, lengths, scores)


def refine(
    predict: Callable[[Tensor], Tensor], lengths: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """Fill targets of known lengths [B] in `iterations` passes: tokens [B, N], scores [B].

    predict: tokens [B, N] with MASK where unknown and PAD after the end -> logits [B, N, V].
    In pass t = 0, 1, … of T the ⌊length · (T − t) / T⌋ least probable tokens are masked and
    predicted anew, all at once; the others keep the probability they were chosen with. A score
    is the sum of the log-probabilities over the target.
    """
    place = torch.arange(int(lengths.max()), device=lengths.device)
    real = place < lengths.unsqueeze(1)
    tokens = torch.where(real, MASK, PAD)
    log_probs = torch.zeros(real.shape, device=lengths.device)
    for done in range(iterations):
        unsure = lengths * (iterations - done) // iterations
        masked = _smallest(log_probs.masked_fill(~real, float("inf")), unsure)
        likeliest = predict(tokens.masked_fill(masked, MASK)).float().log_softmax(-1).max(-1)
        tokens = torch.where(masked, likeliest.indices, tokens)
        log_probs = torch.where(masked, likeliest.values, log_probs)
    return tokens, log_probs.masked_fill(~real, 0.0).sum(1)


def mask_at_random(target: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What the decoder is trained on: target [B, N] -> masked_target and labels, [B, N] each.

    The number of masks is uniform in 1 … length for each sample, and any tokens are as likely to
    be masked as others. Labels are PAD where nothing is to be predicted.
    """
    real = target != PAD
    draw = torch.rand(target.shape, generator=generator)
    share = torch.rand(len(target), generator=generator)
    lengths = real.sum(1)
    masked = _smallest(draw.masked_fill(~real, float("inf")), 1 + (share * lengths).long())
    masked &= real
    return target.masked_fill(masked, MASK), target.masked_fill(~masked, PAD)


def _smallest(x: Tensor, count: Tensor) -> Tensor:
    """Bool [B, N]: the `count` [B] smallest entries of each row; of equal ones the first."""
    rank = x.argsort(dim=1, stable=True).argsort(1)
    return rank < count.unsqueeze(1)
