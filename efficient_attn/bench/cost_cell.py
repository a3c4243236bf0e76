"""Time and memory of several contestants under one workload."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.cost import CostSubject
from efficient_attn.bench.race import CostSettings, RaceCell
from efficient_attn.bench.record import Measure
from efficient_attn.bench.worker import Worker
from efficient_attn.bench.workload import Workload

__all__ = ["CostCell", "CostSettings"]


@dataclass(frozen=True)
class CostCell(RaceCell):
    """How long attention takes under one workload."""

    workload: Workload
    how: CostSettings

    @property
    def measure(self) -> Measure:
        return "cost"

    @cached_property
    def request(self) -> dict[str, Any]:
        return self.workload.to_dict()

    @property
    def label(self) -> str:
        w = self.workload
        scope = "" if w.scope == "core" else f"  {w.scope}"
        return f"cost  {w.pattern}  N={w.length}  {w.pass_.replace('_', '+', 1)}{scope}"

    @property
    def device(self) -> str:
        return self.workload.device

    @property
    def dtype(self) -> str:
        return self.workload.dtype

    @property
    def threads(self) -> int | None:
        return self.workload.threads

    @property
    def contradiction(self) -> str | None:
        return self.workload.contradiction

    def subject(self, contestant: Contestant) -> Worker:
        return self.start_worker(CostSubject, contestant.variant, contestant.options, self.workload)
