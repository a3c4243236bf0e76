"""Pathfinder's images with labels and marks: balanced, cut into parts, and told apart simply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

PLACES = 16
"""Places along a side for which labels are balanced; as many as pixels where there are fewer."""
FITTED = 20_000
"""Training samples that the linear baselines are fitted to, at most."""


@dataclass(frozen=True)
class Pool:
    """images: levels [count, side, side]; labels: [count]; marks: rows and columns of the marked
    ends [count, 2, 2], none where they are not known."""

    images: np.ndarray
    labels: np.ndarray
    marks: np.ndarray | None = None

    def __getitem__(self, rows: np.ndarray | slice) -> Pool:
        marks = None if self.marks is None else self.marks[rows]
        return Pool(self.images[rows], self.labels[rows], marks)

    def pixels(self) -> np.ndarray:
        return self.images.reshape(len(self.images), -1)

    def statistics(self) -> np.ndarray:
        """Number of lit pixels, and distance between the marks in pixels."""
        assert self.marks is not None
        apart = self.marks[:, 0] - self.marks[:, 1]
        return np.stack([(self.pixels() > 0).sum(1), (apart**2).sum(-1) ** 0.5], axis=1)

    def places(self) -> np.ndarray:
        """A number for each pair of places of the marks, [count]; places are squares of side/16.

        The same for what rotations and reflections of the image turn into one another.
        """
        assert self.marks is not None
        side = self.images.shape[1]
        square = max(1, side // PLACES)
        down, right = self.marks[..., 0], self.marks[..., 1]
        numbers = []
        for row, column in ((down, right), (right, down)):
            for r, c in product((row, side - 1 - row), (column, side - 1 - column)):
                low, high = np.sort(r // square * side + c // square, axis=1).T
                numbers.append(low * side**2 + high)
        return np.min(numbers, axis=0)


def pair_up(labels: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Rows of label 0 and of label 1 with the same key, [pairs, 2], no row twice."""
    numbered = []
    for label in (0, 1):
        rows = np.flatnonzero(labels == label)
        rows = rows[np.argsort(keys[rows], kind="stable")]
        own = keys[rows]
        rank = np.arange(len(rows)) - np.searchsorted(own, own)
        numbered.append((rows, own * len(labels) + rank))
    (rows, names), (others, other_names) = numbered
    _, first, second = np.intersect1d(names, other_names, return_indices=True)
    return np.stack([rows[first], others[second]], axis=1)


def cut(pool: Pool, sizes: dict[str, int]) -> dict[str, Pool]:
    parts, start = {}, 0
    for name, size in sizes.items():
        parts[name] = pool[start : start + size]
        start += size
    return parts


def linear_accuracy(train: Pool, test: Pool, features: Callable[[Pool], np.ndarray]) -> float:
    """Accuracy on `test` of least squares on features [count, F] and a constant, from `train`."""

    def matrix(pool: Pool) -> np.ndarray:
        found = features(pool).astype(np.float64)
        return np.column_stack([found, np.ones(len(found))])

    some = train[:FITTED]
    weights = np.linalg.lstsq(matrix(some), 2.0 * some.labels - 1, rcond=None)[0]
    return float(((matrix(test) @ weights > 0) == test.labels).mean())
