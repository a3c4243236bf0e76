"""What a probe yields, what is made of it, and the whole picture of one variant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from efficient_attn.attention.errors import UnsupportedAttention

Status = Literal["honoured", "refused", "violated", "holds", "skipped"]

TOLERANCE = 1e-5
"""Of the largest number compared: above the rounding of a variant that computes in fp32, far
below any leak that a token thirty times the usual causes."""


class Check(NamedTuple):
    """One comparison. case: the situation and what must hold there; error: how far off it is."""

    case: str
    error: float
    tolerance: float = TOLERANCE

    @property
    def fails(self) -> bool:
        return not self.error <= self.tolerance  # NaN fails as well


class Skip(Exception):  # noqa: N818  (no error: the question has no meaning for the variant)
    """Raised by a general probe that cannot be asked, with the reason."""


@dataclass(frozen=True)
class Finding:
    """What the probes of one question saw.

    status: honoured, refused (with `UnsupportedAttention`) or violated for a capability; holds,
    violated or skipped for a general property. evidence: one sentence; after a violation it tells
    the smallest failing case. error: the largest seen; None where nothing was compared.
    """

    status: Status
    evidence: str
    error: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: an error without a size is null."""
        error = self.error if self.error is not None and math.isfinite(self.error) else None
        return {"status": self.status, "evidence": self.evidence, "error": error}


@dataclass(frozen=True)
class Observation:
    """A variant as it behaves beside what it declares.

    declared: capability -> bool, of the variant with these options; observed: capability ->
    finding; general: property -> finding, for what every variant promises.
    """

    variant: str
    options: Mapping[str, Any]
    declared: Mapping[str, bool]
    observed: Mapping[str, Finding]
    general: Mapping[str, Finding]

    @property
    def differences(self) -> list[str]:
        """One line for each capability that is not as declared and each property that fails."""
        lines = []
        for name, finding in self.observed.items():
            expected = "honoured" if self.declared[name] else "refused"
            if finding.status != expected:
                word = "yes" if self.declared[name] else "no"
                lines.append(f"{name}: declared {word}, {finding.status}: {finding.evidence}")
        for name, finding in self.general.items():
            if finding.status == "violated":
                lines.append(f"{name}: violated: {finding.evidence}")
        return lines

    @property
    def agrees(self) -> bool:
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "options": dict(self.options),
            "declared": dict(self.declared),
            "observed": {name: finding.to_dict() for name, finding in self.observed.items()},
            "general": {name: finding.to_dict() for name, finding in self.general.items()},
            "differences": self.differences,
            "agrees": self.agrees,
        }


def judge(checks: Callable[[], Iterable[Check]], *, success: Status) -> Finding:
    """Take all checks of a probe; they come in order of size, so the first to fail is the smallest.

    A refusal counts as one only before anything was answered: a variant that honours a request in
    one case and refuses it in another has not declared which.
    """
    count, largest = 0, 0.0
    failed: Check | None = None
    try:
        for check in checks():
            count += 1
            if failed is None and check.fails:
                failed = check
            largest = max(largest, math.inf if math.isnan(check.error) else check.error)
    except Skip as reason:
        return Finding("skipped", str(reason))
    except UnsupportedAttention as refusal:
        if count == 0:
            return Finding("refused", str(refusal))
        if failed is None:
            return Finding("violated", f"refuses a part of what it honours: {refusal}")
    except Exception as error:  # whatever a stranger's code raises is the finding
        if failed is None:
            return Finding("violated", f"raises {type(error).__name__}: {error}", math.inf)
    if failed is not None:
        size = f" (off by {failed.error:.3g})" if math.isfinite(failed.error) else ""
        return Finding("violated", f"{failed.case}{size}", largest)
    return Finding(success, f"{count} checks, largest error {largest:.1e}", largest)
