"""Train one small model on a task and score it: the accuracy side of the benchmark."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.bench.causality import check_causality
from efficient_attn.bench.decoding_state import state_bytes
from efficient_attn.bench.record import AccuracyResult
from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.weights import take_weights
from efficient_attn.tasks import ModelConfig, Task

CURVE_POINTS = 100
Report = Callable[[int, int, float], None]


class Diverged(RuntimeError):  # noqa: N818  (named as its record status)
    """The loss stopped being a finite number at every learning rate."""


@dataclass(frozen=True)
class Training:
    """How every contestant is trained: AdamW, linear warm-up, cosine decay to zero, clipping.

    steps: updates per learning rate. learning_rates: each is tried, validation picks.
    warmup: share of the steps. weight_decay: on matrices only. clip: largest gradient norm.
    """

    steps: int = 300
    batch_size: int = 64
    learning_rates: tuple[float, ...] = (1e-3, 3e-3)
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rates", tuple(self.learning_rates))
        for name in ("steps", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"training.{name}={value!r} must be a whole number of at least 1")
        if not self.learning_rates or not all(0 < rate < math.inf for rate in self.learning_rates):
            raise ValueError(
                f"training.learning_rates={list(self.learning_rates)} must be positive numbers, "
                "at least one"
            )
        if not 0 <= self.warmup < 1:
            raise ValueError(f"training.warmup={self.warmup!r} must lie in [0, 1)")
        if self.weight_decay < 0 or self.clip <= 0:
            raise ValueError(
                f"training.weight_decay={self.weight_decay!r} must be at least 0 and "
                f"training.clip={self.clip!r} above 0"
            )


@dataclass
class _Trial:
    """One learning rate: how it went, and the trained model unless it diverged."""

    learning_rate: float
    status: str
    validation: float | None
    seconds: float
    curve: list[list[float]]
    model: nn.Module

    def to_dict(self) -> dict[str, Any]:
        return {
            "learning_rate": self.learning_rate,
            "validation": self.validation,
            "status": self.status,
        }


def fit(
    task: Task,
    variant: Variant,
    options: VariantOptions,
    model: ModelConfig,
    training: Training,
    seed: int,
    report: Report | None = None,
    device: str = "cpu",
    weights: Mapping[str, Tensor] | None = None,
    keep: Callable[[nn.Module], None] | None = None,
) -> AccuracyResult:
    """Train at every learning rate, pick by validation, report the test split.

    The same seed gives every learning rate the same first weights and the same batches, and
    every variant the same batches. report(step, steps, loss) hears of each step of all trials.
    weights: of the same model with any attention, to start from (see `take_weights`). keep: is
    given the trained model that was picked.

    Raises UnsupportedAttention (also its kind `NotCausal`, before anything is trained) and
    `Diverged` when no learning rate kept a finite loss.
    """
    trials: list[_Trial] = []
    total = training.steps * len(training.learning_rates)
    for index, rate in enumerate(training.learning_rates):

        def tell(step: int, loss: float, done: int = index * training.steps) -> None:
            if report is not None:
                report(done + step, total, loss)

        with _seeded(seed):
            built = task.build_model(variant, options, model).to(device)
            if weights is not None:
                take_weights(built, weights)
            if index == 0 and task.causal:
                inputs, targets = next(task.batches(seed, 2))
                part, tokens = task.causal_view(built, (inputs.to(device), targets.to(device)))
                check_causality(part, tokens, variant)
            trials.append(_train(task, built, training, rate, seed, tell))

    finished = [trial for trial in trials if trial.validation is not None]
    if not finished:
        rates = ", ".join(f"{rate:g}" for rate in training.learning_rates)
        raise Diverged(
            f"{variant} on {task.name} lost its finite loss at every learning rate ({rates}); "
            "try smaller training.learning_rates"
        )
    sign = 1 if task.higher_is_better else -1
    best = max(finished, key=lambda trial: sign * (trial.validation or 0.0))
    assert best.validation is not None
    if keep is not None:
        keep(best.model)
    return AccuracyResult(
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        value=task.evaluate(best.model, "test"),
        validation=best.validation,
        baselines=task.baselines(),
        learning_rate=best.learning_rate,
        steps=training.steps,
        train_seconds=best.seconds,
        parameters=sum(weight.numel() for weight in best.model.parameters()),
        curve=best.curve,
        trials=[trial.to_dict() for trial in trials],
        peak_rss_bytes=None,
        details=task.details(best.model, "test"),
        sample=task.sample(best.model),
        state_bytes=state_bytes(task, best.model),
    )


def _train(
    task: Task,
    model: nn.Module,
    training: Training,
    rate: float,
    seed: int,
    tell: Callable[[int, float], None],
) -> _Trial:
    device = next(model.parameters()).device
    optimiser = torch.optim.AdamW(_groups(model, training.weight_decay), lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: pace(step, training))
    every = max(1, training.steps // CURVE_POINTS)
    curve: list[list[float]] = []
    status = "ok"
    batches = task.batches(seed, training.batch_size)
    model.train()
    start = time.perf_counter()
    for step in range(1, training.steps + 1):
        inputs, targets = next(batches)
        loss = task.loss(model, (inputs.to(device), targets.to(device)))
        value = loss.item()
        if not math.isfinite(value):
            status = "diverged"
            break
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimiser.step()
        schedule.step()
        if step % every == 0 or step in (1, training.steps):
            curve.append([step, value])
        tell(step, value)
    seconds = time.perf_counter() - start
    validation: float | None = None
    if status == "ok":
        # The last update is seen by no loss: weights it broke show here.
        if all(bool(weight.isfinite().all()) for weight in model.parameters()):
            validation = task.evaluate(model, "validation")
        if validation is None or not math.isfinite(validation):
            status, validation = "diverged", None
    return _Trial(rate, status, validation, seconds, curve, model)


def pace(step: int, training: Training) -> float:
    """Share of the learning rate at update `step` (from 0): up over the warm-up, then cosine."""
    warm = round(training.warmup * training.steps)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, training.steps - warm)))


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Decay for matrices; none for biases, norms and the embeddings of tokens and positions."""
    kept_small: list[Tensor] = []
    free: list[Tensor] = []
    embedded = {
        id(weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for weight in module.parameters()
    }
    for name, weight in model.named_parameters():
        decays = weight.dim() > 1 and id(weight) not in embedded and ".positions." not in name
        (kept_small if decays else free).append(weight)
    return [
        {"params": kept_small, "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Initialisation and dropout by `seed`, leaving the caller's generators where they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
