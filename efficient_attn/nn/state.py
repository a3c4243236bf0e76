"""What decoding carries from one step to the next: the states of layers and stacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class DecodingState:
    """States of the parts of a layer, or of the layers of a stack; the first one counts tokens."""

    parts: tuple[Any, ...]

    @property
    def position(self) -> int:
        """Tokens so far."""
        return self.parts[0].position

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def select(self, index: Tensor) -> DecodingState:
        """The state of the samples index [B'], which may repeat, leave out and reorder them."""
        return DecodingState(tuple(part.select(index) for part in self.parts))
