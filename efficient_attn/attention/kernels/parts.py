"""Which blocks of queries see which keys: strided views of a sequence, or rows picked by index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

GATHERED = 2 * 2**20
"""Bytes of rows that are gathered at once: more would leave the cache."""

AnyPart = TypeVar("AnyPart", bound="Part")


@dataclass(frozen=True)
class Part:
    """Some blocks of equal shape: block b has the queries ``first + b·rows`` and on, `rows` of
    them, and sees the keys ``key + b·rows`` and on, `span` of them. Spans may overlap.

    mask: [1 or blocks, 1 or H, 1 or rows, span], added to the scores, −inf where a key is not
    seen; outer: it is zero but in the first and the last `rows` columns, and alike for all heads;
    slot: place of the block's first row and column in the bias of a window.

    x and its like are [h, N, D], for some of the heads.
    """

    blocks: int
    rows: int
    first: int
    span: int
    key: int
    mask: Tensor | None = None
    outer: bool = False
    slot: int = 0

    @property
    def own(self) -> bool:
        """Whether every block sees the keys of its own rows alone: a window."""
        return (self.key, self.span) == (self.first, self.rows)

    @property
    def block_size(self) -> int:
        """Scores of one block and head."""
        return self.rows * self.span

    def queries(self, x: Tensor) -> Tensor:
        """[blocks, h, rows, D]."""
        return _strided(x, self.first, self.blocks, self.rows, self.rows)

    def keys(self, x: Tensor) -> Tensor:
        """[blocks, h, span, D]."""
        return _strided(x, self.key, self.blocks, self.rows, self.span)

    def store(self, x: Tensor, values: Tensor) -> None:
        """Put values [blocks, h, rows, D] where `queries` reads."""
        self.queries(x).copy_(values)

    def gather(self, x: Tensor, out: Tensor) -> Tensor:
        """What `queries` reads, heads outside: copied into out [h, blocks, rows, D]."""
        return out.copy_(self.queries(x).transpose(0, 1))

    # For products in batches: heads outside, blocks inside, one of one head or all of one block.

    def heads_at_once(self, scores: int) -> int:
        """Heads that make a batch of at most so many scores."""
        return max(1, scores // self.block_size) if self.blocks == 1 else 1

    def query_batch(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """[h·blocks, rows, D], in dtype."""
        return self._batch(x, self.first, self.rows, dtype)

    def key_batch(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """[h·blocks, span, D], in dtype."""
        return self._batch(x, self.key, self.span, dtype)

    def _batch(self, x: Tensor, start: int, length: int, dtype: torch.dtype) -> Tensor:
        if self.blocks > 1:  # spans overlap: x has fewer rows than they
            x = x.to(dtype)
        return _strided(x, start, self.blocks, self.rows, length).flatten(0, 1).to(dtype)

    def add_to_queries(self, x: Tensor, left: Tensor, right: Tensor, factor: float) -> None:
        """Add factor·left·right to the queries, for left [h·blocks, rows, span]."""
        self.query_batch(x, x.dtype).baddbmm_(left, right, alpha=factor)

    def add_to_keys(self, x: Tensor, left: Tensor, right: Tensor, factor: float) -> None:
        """Add factor·leftᵀ·right to the keys, for left [h·blocks, rows, span]."""
        # Spans overlap; pieces of them as long as the blocks are apart do not.
        step = self.span if self.blocks == 1 else self.rows
        for start in range(0, self.span, step):
            length = min(step, self.span - start)
            piece = self._batch(x, self.key + start, length, x.dtype)
            piece.baddbmm_(left[..., start : start + length].mT, right, alpha=factor)

    def piece(self: AnyPart, start: int, count: int) -> AnyPart:
        """The blocks start ... start + count alone."""
        shift = start * self.rows
        return replace(
            self,
            blocks=count,
            first=self.first + shift,
            key=self.key + shift,
            mask=_rows_of(self.mask, start, count),
        )

    def split(self: AnyPart, most: int) -> Iterator[AnyPart]:
        """The same in pieces of at most so many blocks."""
        for start in range(0, self.blocks, most):
            yield self.piece(start, min(most, self.blocks - start))

    def added(self, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """Mask and bias [H, T, T] together, broadcastable to [blocks, H, rows, span]."""
        if bias is None:
            return None if self.mask is None else self.mask.to(dtype)
        square = bias[:, self.slot : self.slot + self.rows, self.slot : self.slot + self.span]
        return square.to(dtype)[None] if self.mask is None else square.to(dtype) + self.mask


@dataclass(frozen=True)
class IndexedPart(Part):
    """Windows of tokens that stand apart: `index` [blocks, rows] names the token of each row.

    real: [blocks, rows], False where a window has a row too many; such rows see nothing and are
    seen by none (`mask`), whatever token they name. None = all are real.
    """

    index: Tensor | None = None
    real: Tensor | None = None

    def queries(self, x: Tensor) -> Tensor:
        assert self.index is not None
        rows = x.transpose(0, 1).index_select(0, self.index.flatten())
        return rows.unflatten(0, (self.blocks, self.rows)).transpose(1, 2)

    def keys(self, x: Tensor) -> Tensor:
        return self.queries(x)

    def store(self, x: Tensor, values: Tensor) -> None:
        rows = values.transpose(1, 2).reshape(-1, values.shape[1], values.shape[3]).to(x.dtype)
        index, rows = self._of_tokens(rows)
        x.transpose(0, 1).index_copy_(0, index, rows)

    def gather(self, x: Tensor, out: Tensor) -> Tensor:
        assert self.index is not None
        flat = out.view(len(x), -1, x.shape[2])
        torch.index_select(x, 1, self.index.flatten(), out=flat)
        return out

    def _of_tokens(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens, each once, and their rows of [blocks·rows, ...]."""
        assert self.index is not None
        if self.real is None:
            return self.index.flatten(), rows
        return self.index[self.real], rows[self.real.flatten()]

    def piece(self, start: int, count: int) -> IndexedPart:
        part = super().piece(start, count)
        index, real = (_rows_of(x, start, count) for x in (self.index, self.real))
        return replace(part, index=index, real=real)


def _strided(x: Tensor, start: int, blocks: int, step: int, length: int) -> Tensor:
    """View [blocks, h, length, D] of x [h, N, D]: every `step` rows from `start` on."""
    h, _, D = x.shape
    per_head, per_row, _ = x.stride()
    return x.as_strided(
        (blocks, h, length, D),
        (step * per_row, per_head, per_row, 1),
        x.storage_offset() + start * per_row,
    )


def _rows_of(x: Tensor | None, start: int, count: int) -> Tensor | None:
    """start ... start + count of what may be one for all."""
    return x if x is None or len(x) == 1 else x[start : start + count]
