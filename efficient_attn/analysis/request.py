"""The workload a person describes, with what it must keep to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from efficient_attn.analysis.select import PASS_NAMES, PATTERN_NAMES
from efficient_attn.bench.workload import Dtype, Pass, Pattern, Scope, Workload

CAPABILITIES = ("recall", "locality", "hierarchy", "2d", "alignment")
"""What of attention a task may ask for, as `efficient_attn.tasks` has it."""

TOLERANCE = 0.95


@dataclass(frozen=True)
class Request:
    """A described workload with its hard limits.

    length: queries N; key_length: keys M, equal to `length` when None (differs only for cross).
    padding: share of right padding in [0, 1). pass_, compile: as in `Workload`.
    threads, scope, machine: None takes whatever was measured, never mixed, and says which.
    memory_gb: limit on peak memory above the inputs, in GiB (2^30 bytes); time_ms: limit on the
        median time of one pass; None for no limit. need_weights: only variants that can return
        attention weights. exact_only: only what is softmax attention by definition.
    needs: weight of each capability that matters (`CAPABILITIES`); tolerance: share of full's lead
        that must be kept, see `kept`.
    lengths: (length, count) of each length that occurs, when it is not always the same; times are
        then means over them and memory that of the largest. `length` must be the longest.

    ValueError names the field that is out of range.
    """

    length: int
    pattern: Pattern = "noncausal_self"
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    key_length: int | None = None
    padding: float = 0.0
    dtype: Dtype = "float32"
    device: str = "cpu"
    pass_: Pass = "forward"
    threads: int | None = None
    scope: Scope | None = None
    compile: bool = False
    machine: str | None = None
    memory_gb: float | None = None
    time_ms: float | None = None
    need_weights: bool = False
    exact_only: bool = False
    needs: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = TOLERANCE
    lengths: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        self.workload  # noqa: B018  its own checks are the checks of the fields they share
        for name in ("memory_gb", "time_ms"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(f"{name}={limit!r} must be greater than 0; leave it out for none")
        for name, weight in self.needs.items():
            if name not in CAPABILITIES:
                raise ValueError(f"needs {name!r}: not one of {', '.join(CAPABILITIES)}")
            if not weight > 0:
                raise ValueError(f"needs {name}={weight!r}: a weight must be greater than 0")
        if not 0 < self.tolerance <= 1:
            raise ValueError(f"tolerance={self.tolerance!r} must lie in (0, 1]")
        self._check_lengths()

    def _check_lengths(self) -> None:
        if not self.lengths:
            return
        if any(length < 1 or not count > 0 for length, count in self.lengths):
            raise ValueError("lengths: every length must be at least 1, its count more than 0")
        if max(length for length, _ in self.lengths) != self.length:
            raise ValueError(f"length={self.length} must be the longest of lengths")
        if self.key_length is not None:
            raise ValueError(
                f"key_length={self.key_length} with a distribution of lengths: leave it out"
            )

    @property
    def shares(self) -> tuple[tuple[int, float], ...]:
        """Lengths and how often each occurs, shares that add up to 1."""
        total = sum(count for _, count in self.lengths)
        return tuple((n, count / total) for n, count in self.lengths) or ((self.length, 1.0),)

    def at_length(self, length: int) -> Workload:
        """The workload of one of the lengths."""
        return replace(self.workload, length=length)

    @property
    def workload(self) -> Workload:
        return Workload(
            batch=self.batch,
            heads=self.heads,
            head_dim=self.head_dim,
            length=self.length,
            key_length=self.key_length,
            pattern=self.pattern,
            padding=self.padding,
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
            pass_=self.pass_,
            scope=self.scope or "core",
            compile=self.compile,
        )

    @property
    def keys(self) -> int:
        """Number of keys M."""
        return self.workload.keys

    def __str__(self) -> str:
        parts = [
            f"{PATTERN_NAMES[self.pattern]}, {PASS_NAMES[self.pass_]}",
            self._span() + ("" if self.keys == self.length else f", M={self.keys}"),
            f"batch {self.batch}, {self.heads} heads × {self.head_dim}",
            f"{self.dtype}, {self.device}",
        ]
        if self.padding:
            parts.append(f"{self.padding:.0%} padding")
        if self.memory_gb is not None:
            parts.append(f"at most {self.memory_gb:g} GiB")
        if self.time_ms is not None:
            parts.append(f"at most {self.time_ms:g} ms")
        if self.need_weights:
            parts.append("with attention weights")
        if self.exact_only:
            parts.append("softmax attention only")
        if self.needs:
            asked = ", ".join(f"{name} {weight:g}" for name, weight in self.needs.items())
            parts.append(f"at least {self.tolerance:.0%} of full's lead kept in {asked}")
        return "; ".join(parts)

    def _span(self) -> str:
        if not self.lengths:
            return f"N={self.length}"
        mean = sum(n * share for n, share in self.shares)
        least = min(n for n, _ in self.lengths)
        return f"N={least}…{self.length} (mean {mean:.0f}, {len(self.lengths)} lengths)"

    def to_dict(self) -> dict[str, Any]:
        return {item.name.rstrip("_"): getattr(self, item.name) for item in fields(self)}
