"""Sequence to sequence: an encoder, and a decoder that attends to it, token after token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from efficient_attn.attention.errors import OptionError, require_choice, require_int
from efficient_attn.nn.choice import (
    Variant,
    VariantOptions,
    decoder_choice,
    require_any_lengths,
    require_causal,
)
from efficient_attn.nn.decoder import TransformerDecoder, TransformerDecoderLayer
from efficient_attn.nn.generation import Generated, generate
from efficient_attn.nn.mode import evaluating
from efficient_attn.nn.prompts import require_tokens
from efficient_attn.nn.saving import Saved
from efficient_attn.nn.settings import (
    EncoderSettings,
    added_positions,
    completed,
    last_norm,
    layer_arguments,
)
from efficient_attn.nn.state import DecodingState
from efficient_attn.nn.trunk import Trunk

if TYPE_CHECKING:
    from typing_extensions import Unpack

PAD, BOS, EOS, MASK = range(4)
"""Padding, begin and end of a sequence, a token to be predicted (mask-predict)."""
SPECIALS = 4


class EncoderDecoder(Saved):
    """What autoregressive and parallel models share: embeddings, encoder, decoder, logits.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.

    vocab_size: of source and target; target_vocab_size: where the target's differs. The first four
        numbers of both mean PAD, BOS, EOS, MASK.
    max_len, max_target_len: longest source, and longest target as the decoder reads it.
    shared_embeddings: one matrix embeds source and target and makes the logits (section 3.4).
    settings: see `EncoderSettings`; `variant` is the self-attention of encoder and decoder,
        `short_conv` is the encoder's alone.
    decoder_variant, decoder_variant_options: the decoder's self-attention, where it differs.
    cross_variant, cross_variant_options: attention from target to source. Each variant may be a
        list that is repeated over depth.

    Padding of the source (PAD) is masked everywhere.

    Raises, when it is built, OptionError for what is out of range, and UnsupportedAttention for a
    cross_variant that cannot attend between sequences of any lengths.
    """

    causal: ClassVar[bool]

    def __init__(
        self,
        vocab_size: int,
        *,
        max_len: int,
        target_vocab_size: int | None = None,
        max_target_len: int | None = None,
        shared_embeddings: bool = True,
        decoder_variant: Variant | None = None,
        decoder_variant_options: VariantOptions = None,
        cross_variant: Variant = "full",
        cross_variant_options: VariantOptions = None,
        **settings: Unpack[EncoderSettings],
    ) -> None:
        settings = completed(settings)
        decoder_variant, decoder_variant_options = decoder_choice(
            decoder_variant,
            decoder_variant_options,
            settings["variant"],
            settings["variant_options"],
        )
        if self.causal:
            require_causal(decoder_variant)
        require_any_lengths(cross_variant)
        target_size = vocab_size if target_vocab_size is None else target_vocab_size
        require_int("vocab_size", vocab_size, low=SPECIALS + 1)
        require_int("target_vocab_size", target_size, low=SPECIALS + 1)
        require_choice("shared_embeddings", shared_embeddings, [True, False])
        if shared_embeddings and target_size != vocab_size:
            raise ValueError(
                f"shared_embeddings=True needs one vocabulary: vocab_size={vocab_size}, "
                f"target_vocab_size={target_size}; pass shared_embeddings=False"
            )
        super().__init__()
        self.max_target_len = max_len if max_target_len is None else max_target_len
        require_int("max_len", max_len, low=1)
        require_int("max_target_len", self.max_target_len, low=1)
        positions, d_model = settings["positions"], settings["d_model"]
        # Sinusoids have unit size; a matrix that makes logits too must be small, so it is scaled.
        self.scale = math.sqrt(d_model) if positions == "sinusoidal" else 1.0
        std = 1.0 / self.scale if positions == "sinusoidal" else 0.02
        self.source_embed = _embedding(vocab_size, d_model, std)
        self.trunk = Trunk(max_len, **settings)
        self.target_embed = (
            self.source_embed if shared_embeddings else _embedding(target_size, d_model, std)
        )
        self.target_positions = added_positions(settings, self.max_target_len)
        self.decoder = _decoder(
            settings,
            variant=decoder_variant,
            variant_options=decoder_variant_options,
            cross_variant=cross_variant,
            cross_variant_options=cross_variant_options,
            max_len=self.max_target_len,
            memory_max_len=max_len,
        )
        self.head = nn.Linear(d_model, target_size, bias=False)
        if shared_embeddings:
            self.head.weight = self.target_embed.weight

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor | None]:
        """source [B, M] -> memory [B, M, D], its padding [B, M] (True = ignore; None = none)."""
        padded = source == PAD
        padding = padded if padded.any() else None
        return self.trunk(self.source_embed(source) * self.scale, padding), padding

    def decode(self, target: Tensor, memory: Tensor, padding: Tensor | None = None) -> Tensor:
        """What the decoder reads [B, N], memory [B, M, D], its padding -> logits [B, N, V].

        PAD in the target stands on the right; a causal decoder never looks there.
        """
        padded = target == PAD
        features = self.decoder(
            self._embed_target(target, 0),
            memory,
            tgt_key_padding_mask=padded if not self.causal and padded.any() else None,
            memory_key_padding_mask=padding,
            tgt_is_causal=self.causal,
        )
        return self.head(features)

    def _require_source(self, source: Tensor) -> None:
        """OptionError unless source is [B, M], at least one of each, of the vocabulary."""
        if not isinstance(source, Tensor) or source.dim() != 2 or source.numel() == 0:
            given = tuple(source.shape) if isinstance(source, Tensor) else type(source).__name__
            raise OptionError(f"source is {given}: allowed is a tensor of token numbers [B, M]")
        require_tokens("source", [source], self.source_embed.num_embeddings)

    def _embed_target(self, target: Tensor, start: int) -> Tensor:
        return self.target_positions(self.target_embed(target) * self.scale, start)


class Seq2Seq(EncoderDecoder):
    """Autoregressive encoder-decoder: each target token given the source and the tokens before.

    Arguments: see `EncoderDecoder`. Raises UnsupportedAttention, when it is built, also for a
    decoder variant that cannot be causal.
    """

    causal = True

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Teacher forcing: source [B, M], target_in [B, N] from BOS on -> logits [B, N, V]."""
        return self.decode(target_in, *self.encode(source))

    def loss(
        self, source: Tensor, target_in: Tensor, labels: Tensor, label_smoothing: float = 0.0
    ) -> Tensor:
        """Cross-entropy of labels [B, N], which follow target_in [B, N] (see `teacher_forcing`)."""
        return token_loss(self(source, target_in), labels, label_smoothing)

    def init_state(self, source: Tensor) -> DecodingState:
        """State for `step` before BOS; the encoder runs here, once. source [B, M]."""
        return self.decoder.init_state(*self.encode(source))

    def step(self, target_in: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """The next n target tokens [B, n] -> logits [B, n, V], new state; equal to `forward`."""
        features, state = self.decoder.step(self._embed_target(target_in, state.position), state)
        return self.head(features), state

    def generate(
        self, source: Tensor, *, max_new_tokens: int | None = None, **search: Any
    ) -> Generated:
        """From BOS until EOS, which is among the tokens, in eval mode; source [B, M].

        max_new_tokens: at most (and by default) max_target_len. search: num_beams,
        length_penalty, temperature, top_k, top_p and seed as in `efficient_attn.nn.generate`.
        """
        self._require_source(source)
        longest = self.max_target_len if max_new_tokens is None else max_new_tokens
        require_int("max_new_tokens", longest, low=1)
        if longest > self.max_target_len:
            raise ValueError(
                f"max_new_tokens={longest} is more than max_target_len={self.max_target_len}, "
                "for which the model was built"
            )
        begin = torch.full((len(source), 1), BOS, device=source.device)
        with evaluating(self):
            return generate(
                _Continuing(self, source), begin, max_new_tokens=longest, eos=EOS, pad=PAD, **search
            )


class _Continuing:
    """A model with its sources, as `generate` steps through it."""

    def __init__(self, model: Seq2Seq, source: Tensor) -> None:
        self.model, self.source = model, source

    def start(self, tokens: Tensor) -> tuple[Tensor, DecodingState]:
        logits, state = self.model.step(tokens, self.model.init_state(self.source))
        return logits[:, -1], state

    def advance(self, tokens: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        logits, state = self.model.step(tokens.unsqueeze(1), state)
        return logits[:, -1], state


def teacher_forcing(target: Tensor) -> tuple[Tensor, Tensor]:
    """target [B, N], PAD on the right -> target_in and labels, [B, N + 1] each.

    ``a b c`` becomes ``BOS a b c`` and ``a b c EOS``.
    """
    column = torch.full_like(target[:, :1], BOS)
    labels = torch.cat([target, torch.full_like(column, PAD)], 1)
    labels.scatter_(1, (target != PAD).sum(1, keepdim=True), EOS)
    return torch.cat([column, target], 1), labels


def token_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy of logits [B, N, V] over the places where labels [B, N] are not PAD."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=label_smoothing
    )


def _embedding(size: int, d_model: int, std: float) -> nn.Embedding:
    embed = nn.Embedding(size, d_model)
    nn.init.normal_(embed.weight, std=std)
    return embed


def _decoder(settings: EncoderSettings, **attention: Any) -> TransformerDecoder:
    """A decoder of the sizes in `settings`; attention: keywords of `TransformerDecoderLayer`."""
    layer = TransformerDecoderLayer(**layer_arguments(settings), **attention)
    return TransformerDecoder(
        layer, settings["num_layers"], last_norm(settings), same_weights=False
    )
