"""Pathfinder: do the two marked ends lie on one dashed path?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

from efficient_attn.tasks.images import ImageTask
from efficient_attn.tasks.pathfinder_files import read_published
from efficient_attn.tasks.pathfinder_pool import Pool, cut, linear_accuracy, pair_up
from efficient_attn.tasks.task import Batch, generator, require_count

DASH, MARK = 1, 2
"""Levels of a pixel of a dash and of a marked end; 0 is empty."""
DIRECTIONS = np.array([[0, 1, 1, 1, 0, -1, -1, -1], [1, 1, 0, -1, -1, -1, 0, 1]], np.int16)
"""Steps down and right to the eight neighbours, each 45° from the one before."""
TRIES = 12
"""Walks that are drawn for a place on each image; the first that fits is taken."""
ROUND = 8192
"""Images that are drawn at a time."""
LEAST_YIELD = 1 / 500
"""Share of drawn images that must be of use, or the image is called too small."""


@dataclass(frozen=True)
class Pathfinder(ImageTask):
    """Two ends are marked: of one path, or of two that do not touch. Which of the two is it?

    Source: Linsley et al., "Learning long-range spatial dependencies with horizontal gated
    recurrent units" (2018); Tay et al., "Long Range Arena" (2021), section 2.2.5. With side=12,
    dashes=2 and distractor_dashes=1, label 0 to the left and 1 to the right (. empty, O marked)::

        . . . . . . . . . . . .      . . . . # . . . . . . .
        . . . . . . . . . . . .      . . . # . . . . . . . .
        . # . . . . O # . . . .      . . . . . . . . . . . .
        # . . . . . . . . . . .      . # . . . . . . . . . .
        . . . . . . . . . # . .      . # . . . . . . . . O .
        . . . . . . . . . . # .      . . . . . . . . . # . .
        . . . . O # . . . . . .      . . . . . . O # . . . .
        . . . . . . . . . . . .      . . . . . . . . . . . .
        . . . . . . . # # . . .      . . . . . . . . . . . .
        . . . . . . . . . . . .      . . . . . . . . # . . .
        . . . . . . . . . . . .      . . . . . . . # . . . .
        . . . . . . . . . . . .      . . . . . . . . . . . .

    Every image has two paths of one length and `distractors` shorter ones, and the marks stand at
    an end each of the two, or at both ends of one; with marker=0 as many pixels are lit in each.
    As many images have label 1 as 0, in every split, and for every pair of places of the marks
    (pixels, or squares of side/16 where that is more; up to rotations and reflections). What is lit
    of one path is farther than `gap` + 1, in rows or in columns, from all others: whoever joins
    what is at most that far apart is right.

    side: of the image. dashes: of `dash` pixels, `gap` apart, in each of the two paths;
    distractor_dashes: in each distractor. turning: probability that a path turns by 45° at a step.
    marker: radius of a mark in pixels; 0: the end alone.
    train, evaluation: images to train, and in each of validation and test; the same for all seeds.
    patch_size: pixels of a token along either side, 1 in the Long Range Arena.
    grid_told: False: the pixels are a sequence of levels, and where they stood is not told.
    folder: of published images instead (imgs/ and metadata/, as curv_contour_length_14/ in the Long
        Range Arena's pathfinder32): grey, of `side` pixels, 80 % to train and 10 % in each of
        validation and test. All fields but side, patch_size and grid_told are the generator's.
    """

    name: ClassVar[str] = "pathfinder"
    classes: ClassVar[int] = 2

    side: int = 16
    dashes: int = 3
    dash: int = 2
    gap: int = 1
    distractors: int = 1
    distractor_dashes: int = 2
    turning: float = 0.3
    marker: int = 0
    train: int = 20000
    evaluation: int = 1000
    patch_size: int = 1
    grid_told: bool = True
    folder: str | None = None

    def __post_init__(self) -> None:
        self.require_whole_tokens()
        for name in ("dashes", "dash", "distractor_dashes", "train", "evaluation"):
            require_count(f"pathfinder.{name}", getattr(self, name))
        for name in ("gap", "distractors", "marker"):
            require_count(f"pathfinder.{name}", getattr(self, name), low=0)
        if not 0 <= self.turning <= 1:
            raise ValueError(f"pathfinder.turning={self.turning!r} must lie in [0, 1]")
        for name in ("train", "evaluation"):
            if getattr(self, name) % 2:
                raise ValueError(
                    f"pathfinder.{name}={getattr(self, name)} must be even: half of each label"
                )

    @property
    def levels(self) -> int:  # type: ignore[override]
        return 3 if self.folder is None else 256

    def samples(self, split: str) -> Batch:
        pool = self._pool(split)
        return torch.from_numpy(pool.images), torch.from_numpy(pool.labels)

    def baselines(self) -> dict[str, float]:
        """Linear in the levels of all pixels; of drawn images also in lit pixels and distance."""
        train, test = self._pool("train"), self._pool("test")
        found = {
            **super().baselines(),
            "linear_in_pixels": linear_accuracy(train, test, Pool.pixels),
        }
        if self.folder is None:
            found["linear_in_lit_pixels_and_distance"] = linear_accuracy(
                train, test, Pool.statistics
            )
        return found

    def provenance(self) -> dict[str, Any]:
        """Of published images: how many there are, how many left out as empty, and a hash."""
        if self.folder is None:
            return {}
        published = read_published(self.folder, self.side)
        return {
            "images": len(published.labels),
            "left_out": published.left_out,
            "sha256": published.sha256,
        }

    def draw(self, draw: np.random.Generator, count: int) -> Pool:
        """Those of `count` images on which all paths found a place; not balanced yet."""
        lengths = [self._pixels(self.dashes)] * 2
        lengths += [self._pixels(self.distractor_dashes)] * self.distractors
        images = np.zeros((count, self.side, self.side), np.uint8)
        taken = np.zeros(images.shape, bool)
        ends = np.empty((count, 0, 2), np.int64)
        for number, length in enumerate(lengths):
            radius = self.marker if number < 2 else 0
            walks, fits = self._walks(draw, taken, length, radius)
            images, taken, ends, walks = images[fits], taken[fits], ends[fits], walks[fits]
            lit = np.arange(length) % (self.dash + self.gap) < self.dash
            np.put_along_axis(images.reshape(-1, self.side**2), walks[:, lit], DASH, axis=1)
            own = walks[:, [0, -1]]
            for pixels, reach in ((walks, self.gap + 1), (own, self.gap + 1 + radius)):
                mask = np.zeros(images.shape, bool)
                np.put_along_axis(mask.reshape(-1, self.side**2), pixels, True, axis=1)
                taken = taken | _widened(mask, reach)
            ends = np.concatenate([ends, own[:, None]], axis=1)
        labels = np.arange(len(images)) % 2
        first, second = draw.integers(0, 2, (2, len(images)))
        rows = np.arange(len(images))
        one = np.where(labels == 1, ends[rows, first, 0], ends[rows, 0, first])
        other = np.where(labels == 1, ends[rows, first, 1], ends[rows, 1, second])
        marks = np.stack(np.divmod(np.stack([one, other], axis=1), self.side), axis=-1)
        around = np.arange(-self.marker, self.marker + 1)
        for down in around:
            for right in around:
                if down**2 + right**2 <= (self.marker + 0.5) ** 2:
                    images[rows[:, None], marks[..., 0] + down, marks[..., 1] + right] = MARK
        return Pool(images, labels, marks)

    def _pixels(self, dashes: int) -> int:
        return dashes * self.dash + (dashes - 1) * self.gap

    def _walks(
        self, draw: np.random.Generator, taken: np.ndarray, length: int, radius: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """For each image a walk that does not meet itself or what is taken, and whether it has one.

        taken: [count, side, side]; discs of `radius` around the ends stay clear of it as well.
        Returns pixels in row-major order [count, length], [count].
        """
        count, rows = len(taken), np.arange(len(taken))
        chance = draw.random((count, TRIES, length - 1), dtype=np.float32)
        turns = (chance < self.turning / 2).astype(np.int8) - (chance >= 1 - self.turning / 2)
        headings = draw.integers(0, 8, (count, TRIES, 1)) + turns.cumsum(2)
        places = np.zeros((2, count, TRIES, length), np.int16)
        np.cumsum(DIRECTIONS[:, headings % 8], axis=3, out=places[..., 1:])
        places -= places.min(3, keepdims=True)
        room = self.side - 2 * self.marker - places.max(3, keepdims=True)
        places += self.marker + (draw.random(room.shape) * room).astype(np.int16)
        fits = (room > 0).all((0, 3))
        pixels = np.where(fits[..., None], places[0] * self.side + places[1], 0)
        for part, mask in ((pixels, taken), (pixels[..., [0, -1]], _widened(taken, radius))):
            fits &= ~mask.reshape(count, self.side**2)[rows[:, None, None], part].any(2)
        fits &= (np.diff(np.sort(pixels)) > 0).all(2)
        chosen = fits.argmax(1)
        return pixels[rows, chosen], fits.any(1)

    def _pool(self, split: str) -> Pool:
        pools = _drawn(self) if self.folder is None else _read(self.folder, self.side)
        return pools[split]


def _widened(mask: np.ndarray, reach: int) -> np.ndarray:
    """[count, rows, columns]: what lies within `reach` rows and columns of the mask."""
    for axis in (1, 2):
        wide = np.moveaxis(mask.copy(), axis, 0)
        narrow = np.moveaxis(mask, axis, 0)
        for shift in range(1, min(reach, len(wide) - 1) + 1):
            wide[shift:] |= narrow[:-shift]
            wide[:-shift] |= narrow[shift:]
        mask = np.moveaxis(wide, 0, axis)
    return mask


@lru_cache(maxsize=4)
def _drawn(task: Pathfinder) -> dict[str, Pool]:
    """Images by split, in pairs of the same places of the marks, one of each label."""
    sizes = {"train": task.train, "validation": task.evaluation, "test": task.evaluation}
    wanted = sum(sizes.values()) // 2
    draw = generator("pathfinder", 0)
    rounds: list[Pool] = []
    places: list[np.ndarray] = []
    pairs = np.empty((0, 2), np.int64)
    while len(pairs) < wanted:
        rounds.append(task.draw(draw, ROUND))
        places.append(rounds[-1].places())
        labels = np.concatenate([pool.labels for pool in rounds])
        pairs = pair_up(labels, np.concatenate(places))
        if len(pairs) < LEAST_YIELD * ROUND * len(rounds):
            raise ValueError(
                f"pathfinder.side={task.side} has hardly any room for two paths of {task.dashes} "
                f"dashes and {task.distractors} distractors of {task.distractor_dashes}: raise "
                "side, or lower dashes, dash, gap, distractors, distractor_dashes or marker"
            )
    rows = draw.permutation(pairs)[:wanted].reshape(-1)
    everything = Pool(
        np.concatenate([pool.images for pool in rounds]),
        labels,
        np.concatenate([pool.marks for pool in rounds if pool.marks is not None]),
    )
    return cut(everything[rows], sizes)


@lru_cache(maxsize=4)
def _read(folder: str, side: int) -> dict[str, Pool]:
    published = read_published(folder, side)
    pool = Pool(published.images, published.labels)
    count = len(pool.labels)
    if count < 10:
        raise ValueError(
            f"pathfinder.folder={folder} holds {count} images; at least 10 are needed, of which "
            "one in ten is for validation and one for test"
        )
    held = count // 10
    rows = generator("pathfinder files", 0).permutation(count)
    return cut(pool[rows], {"validation": held, "test": held, "train": count - 2 * held})
