"""What a workload that was not measured costs: a closed formula, fitted on what was.

A size is B samples, H heads of d numbers, N queries, M keys, a knob K (below) and a share p of
padded keys. A `CostModel` is one contestant with all else fixed (pattern, pass, dtype, machine,
...) and one quantity: ms of one pass, or peak bytes. It is nine weights w, two corrections c
(``own``, ``common``: n measured points with a coefficient α each, and ``scale`` ℓ, ``noise`` ν,
``spread`` τ) and two numbers (``quantile`` q, ``pair_quantile`` r).

The formula, which a page may evaluate as well as this module; G = B·H, S = N + M:

    physics(x)     Σ_t w_t φ_t(x), over the terms φ of `TERMS`, by name:
                     1  GSKd  GSd  GSK  GS  G  BSE2 = B·S·(H·d)²  GNMd  GNM
    coordinates u  log2 G, log2 N, log2 (M/N), log2 d, log2 K, 4·p; ``common`` leaves out K
    g_a(x, i)      exp(−½ ((u_a(x) − u_a(i))/ℓ)²)                    axis a, measured point i
    kernel(x, i)   ½·mean_a g_a + ½·Π_a g_a
    c(x)           Σ_i α_i kernel(x, i)
    value          physics(x) · exp(c_own(x) + c_common(x))
    δ              1 − max_i Π_a g_a(x, i)                           0 at a measured point
    v              ν² + τ²·δ                                         of each correction
    octaves o      Σ_a distance of u_a(x) outside [low_a, high_a], the measured range
    width s        √v_own · (1 + o/2), and S = √(v_own + v_common) · (1 + o/2)
    low, high      value · exp(−q·S), value · exp(+q·S)
    ratio          value₁/value₂ of two rivals, between · exp(−t) and · exp(+t), t = r·√(s₁² + s₂²)
    kind           "interpolated" where o = 0, else "extrapolated"

In words: nonnegative least squares on relative error over products of sizes, and two smooth
corrections (kriging of the log residuals, half of each a sum over axes) that carry what no product
tells: caches, tiles, threads. What the rivals of one cell have in common is mostly how fast the
machine was just then: it is taken out before the weights and the own correction of each are found,
and comes back smoothed, as the common one. So ratios are free of drift, and the range of a time has
the drift in it.

The range covers 95 % of what was held out: each point is predicted by models fitted without its
fold of cells (ten folds, or each on its own), its log error divided by its own width, and q is the
95 % quantile of the sizes of those, with the correction of split conformal prediction (Lei et al.
2018, "Distribution-Free Predictive Inference for Regression", section 2), pooled over the rivals:
all models of one pattern class, pass, dtype and machine. Points outside the range of the other
folds do not count. r is the same quantile of how far two rivals' errors lie apart in one cell, over
√(s₁² + s₂²).

The terms GNMd and GNM are taken only where the fit without them is worse than 1.6 times the
measured noise, than twice the fit with them, and than 4 %, by which tiles and padding bend a line:
what looks linear stays so at a million tokens.
BSE2 stands for the projections of a module or block, and is no term of the core. Beyond
`LONGEST` tokens there is no prediction.

`cost_fit` finds the numbers. K is `knobs.scored`: how many keys, tokens, features or rows one
query is scored against; 1 where a variant has no such option.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

LONGEST = 2**20

AXES = ("batch × heads", "length", "keys per query", "head_dim", "knob", "padding")


@dataclass(frozen=True)
class Size:
    """What the cost of one contestant depends on; knob: K, as `knobs.scored` tells it."""

    length: int
    keys: int
    batch: int
    heads: int
    head_dim: int
    knob: float = 1.0
    padding: float = 0.0

    @property
    def coordinates(self) -> tuple[float, ...]:
        return (
            math.log2(self.batch * self.heads),
            math.log2(self.length),
            math.log2(self.keys / self.length),
            math.log2(self.head_dim),
            math.log2(self.knob),
            4 * self.padding,
        )


TERMS: dict[str, Callable[[Size], float]] = {
    "1": lambda x: 1.0,
    "GSKd": lambda x: _tokens(x) * x.knob * x.head_dim,
    "GSd": lambda x: _tokens(x) * x.head_dim,
    "GSK": lambda x: _tokens(x) * x.knob,
    "GS": lambda x: _tokens(x),
    "G": lambda x: float(x.batch * x.heads),
    "BSE2": lambda x: x.batch * (x.length + x.keys) * (x.heads * x.head_dim) ** 2.0,
    "GNMd": lambda x: _pairs(x) * x.head_dim,
    "GNM": lambda x: _pairs(x),
}
"""Products of sizes, the most telling of those that one curve over lengths cannot tell apart first:
the solver takes the first."""

QUADRATIC = ("GNMd", "GNM")
WITH_KNOB = ("GSKd", "GSK")
PROJECTIONS = "BSE2"


def _tokens(x: Size) -> float:
    return float(x.batch * x.heads) * (x.length + x.keys)


def _pairs(x: Size) -> float:
    return float(x.batch * x.heads) * x.length * x.keys


@dataclass(frozen=True)
class Predicted:
    """A value that was not measured, with its range and kind of evidence.

    width: S of the formula; pair_width: r·s, so that t of a ratio is √(r²s₁² + r²s₂²).
    outside: the axes on which the size lies beyond what was measured; empty for ``interpolated``.
    """

    value: float
    low: float
    high: float
    width: float
    pair_width: float
    kind: str
    outside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Correction:
    """A smooth factor exp(c) on the physics: coordinates of measured points, with one coefficient
    of `alphas` each, and ℓ, ν, τ of the formula."""

    points: tuple[tuple[float, ...], ...] = ()
    alphas: tuple[float, ...] = ()
    scale: float = 1.0
    noise: float = 0.0
    spread: float = 0.0

    def at(self, u: np.ndarray) -> tuple[float, float]:
        """c and v of the formula at coordinates u."""
        if not self.points:
            return 0.0, 0.0
        kernel, product = kernels(u[None], np.asarray(self.points), self.scale)
        variance = self.noise**2 + self.spread**2 * (1.0 - float(product.max()))
        return float(kernel[0] @ np.asarray(self.alphas)), variance

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Correction:
        points = tuple(tuple(point) for point in values["points"])
        return cls(**{**values, "points": points, "alphas": tuple(values["alphas"])})


@dataclass(frozen=True)
class CostModel:
    """The formula of the module's docstring with its numbers; plain data.

    weights: by name of the term, those above 0. low, high: measured range of each coordinate.
    error: root mean square of the held-out log errors.
    """

    weights: dict[str, float]
    own: Correction
    common: Correction
    quantile: float
    pair_quantile: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    error: float

    def at(self, size: Size) -> Predicted:
        """Value and range at a size; ValueError beyond `LONGEST` queries or keys."""
        if max(size.length, size.keys) > LONGEST:
            raise ValueError(
                f"length={max(size.length, size.keys)} lies beyond {LONGEST} tokens, up to which "
                "costs are predicted: measure it"
            )
        u = np.asarray(size.coordinates)
        own, own_variance = self.own.at(u)
        common, common_variance = self.common.at(without_knob(u))
        physics = sum(weight * TERMS[name](size) for name, weight in self.weights.items())
        value = physics * math.exp(own + common)
        beyond = np.maximum(np.asarray(self.low) - u, u - np.asarray(self.high)).clip(min=0.0)
        beyond[beyond < 1e-9] = 0.0
        doubt = 1.0 + float(beyond.sum()) / 2
        width = math.sqrt(own_variance + common_variance) * doubt
        h = self.quantile * width
        outside = tuple(name for name, far in zip(AXES, beyond, strict=True) if far > 0)
        return Predicted(
            value=value,
            low=value * math.exp(-h),
            high=value * math.exp(h),
            width=width,
            pair_width=self.pair_quantile * math.sqrt(own_variance) * doubt,
            kind="extrapolated" if outside else "interpolated",
            outside=outside,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data fit for JSON; `from_dict` makes the same model of it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CostModel:
        ranges = {name: tuple(values[name]) for name in ("low", "high")}
        parts = {name: Correction.from_dict(values[name]) for name in ("own", "common")}
        return cls(**{**values, **ranges, **parts, "weights": dict(values["weights"])})

    def __str__(self) -> str:
        terms = " + ".join(self.weights) or "nothing"
        return (
            f"cost model {terms} of {len(self.own.points)} sizes, "
            f"N {2 ** self.low[1]:.0f}…{2 ** self.high[1]:.0f}, held-out error {self.error:.1%}"
        )


def without_knob(u: np.ndarray) -> np.ndarray:
    """Coordinates [..., axes] of the common correction."""
    return np.delete(u, AXES.index("knob"), axis=-1)


def kernels(one: np.ndarray, other: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The kernel and its product part, [points of one, points of other]."""
    near = np.exp(-0.5 * ((one[:, None] - other[None]) / scale) ** 2)
    product = near.prod(axis=2)
    return 0.5 * near.mean(axis=2) + 0.5 * product, product
