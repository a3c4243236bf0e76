"""Time and memory of somebody's model with several attentions, interleaved round by round."""

from __future__ import annotations

from dataclasses import dataclass

from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.model import ORIGINAL, ModelSubject, ModelWorkload
from efficient_attn.bench.race import CostSettings, RaceCell
from efficient_attn.bench.record import Measure, ModelResult
from efficient_attn.bench.worker import Worker


@dataclass(frozen=True)
class ModelCell(RaceCell):
    """A whole model under one workload; a contestant is what its attention is swapped for, and the
    one named `ORIGINAL` the model as it is."""

    workload: ModelWorkload
    how: CostSettings

    result_class = ModelResult

    @property
    def measure(self) -> Measure:
        return "model"

    @property
    def label(self) -> str:
        w = self.workload
        return f"model  {w.source}  N={w.length}  {w.pass_.replace('_', '+', 1)}"

    def subject(self, contestant: Contestant) -> Worker:
        variant = None if contestant.name == ORIGINAL else contestant.variant
        return self.start_worker(ModelSubject, variant, contestant.options, self.workload)
