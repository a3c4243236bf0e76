"""Two inputs, one encoder: do they belong together?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efficient_attn.attention.errors import require_int
from efficient_attn.nn.models import SequenceClassifier
from efficient_attn.nn.saving import Saved
from efficient_attn.nn.settings import EncoderSettings, completed

if TYPE_CHECKING:
    from typing_extensions import Unpack


class DualEncoder(Saved):
    """Both inputs through the same encoder, each to one vector; a small network compares them.

    Source: Tay et al., "Long Range Arena" (2021), section 2.2, retrieval: documents are compressed
    apart, no token of one sees the other, and the classifier reads [u, v, u·v, u − v].

    num_classes: number of labels of a pair. max_len, vocab_size, in_features and further settings:
    those of the encoder, a `SequenceClassifier` whose "classes" are the `dim` (d_model when None)
    numbers of a vector.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        max_len: int,
        dim: int | None = None,
        vocab_size: int | None = None,
        in_features: int | None = None,
        **settings: Unpack[EncoderSettings],
    ) -> None:
        super().__init__()
        dim = completed(settings)["d_model"] if dim is None else dim
        require_int("dim", dim, low=1)
        require_int("num_classes", num_classes, low=1)
        self.encoder = SequenceClassifier(
            dim, max_len=max_len, vocab_size=vocab_size, in_features=in_features, **settings
        )
        self.compare = nn.Sequential(
            nn.Linear(4 * dim, dim), nn.ReLU(), nn.Linear(dim, num_classes)
        )

    def encode(self, inputs: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Tokens [B, N] or features [B, N, F], padding [B, N] (True = ignore) to [B, dim]."""
        vectors: Tensor = self.encoder(inputs, key_padding_mask)
        return vectors

    def forward(
        self,
        first: Tensor,
        second: Tensor,
        first_key_padding_mask: Tensor | None = None,
        second_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Two inputs as in `encode`, of lengths of their own, to [B, num_classes]."""
        u = self.encode(first, first_key_padding_mask)
        v = self.encode(second, second_key_padding_mask)
        return self.compare(torch.cat([u, v, u * v, u - v], -1))

    @staticmethod
    def scores(queries: Tensor, documents: Tensor) -> Tensor:
        """Cosines [B, C] of vectors [B, dim] and [C, dim] from `encode`, for ranking C documents
        and for training against the other documents of a batch."""
        return F.normalize(queries, dim=-1) @ F.normalize(documents, dim=-1).T
