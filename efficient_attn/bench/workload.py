"""What a cost measurement is asked to do: sizes, mask, number format, device and pass."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, Literal, get_args

Pattern = Literal["noncausal_self", "causal_self", "noncausal_cross", "causal_cross"]
Pass = Literal["forward", "forward_backward", "train_step", "prefill", "decode"]
Dtype = Literal["float32", "bfloat16", "float16", "float64"]
Scope = Literal["core", "module", "block"]

PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
PASSES: tuple[Pass, ...] = get_args(Pass)


@dataclass(frozen=True)
class Workload:
    """One point at which contestants are compared.

    length: queries N; key_length: keys M (equal to `length` when None).
    padding: share of every sample's keys that is right padding and masked, in [0, 1).
    pass_: ``forward`` (inference); ``forward_backward``; ``train_step``, which adds clearing the
        gradients and a step of AdamW; ``prefill``, `length` tokens at once into an empty state;
        ``decode``, one token more after `length` tokens.
    scope: ``core`` is attention on heads already split, ``module`` adds the four projections,
        ``block`` is a whole encoder layer (norms, residuals, feed-forward of four times the width).
    compile: through ``torch.compile``; the time that takes is kept apart.
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
    compile: bool = False
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

    @property
    def contradiction(self) -> str | None:
        """Why no variant can be asked this, None when all is well.

        Grids that cross patterns, passes and scopes contain such points: they are answered with
        this sentence instead of a measurement.
        """
        decoding = self.pass_ in ("prefill", "decode")
        if not self.cross and self.keys != self.length:
            return (
                f"key_length={self.keys} beside length={self.length} needs a cross pattern, "
                f"not {self.pattern}"
            )
        if decoding and self.pattern != "causal_self":
            return f"pass={self.pass_} is causal self-attention, not {self.pattern}"
        if decoding and self.padding:
            return f"pass={self.pass_} has no padding: its sequences are of one length"
        if self.pass_ == "train_step" and self.scope == "core":
            return "pass=train_step needs parameters to step: measure scope=module or scope=block"
        if self.scope == "block" and self.cross:
            return "scope=block is an encoder layer, which has no cross-attention"
        if self.scope == "block" and decoding:
            return f"scope=block has no {self.pass_}: measure scope=core or scope=module"
        return None

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

    @property
    def backward(self) -> bool:
        return self.pass_ in ("forward_backward", "train_step")

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names the configuration uses (``pass``, not ``pass_``)."""
        return {name.rstrip("_"): value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Workload:
        # Folders of a hundred thousand records ask the same few thousand questions. The types
        # belong to the question: True is no 1 here.
        question = tuple((name, type(value), value) for name, value in values.items())
        try:
            return _parsed(question)
        except TypeError:  # a value that cannot be looked up, which is no workload's
            return _parsed.__wrapped__(question)


@lru_cache(maxsize=2**16)
def _parsed(question: tuple[tuple[str, type, Any], ...]) -> Workload:
    known = {field.name.rstrip("_"): field.name for field in fields(Workload)}
    unknown = sorted({name for name, _, _ in question} - set(known))
    if unknown:
        raise ValueError(
            f"unknown workload field(s) {', '.join(unknown)}; allowed: {', '.join(known)}"
        )
    return Workload(**{known[name]: value for name, _, value in question})


_CHOICES: dict[str, tuple[str, ...]] = {
    "pattern": PATTERNS,
    "pass_": PASSES,
    "dtype": get_args(Dtype),
    "scope": get_args(Scope),
}


def _require_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"workload.{name}={value!r} must be a whole number of at least 1")
