"""The subject of an accuracy measurement: a small model with one variant, trained on one task.

Lives in a worker process.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch

from efficient_attn.bench import memory
from efficient_attn.bench.training import Report, Training, curve_spacing, fit, peak_of_update
from efficient_attn.tasks import ModelConfig, Task

LONGEST_SILENCE_S = 0.5


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
        validate_every: int | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self.variant, self.options = variant, options
        self.task, self.model, self.training = task, model, training
        self.seed, self.device = seed, device
        self.validate_every = validate_every

    def train(self, report: Report) -> dict[str, Any]:
        """The result, as a dict of `AccuracyResult`, and facts about how it came about."""
        asked = (self.task, self.variant, self.options, self.model, self.training, self.seed)
        baseline = memory.reset_peak_rss()
        result = asdict(
            fit(
                *asked,
                report=_sparing(report, self.training.steps),
                device=self.device,
                validate_every=self.validate_every,
            )
        )
        peak_rss = memory.peak_rss()
        if baseline is not None and peak_rss is not None:
            result["peak_rss_bytes"] = max(0, peak_rss - baseline)
        peak = peak_of_update(*asked, device=self.device)
        if peak is not None:
            result["peak_tensor_bytes"] = peak.tensor_bytes
            result["peak_method"] = peak.method
        return {"result": result, "threads": torch.get_num_threads()}


def _sparing(report: Report, steps: int) -> Report:
    """Passes on the points of the loss curve, every validation, and else twice a second."""
    every = curve_spacing(steps)
    told = 0.0

    def tell(rate: int, step: int, loss: float, validation: float | None) -> None:
        nonlocal told
        now = time.monotonic()
        due = step % every == 0 or step in (1, steps) or now - told >= LONGEST_SILENCE_S
        if due or validation is not None:
            told = now
            report(rate, step, loss, validation)

    return tell
