"""A trained model that is to live with another attention: swapped, then taught.

First the new attention learns to give what the old one gave, layer by layer, in the manner of
attention transfer (Zhang et al. 2024, "The Hedgehog & the Porcupine", section 4.1); then the whole
model learns its task again for a while.
"""

from __future__ import annotations

import copy
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efficient_attn.integrations.swap import (
    ORIGINAL,
    first_call,
    is_transformers,
    leave_nested_tensors,
    swap,
)
from efficient_attn.nn.mode import evaluating

Batches = Callable[[int], Any]
Loss = Callable[[nn.Module, Any], Tensor]
Metric = Callable[[nn.Module], float]
Report = Callable[[str, int, int, float], None]


@dataclass(frozen=True)
class Adapting:
    """match_steps: of matching attention outputs, at match_rate; steps: of the task, at rate, both
    falling linearly to 0 after a tenth of warm-up; clip: of the gradient's norm; save_every: steps
    between checkpoints."""

    match_steps: int = 100
    steps: int = 200
    match_rate: float = 1e-3
    rate: float = 3e-4
    weight_decay: float = 0.01
    clip: float = 1.0
    save_every: int = 50

    def __post_init__(self) -> None:
        for name in ("match_steps", "steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: allowed is 0 or more")
        for name in ("match_rate", "rate", "clip", "save_every"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: allowed is above 0")


@dataclass(frozen=True)
class Adapted:
    """The metric of the model as it came, right after the swap, after matching, and at the end;
    seconds of training, of this run and those it went on from; curve: [step, loss] of the task."""

    before: float
    swapped: float
    matched: float
    adapted: float
    seconds: float
    match_steps: int
    steps: int
    replaced: list[str]
    curve: list[list[float]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def adapt(
    model: nn.Module,
    variant: str,
    *,
    batches: Batches,
    loss: Loss,
    metric: Metric,
    how: Adapting | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    report: Report | None = None,
    where: Any = None,
    max_len: int | None = None,
    run: Mapping[str, Any] | None = None,
    **options: Any,
) -> Adapted:
    """Swap the attention of a trained model in place, as `swap` does, and teach it.

    batches: step number to a batch, the same each time it is asked; loss: of a model on a batch,
    a scalar; metric: of a model, in eval, on data it is not trained on. checkpoint: a file, from
    which a run that was stopped goes on; it belongs to this model, variant and settings, and to
    `run`: what else decides the outcome, such as a digest of the text. report: told stage, step,
    steps and loss.

    The model is left in eval. ValueError for a checkpoint of another run.
    """
    how = how or Adapting()
    before = metric(model)
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    leave_nested_tensors(teacher)  # which the matched outputs could not be compared with
    identity: dict[str, Any] = {"weights": _digest(model), "variant": variant, "options": options}
    identity |= {"max_len": max_len, **asdict(how), **(run or {})}
    replaced = swap(model, variant, where=where, max_len=max_len, give_weights=False, **options)
    names = identity["where"] = attending(model, loss, batches(0))
    swapped = metric(model)
    state = _State(Path(checkpoint) if checkpoint else None, identity, model)
    began = time.monotonic() - state.seconds

    def matching(step: int) -> Tensor:
        return _distance(model, teacher, names, loss, batches(step))

    def task(step: int) -> Tensor:
        return loss(model, batches(how.match_steps + step))

    own = [w for name in names for w in model.get_submodule(name).parameters()]
    _train(
        "match", model, own, matching, how.match_steps, how.match_rate, how, state, began, report
    )
    if state.matched is None:
        state.matched = metric(model)
    everything = list(model.parameters())
    _train("task", model, everything, task, how.steps, how.rate, how, state, began, report)
    seconds = time.monotonic() - began if not state.complete else state.seconds
    state.finish(seconds)
    adapted = metric(model.eval())
    return Adapted(
        before,
        swapped,
        state.matched,
        adapted,
        seconds,
        how.match_steps,
        how.steps,
        replaced.replaced,
        state.curve,
    )


def attending(model: nn.Module, loss: Loss, batch: Any) -> list[str]:
    """Names of the modules whose attention `swap` replaced. The loss is run once: a model of
    transformers knows them, and has the parameters of their variant, from then on."""
    with torch.no_grad(), evaluating(model), first_call(model):
        loss(model, batch)
    marks = {ORIGINAL}
    if is_transformers(model):
        from efficient_attn.integrations.transformers import attention

        marks = {attention.CORE, attention.CORES}
    return [
        name
        for name, module in model.named_modules()
        if marks & (module.__dict__.keys() | module._modules.keys())
    ]


def _distance(
    model: nn.Module, teacher: nn.Module, names: list[str], loss: Loss, batch: Any
) -> Tensor:
    """Mean over layers of ‖out − teacher's‖² / ‖teacher's‖², each on its own model's input."""
    with torch.no_grad(), _outputs(teacher, names) as wanted:
        loss(teacher, batch)
    with _outputs(model, names) as found:
        loss(model, batch)
    parts = [
        F.mse_loss(found[name], wanted[name]) / wanted[name].square().mean().clamp(min=1e-12)
        for name in names
    ]
    return torch.stack(parts).mean()


@contextmanager
def _outputs(model: nn.Module, names: list[str]) -> Iterator[dict[str, Tensor]]:
    """What the named modules give while the block runs."""
    seen: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        for name in names:

            def look(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
                seen[name] = output if isinstance(output, Tensor) else output[0]

            hooks.callback(model.get_submodule(name).register_forward_hook(look).remove)
        yield seen


def _train(
    stage: str,
    model: nn.Module,
    parameters: list[nn.Parameter],
    objective: Callable[[int], Tensor],
    steps: int,
    rate: float,
    how: Adapting,
    state: _State,
    began: float,
    report: Report | None,
) -> None:
    first = state.begin(stage, steps)
    if first >= steps:
        return
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=how.weight_decay)
    state.load_optimizer(stage, optimizer)
    model.train()
    warm = max(1, steps // 10)
    for step in range(first, steps):
        share = min(1.0, (step + 1) / warm) * (1 - max(0, step - warm) / max(1, steps - warm))
        for group in optimizer.param_groups:
            group["lr"] = rate * share
        optimizer.zero_grad(set_to_none=True)
        value = objective(step)
        value.backward()
        nn.utils.clip_grad_norm_(parameters, how.clip)
        optimizer.step()
        number = value.item()
        if not torch.isfinite(value):
            raise ValueError(f"{stage}: the loss of step {step + 1} is {number}: lower the rate")
        if stage == "task":
            state.curve.append([step, number])
        if report is not None:
            report(stage, step + 1, steps, number)
        if (step + 1) % how.save_every == 0 or step + 1 == steps:
            state.save(stage, step + 1, optimizer, time.monotonic() - began)
    model.eval()


_STATE = ("stage", "step", "seconds", "matched", "complete", "curve")


class _State:
    """Where a run stands, in a file: so that one that was stopped goes on."""

    def __init__(self, path: Path | None, identity: dict[str, Any], model: nn.Module) -> None:
        self.path, self.identity, self.model = path, identity, model
        self.stage, self.step, self.seconds = "match", 0, 0.0
        self.matched: float | None = None
        self.complete = False
        self.curve: list[list[float]] = []
        self._optimizer: Any = None
        if path is not None and path.is_file():
            self._read(path)

    def begin(self, stage: str, steps: int) -> int:
        """The step that a stage goes on from; all of them for one that is over."""
        if self.stage == stage:
            return self.step
        if stage == "match":
            return steps
        self.stage, self.step, self._optimizer = stage, 0, None
        return 0

    def load_optimizer(self, stage: str, optimizer: torch.optim.Optimizer) -> None:
        if self.stage == stage and self._optimizer is not None:
            optimizer.load_state_dict(self._optimizer)

    def save(self, stage: str, step: int, optimizer: torch.optim.Optimizer, seconds: float) -> None:
        self.stage, self.step, self.seconds = stage, step, seconds
        self._write(optimizer.state_dict())

    def finish(self, seconds: float) -> None:
        self.complete, self.seconds = True, seconds
        self._write(None)

    def _write(self, optimizer: Any) -> None:
        if self.path is None:
            return
        content = {
            "identity": {name: repr(value) for name, value in self.identity.items()},
            **{name: getattr(self, name) for name in _STATE},
            "model": self.model.state_dict(),
            "optimizer": optimizer,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        torch.save(content, temporary)
        os.replace(temporary, self.path)

    def _read(self, path: Path) -> None:
        try:
            content = torch.load(path, weights_only=True)
            theirs = dict(content["identity"])
            state = {name: content[name] for name in _STATE}
            weights, self._optimizer = content["model"], content["optimizer"]
        except (RuntimeError, UnpicklingError, EOFError, LookupError, TypeError, ValueError) as bad:
            raise ValueError(
                f"{path} is damaged, or no checkpoint of this version: give another folder or "
                f"delete it ({bad})"
            ) from bad
        ours = {name: repr(value) for name, value in self.identity.items()}
        differ = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        if differ:
            told = "; ".join(f"{name}: {theirs.get(name)}, now {ours.get(name)}" for name in differ)
            raise ValueError(f"{path} is of another run ({told}): give another folder or delete it")
        vars(self).update(state)
        self.model.load_state_dict(weights)


def _digest(model: nn.Module) -> str:
    """Of class, names and values."""
    found = hashlib.sha256(type(model).__name__.encode())
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
