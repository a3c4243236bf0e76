"""What an accuracy task is: data, a model around the attention under test, a metric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from torch import Tensor, nn

from efficient_attn.attention.errors import require_probability
from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.settings import EncoderSettings

TaskPattern: TypeAlias = Literal["noncausal_self", "causal_self", "noncausal_cross"]
Capability: TypeAlias = Literal["recall", "locality", "hierarchy", "2d", "alignment"]
CAPABILITIES: tuple[Capability, ...] = get_args(Capability)
Split: TypeAlias = Literal["validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Batch: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model around the attention; the same for every contestant.

    dim_feedforward: 4·d_model when None. positions, short_conv: the task's own choice when None.
    dropout: probability in training, everywhere that torch.nn's layers have one.
    """

    d_model: int = 64
    nhead: int = 4
    num_layers: int = 2
    dim_feedforward: int | None = None
    positions: str | None = None
    short_conv: int | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("d_model", "nhead", "num_layers"):
            require_count(f"model.{name}", getattr(self, name))
        require_probability("model.dropout", self.dropout)
        if self.d_model % self.nhead:
            raise ValueError(
                f"model.d_model={self.d_model} must be a multiple of model.nhead={self.nhead}"
            )


class Task(ABC):
    """Base of the tasks, each a frozen dataclass of its sizes.

    pattern: how the attention under test is used. capability: what of attention the task asks for:
    recall at a distance, locality, hierarchy, 2-D structure, or alignment of two sequences.
    metric: name of what `evaluate` returns. positions, short_conv: what the task gives its models
    unless `ModelConfig` says otherwise.
    All randomness comes from seeds; no global generator is read or moved.
    """

    name: ClassVar[str]
    pattern: ClassVar[TaskPattern]
    capability: ClassVar[Capability]
    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]
    positions: ClassVar[str] = "learned"
    short_conv: ClassVar[int] = 0
    length: int
    """Tokens per sample."""

    @property
    def causal(self) -> bool:
        """Whether the model must not look ahead, wherever its attention stands."""
        return self.pattern == "causal_self"

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) when the tokens stand row-major on an image."""
        return None

    @abstractmethod
    def build_model(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> nn.Module:
        """A fresh model with this attention; parameters from torch's global generator."""

    @abstractmethod
    def batches(self, seed: int, batch_size: int) -> Iterator[Batch]:
        """Endless training batches (inputs, targets), the same for the same seed."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Scalar to be minimised, in nats."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: Split) -> float:
        """The metric on a fixed split, in eval mode and without gradients."""

    @abstractmethod
    def baselines(self) -> dict[str, float]:
        """The metric of trivial predictors on the test split, by name; includes "chance"."""

    def causal_view(self, model: nn.Module, batch: Batch) -> tuple[nn.Module, Tensor]:
        """What must not look ahead in a causal task: a module, and its input [B, N]."""
        return model, batch[0]

    def details(self, model: nn.Module, split: Split) -> dict[str, dict[str, float]]:
        """More about the model, for the record: for each way of using it, figures by name."""
        return {}

    def sample(self, model: nn.Module) -> str | None:
        """Text that the trained model makes, the same every time; None where there is none."""
        return None

    def provenance(self) -> dict[str, Any]:
        """What identifies the data, for records of tasks that read files."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Name and fields: ``make_task(**task.to_dict())`` is the same task."""
        return {
            "name": self.name,
            **{field.name: getattr(self, field.name) for field in fields(self)},  # type: ignore[arg-type]
        }

    def settings(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> EncoderSettings:
        """Keywords for the models of `efficient_attn.nn`."""
        return EncoderSettings(
            variant=variant,
            variant_options=options,
            d_model=model.d_model,
            nhead=model.nhead,
            num_layers=model.num_layers,
            dim_feedforward=model.dim_feedforward,
            dropout=model.dropout,
            positions=self.positions if model.positions is None else model.positions,
            short_conv=self.short_conv if model.short_conv is None else model.short_conv,
        )


def generator(*parts: int | str) -> np.random.Generator:
    """Generator for a purpose: streams of different `parts` are independent."""
    words = [p if isinstance(p, int) else int.from_bytes(p.encode(), "big") for p in parts]
    return np.random.default_rng(words)


def require_count(name: str, value: Any, low: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {low}")


def require_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split={split!r} is not one of {', '.join(SPLITS)}")
