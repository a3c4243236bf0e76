"""What a cost measurement is asked to do: sizes, mask, number format, device and pass."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Pattern = Literal["noncausal_self", "causal_self", "noncausal_cross", "causal_cross"]
Pass = Literal["forward", "forward_backward"]
Dtype = Literal["float32", "bfloat16", "float16", "float64"]
Scope = Literal["core", "module"]

PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
PASSES: tuple[Pass, ...] = get_args(Pass)


@dataclass(frozen=True)
class Workload:
    """One point at which contestants are compared.

    length: queries N; key_length: keys M (equal to `length` when None).
    padding: share of every sample's keys that is right padding and masked, in [0, 1).
    scope: ``core`` is attention on heads already split, ``module`` adds the four projections.
    threads: intra-operation CPU threads; None means every core of the machine.
    """

    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    length: int = 1024
    key_length: int | None = None
    pattern: Pattern = "noncausal_self"
    padding: float = 0.0
    dtype: Dtype = "float32"
    device: str = "cpu"
    threads: int | None = None
    pass_: Pass = "forward"
    scope: Scope = "core"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "head_dim", "length"):
            _require_count(name, getattr(self, name))
        for name in ("key_length", "threads"):
            if getattr(self, name) is not None:
                _require_count(name, getattr(self, name))
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"workload.{name.rstrip('_')}={getattr(self, name)!r} is not one of "
                    f"{', '.join(allowed)}"
                )
        if not 0.0 <= self.padding < 1.0:
            raise ValueError(f"workload.padding={self.padding!r} must lie in [0, 1)")
        if "self" in self.pattern and self.key_length not in (None, self.length):
            raise ValueError(
                f"workload.key_length={self.key_length} differs from length={self.length}, "
                f"which needs a cross pattern, not {self.pattern}"
            )

    @property
    def keys(self) -> int:
        """Number of keys M."""
        return self.length if self.key_length is None else self.key_length

    @property
    def causal(self) -> bool:
        return self.pattern.startswith("causal")

    @property
    def cross(self) -> bool:
        return self.pattern.endswith("cross")

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names the configuration uses (``pass``, not ``pass_``)."""
        return {name.rstrip("_"): value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Workload:
        known = {field.name.rstrip("_"): field.name for field in fields(cls)}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(
                f"unknown workload field(s) {', '.join(unknown)}; allowed: {', '.join(known)}"
            )
        return cls(**{known[name]: value for name, value in values.items()})


_CHOICES: dict[str, tuple[str, ...]] = {
    "pattern": PATTERNS,
    "pass_": PASSES,
    "dtype": get_args(Dtype),
    "scope": get_args(Scope),
}


def _require_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"workload.{name}={value!r} must be a whole number of at least 1")
