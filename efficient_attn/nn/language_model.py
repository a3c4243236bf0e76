"""A language model with any causal variant, trained in parallel and read token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from efficient_attn.attention.errors import require_choice, require_int
from efficient_attn.nn.choice import require_causal
from efficient_attn.nn.generation import Generated, generate
from efficient_attn.nn.mode import evaluating
from efficient_attn.nn.prompts import Prompts, as_rows
from efficient_attn.nn.saving import Saved
from efficient_attn.nn.settings import EncoderSettings, completed, initialise
from efficient_attn.nn.state import DecodingState
from efficient_attn.nn.trunk import Trunk

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LanguageModel(Saved):
    """Logits of the next token at every position: causal encoder and linear.

    max_len: longest sequence, where positions are learned. tied_embeddings: the output layer has
    the weights of the embedding, which is multiplied by √d_model where it is read (Vaswani et al.
    2017, section 3.4). settings: see `EncoderSettings`.

    Raises UnsupportedAttention, when it is built, for a variant that cannot be causal.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        max_len: int,
        tied_embeddings: bool = False,
        **settings: Unpack[EncoderSettings],
    ) -> None:
        settings = completed(settings)
        require_int("vocab_size", vocab_size, low=1)
        require_choice("tied_embeddings", tied_embeddings, [True, False])
        require_causal(settings["variant"])
        super().__init__()
        d_model = settings["d_model"]
        self.embed = nn.Embedding(vocab_size, d_model)
        initialise(self.embed, settings)
        self.trunk = Trunk(max_len, **settings)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        self.embed_scale = 1.0
        if tied_embeddings:
            self.embed_scale = d_model**0.5
            self.head.weight = self.embed.weight
            nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Token numbers [B, N], padding [B, N] (True = ignore) to logits [B, N, vocab_size]."""
        return self.head(self.trunk(self._embed(tokens), key_padding_mask, is_causal=True))

    def init_state(self, batch: int) -> DecodingState:
        """State for `step` before the first token of `batch` sequences."""
        return self.trunk.init_state(batch)

    def step(self, tokens: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """The next n tokens [B, n] to logits [B, n, vocab_size] and new state.

        In eval the logits equal those of `forward`, however a sequence is split into steps.
        """
        features, state = self.trunk.step(self._embed(tokens), state)
        return self.head(features), state

    def start(self, tokens: Tensor) -> tuple[Tensor, DecodingState]:
        """The first tokens [B, n] -> logits [B, vocab_size] of the next one, state."""
        return self._next(tokens, self.init_state(len(tokens)))

    def advance(self, tokens: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """One more token of each, [B] -> logits [B, vocab_size] of the next one, state."""
        return self._next(tokens.unsqueeze(1), state)

    def generate(self, prompts: Prompts, *, max_new_tokens: int, **options: Any) -> Generated:
        """Continue prompts over cached states, in eval mode.

        prompts, options and errors: see `efficient_attn.nn.generate`. ValueError, before anything
        is generated, where learned positions do not reach.
        """
        require_int("max_new_tokens", max_new_tokens, low=1)
        rows = as_rows(prompts, self.head.weight.device)
        self.trunk.require_length(max(map(len, rows)) + max_new_tokens - 1)  # the last is not read
        with evaluating(self):
            return generate(
                self,
                rows,
                max_new_tokens=max_new_tokens,
                vocab_size=self.head.out_features,
                **options,
            )

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) * self.embed_scale

    def _next(self, tokens: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        features, state = self.trunk.step(self._embed(tokens), state)
        return self.head(features[:, -1]), state
