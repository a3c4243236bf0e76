"""Time and memory of several contestants under one workload."""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def label(self) -> str:
        w = self.workload
        scope = "" if w.scope == "core" else f"  {w.scope}"
        return f"cost  {w.pattern}  N={w.length}  {w.pass_.replace('_', '+', 1)}{scope}"

    @property
    def contradiction(self) -> str | None:
        return self.workload.contradiction

    def subject(self, contestant: Contestant) -> Worker:
        return self.start_worker(CostSubject, contestant.variant, contestant.options, self.workload)
