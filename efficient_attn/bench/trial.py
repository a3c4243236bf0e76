"""The subject of an accuracy measurement: a small model with one variant, trained on one task.

Lives in a worker process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from efficient_attn.bench import memory
from efficient_attn.bench.training import Training, fit
from efficient_attn.tasks import ModelConfig, Task


class TrialSubject:
    """One training of one contestant."""

    def __init__(
        self,
        variant: str,
        options: dict[str, Any],
        task: Task,
        model: ModelConfig,
        training: Training,
        seed: int,
        device: str,
        threads: int,
    ) -> None:
        torch.set_num_threads(threads)
        self.variant, self.options = variant, options
        self.task, self.model, self.training = task, model, training
        self.seed, self.device = seed, device

    def train(self, report: Callable[[int, int, float], None]) -> dict[str, Any]:
        """The result, as a dict of `AccuracyResult`, and facts about how it came about."""
        baseline = memory.reset_peak_rss()
        result = asdict(
            fit(
                self.task,
                self.variant,
                self.options,
                self.model,
                self.training,
                self.seed,
                report=report,
                device=self.device,
            )
        )
        peak = memory.peak_rss()
        if baseline is not None and peak is not None:
            result["peak_rss_bytes"] = max(0, peak - baseline)
        return {"result": result, "threads": torch.get_num_threads()}
