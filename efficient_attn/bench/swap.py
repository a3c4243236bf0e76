"""The subjects of a swap: a full model that is trained, and one whose attention is replaced.

Both live in worker processes; the trained weights pass between them in a file.
"""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.attention import AttentionMask, MultiHeadAttention
from efficient_attn.bench.causality import check_causality
from efficient_attn.bench.fidelity import deviation
from efficient_attn.bench.record import AccuracyResult, SwapResult
from efficient_attn.bench.training import Diverged, Report, Training, fit
from efficient_attn.bench.trial import sparing
from efficient_attn.nn.mode import evaluating
from efficient_attn.nn.weights import take_weights
from efficient_attn.tasks import ModelConfig, Task

FRESH = 1_000_003
"""Added to the seed for batches that the full model was not trained on."""

SAMPLES = 16
"""Samples of the task on which layers are compared."""


class FullSubject:
    """The model with full attention, trained as for an accuracy measurement."""

    def __init__(
        self,
        task: Task,
        model: ModelConfig,
        training: Training,
        seed: int,
        device: str,
        threads: int,
    ) -> None:
        torch.set_num_threads(threads)
        self.task, self.model, self.training = task, model, training
        self.seed, self.device = seed, device

    def train(self, path: str, report: Report) -> None:
        """Write the trained weights to `path`, whole or not at all."""
        fit(
            self.task,
            "full",
            {},
            self.model,
            self.training,
            self.seed,
            report=sparing(report, self.training.steps),
            device=self.device,
            keep=lambda trained: _save(trained, Path(path)),
        )


class SwapSubject:
    """The trained model with one contestant in the place of full attention.

    tuning: of the fine-tune; None for none.
    """

    def __init__(
        self,
        variant: str,
        options: dict[str, Any],
        task: Task,
        model: ModelConfig,
        tuning: Training | None,
        seed: int,
        device: str,
        threads: int,
        path: str,
    ) -> None:
        torch.set_num_threads(threads)
        self.variant, self.options = variant, options
        self.task, self.model, self.tuning = task, model, tuning
        self.seed, self.device = seed, device
        self.weights: dict[str, Tensor] = torch.load(path, map_location=device, weights_only=True)

    def swap(self, report: Report) -> dict[str, Any]:
        """The result, as a dict of `SwapResult`.

        Raises `UnsupportedAttention` for a variant that the task's model refuses or that is not
        causal where it must be, `Diverged` when the swapped model has no finite metric.
        """
        full, swapped = self._model("full", {}), self._model(self.variant, self.options)
        self._require_causal(swapped)
        score = self.task.evaluate(swapped, "test")
        if not math.isfinite(score):
            raise Diverged(f"{self.task.metric} after the swap is {score}")
        tuned, trials = self._tuned(report)
        result = SwapResult(
            metric=self.task.metric,
            higher_is_better=self.task.higher_is_better,
            before=self.task.evaluate(full, "test"),
            swapped=score,
            tuned=tuned.value if tuned else None,
            baselines=self.task.baselines(),
            layers=self._layers(full, swapped),
            learning_rate=tuned.learning_rate if tuned else None,
            steps=self.tuning.steps if self.tuning else 0,
            train_seconds=tuned.train_seconds if tuned else None,
            curve=tuned.curve if tuned else [],
            trials=trials,
            parameters=_count(swapped),
            fresh_parameters=_count(swapped) - _count(full),
        )
        return {"result": asdict(result), "threads": torch.get_num_threads()}

    def _model(self, variant: str, options: dict[str, Any]) -> nn.Module:
        built = self.task.build_model(variant, options, self.model).to(self.device)
        take_weights(built, self.weights)
        return built

    def _require_causal(self, model: nn.Module) -> None:
        if self.task.causal:
            inputs, targets = next(self.task.batches(self.seed, 2))
            batch = inputs.to(self.device), targets.to(self.device)
            check_causality(*self.task.causal_view(model, batch), self.variant)

    def _tuned(self, report: Report) -> tuple[AccuracyResult | None, list[dict[str, Any]]]:
        """The fine-tuned model's result and its trials; without a result when all diverged."""
        if self.tuning is None:
            return None, []
        try:
            result = fit(
                self.task,
                self.variant,
                self.options,
                self.model,
                self.tuning,
                self.seed + FRESH,
                report=sparing(report, self.tuning.steps),
                device=self.device,
                weights=self.weights,
            )
        except Diverged:
            return None, [
                {"learning_rate": rate, "validation": None, "status": "diverged"}
                for rate in self.tuning.learning_rates
            ]
        return result, result.trials

    def _layers(self, full: nn.Module, swapped: nn.Module) -> list[dict[str, Any]]:
        """Deviation of every attention that was replaced, on what the full model gives it."""
        inputs, targets = next(self.task.batches(self.seed + FRESH, SAMPLES))
        batch = inputs.to(self.device), targets.to(self.device)
        layers = []
        for name, (q, k, v, mask) in attention_inputs(self.task, full, batch).items():
            attention = swapped.get_submodule(name)
            assert isinstance(attention, MultiHeadAttention)
            if attention.variant == self.variant:
                cross = q.shape[-2] != k.shape[-2]
                found = deviation(attention.core.eval(), q, k, v, mask, cross=cross)
                layers.append({"layer": name, **asdict(found)})
        return layers


def attention_inputs(
    task: Task, model: nn.Module, batch: tuple[Tensor, Tensor]
) -> dict[str, tuple[Tensor, Tensor, Tensor, AttentionMask]]:
    """What each attention of a model works on, by name: q, k, v [B, H, N, D] and the mask.

    Taken at its core, where positions are applied, in its first call while the loss of a batch is
    computed in eval mode.
    """
    seen: dict[str, tuple[Tensor, Tensor, Tensor, AttentionMask]] = {}
    with ExitStack() as hooks, evaluating(model):
        for name, part in model.named_modules():
            if isinstance(part, MultiHeadAttention):

                def look(_: nn.Module, args: tuple[Any, ...], name: str = name) -> None:
                    seen.setdefault(name, args[:4])

                hooks.callback(part.core.register_forward_pre_hook(look).remove)
        task.loss(model, batch)
    return seen


def _count(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _save(model: nn.Module, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        torch.save(model.state_dict(), temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
