"""Train one small model on a task and score it: the accuracy side of the benchmark."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.bench.causality import check_causality
from efficient_attn.bench.memory import PeakMemory, peak_tensor_bytes
from efficient_attn.bench.record import AccuracyResult
from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.tasks import ModelConfig, Task
from efficient_attn.tasks.task import Batch

CURVE_POINTS = 100
Report = Callable[[int, int, float, float | None], None]
"""Hears of every update: number of the learning rate and of the step (the first is step 1), the
loss, and the validation metric where it was just taken."""


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
    validations: list[list[float | None]]
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
    validate_every: int | None = None,
) -> AccuracyResult:
    """Train at every learning rate, pick by validation, report the test split.

    The same seed gives every learning rate the same first weights and the same batches, and
    every variant the same batches. validate_every: steps between looks at the validation split,
    which change nothing; None looks at the end of each training only.

    Raises UnsupportedAttention (also its kind `NotCausal`, before anything is trained) and
    `Diverged` when no learning rate kept a finite loss.
    """
    trials: list[_Trial] = []
    for number, rate in enumerate(training.learning_rates):

        def tell(step: int, loss: float, validation: float | None, number: int = number) -> None:
            if report is not None:
                report(number, step, loss, validation)

        with _seeded(seed):
            built = task.build_model(variant, options, model).to(device)
            if number == 0 and task.pattern.startswith("causal"):
                inputs, targets = next(task.batches(seed, 2))
                part, tokens = task.causal_view(built, (inputs.to(device), targets.to(device)))
                check_causality(part, tokens, variant)
            trials.append(_train(task, built, training, rate, seed, tell, validate_every))

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
        validations=best.validations,
    )


def peak_of_update(
    task: Task,
    variant: Variant,
    options: VariantOptions,
    model: ModelConfig,
    training: Training,
    seed: int,
    device: str = "cpu",
) -> PeakMemory | None:
    """Memory of one update on the seed's first batch, above the model, its optimiser's state and
    the batch; None on devices where nothing counts tensor bytes.

    Of a fresh model, whose sizes are those of the trained one.
    """
    if torch.device(device).type not in ("cpu", "cuda"):
        return None
    with _seeded(seed):
        built = task.build_model(variant, options, model).to(device)
        inputs, targets = next(task.batches(seed, training.batch_size))
        batch = inputs.to(device), targets.to(device)
        updates = _Updates(task, built, training, training.learning_rates[0])
        updates(batch)  # makes the optimiser's state
        return peak_tensor_bytes(lambda: updates(batch), device)


class _Updates:
    """One training's model with its optimiser and schedule; between updates no gradients live."""

    def __init__(self, task: Task, model: nn.Module, training: Training, rate: float) -> None:
        self._task, self._model, self._clip = task, model.train(), training.clip
        groups = _groups(model, training.weight_decay)
        self._optimiser = torch.optim.AdamW(groups, lr=rate, fused=True)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimiser, lambda step: pace(step, training)
        )

    def __call__(self, batch: Batch) -> float:
        """The loss before the update; one that is not finite updates nothing."""
        loss = self._task.loss(self._model, batch)
        value = loss.item()
        if math.isfinite(value):
            loss.backward()
            nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
            self._optimiser.step()
            self._schedule.step()
            self._optimiser.zero_grad(set_to_none=True)
        return value


def _train(
    task: Task,
    model: nn.Module,
    training: Training,
    rate: float,
    seed: int,
    tell: Callable[[int, float, float | None], None],
    validate_every: int | None,
) -> _Trial:
    device = next(model.parameters()).device
    updates = _Updates(task, model, training, rate)
    every = curve_spacing(training.steps)
    curve: list[list[float]] = []
    validations: list[list[float | None]] = []
    validation: float | None = None
    batches = task.batches(seed, training.batch_size)
    seconds = 0.0
    start = time.perf_counter()
    for step in range(1, training.steps + 1):
        inputs, targets = next(batches)
        value = updates((inputs.to(device), targets.to(device)))
        if not math.isfinite(value):
            return _Trial(
                rate, "diverged", None, _since(start) + seconds, curve, validations, model
            )
        if step % every == 0 or step in (1, training.steps):
            curve.append([step, value])
        validation = None
        last = step == training.steps
        if last or (validate_every is not None and step % validate_every == 0):
            seconds += _since(start)
            validation = _validation(task, model)
            validations.append([step, validation])
            start = time.perf_counter()
        tell(step, value, validation)
    status = "diverged" if validation is None else "ok"
    return _Trial(rate, status, validation, seconds, curve, validations, model)


def _validation(task: Task, model: nn.Module) -> float | None:
    """The metric on the validation split; None where it or a weight is no finite number.

    The last update is seen by no loss: weights it broke show here.
    """
    if not all(bool(weight.isfinite().all()) for weight in model.parameters()):
        return None
    value = task.evaluate(model, "validation")
    return value if math.isfinite(value) else None


def _since(start: float) -> float:
    return time.perf_counter() - start


def curve_spacing(steps: int) -> int:
    """Steps between points of a curve."""
    return max(1, steps // CURVE_POINTS)


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
