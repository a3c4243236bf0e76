"""The subject of a measurement of somebody's whole model, with its own attention or another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from efficient_attn.attention import (
    AttentionMask,
    AttentionVariant,
    Capabilities,
    register_variant,
)
from efficient_attn.bench import memory
from efficient_attn.bench.clock import clock_for
from efficient_attn.bench.cost import CostSubject
from efficient_attn.bench.flop_counter import count_flops
from efficient_attn.bench.passes import Call, Subject
from efficient_attn.integrations.swap import first_call, swap

ORIGINAL, WITHOUT = "original", "no attention"
HUGGING_FACE = "hf:"

ModelPass = Literal["forward", "forward_backward", "train_step"]


@dataclass(frozen=True)
class ModelWorkload:
    """What a model is asked to do.

    source: "hf:" and a folder, a config.json or the name of an architecture of transformers; or
        "module:function", whose function is called with length and batch and returns the model and
        its input (a tensor, or a tuple or dict of arguments).
    length: tokens of each of `batch` samples. pass_: ``forward`` (inference), ``forward_backward``
        or ``train_step``, in training mode. threads: None = every core.
    """

    source: str
    length: int
    batch: int = 1
    pass_: ModelPass = "forward"
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    seed: int = 0

    compile = False  # as `Call` reads it

    def __post_init__(self) -> None:
        for name in ("length", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: allowed is 1 or more")
        if self.pass_ not in get_args(ModelPass):
            raise ValueError(f"pass={self.pass_!r} is not one of {', '.join(get_args(ModelPass))}")

    @property
    def backward(self) -> bool:
        return self.pass_ != "forward"

    def to_dict(self) -> dict[str, Any]:
        return {name.rstrip("_"): value for name, value in asdict(self).items()}


class ModelSubject(CostSubject):
    """A model in a process of its own. variant: what its attention becomes, None = as it is."""

    def __init__(
        self, variant: str | None, options: dict[str, Any], workload: ModelWorkload
    ) -> None:
        if workload.threads is not None:
            torch.set_num_threads(workload.threads)
        self.workload: Any = workload
        torch.manual_seed(workload.seed)
        place = {"device": workload.device, "dtype": getattr(torch, workload.dtype)}
        model, inputs = open_model(workload.source, workload.length, workload.batch)
        self._model = model.to(**place)
        self._inputs = _moved(inputs, **place)
        self.drift: float | None = None
        FreeAttention.seen.clear()
        if variant is not None:
            self._replace(variant, options)
        self._model.train(workload.pass_ != "forward")
        leaves = [weight for weight in self._model.parameters() if weight.requires_grad]
        subject = Subject(self._model, None, self._forward, leaves)  # type: ignore[arg-type]
        self._call = Call(subject, workload)  # type: ignore[arg-type]
        self._clock = clock_for(workload.device)
        self._per_sample = 1
        self._first_call_ms = 0.0

    def resources(self) -> dict[str, Any]:
        """Memory and arithmetic of one pass, found outside the timed calls."""
        self._call.reset()
        peak = memory.peak_tensor_bytes(self._call, self.workload.device)
        self._call.reset()
        flops = None
        with suppress(RuntimeError, NotImplementedError):  # operators that nobody has counted
            flops = count_flops(self._call)
        return {
            "peak_tensor_bytes": peak.tensor_bytes,
            "peak_method": peak.method,
            "peak_reserved_bytes": peak.reserved_bytes,
            "state_bytes": None,
            "flops": flops,
            "flops_method": None if flops is None else "counter",
            "traffic_bytes": None,
        }

    def _replace(self, variant: str, options: dict[str, Any]) -> None:
        """Swap, and tell how far the output moved by it."""
        before = self._answer()
        own = sum(weight.numel() for weight in self._model.parameters())
        swap(
            self._model,
            variant,
            give_weights=False,
            max_len=self.workload.length,
            **options,
        )
        with first_call(self._model):
            after = self._answer()
        grown = sum(weight.numel() for weight in self._model.parameters()) != own
        if variant != FreeAttention.name and not grown:
            self.drift = ((after - before).norm() / before.norm()).item()

    def _answer(self) -> Tensor:
        with torch.no_grad():
            self._model.eval()
            return self._forward().double()

    def _forward(self) -> Tensor:
        if isinstance(self._inputs, dict):
            return first_tensor(self._model(**self._inputs))
        return first_tensor(self._model(*self._inputs))

    def _facts(self) -> dict[str, Any]:
        return {
            "options": None,
            "parameters": sum(weight.numel() for weight in self._model.parameters()),
            "more": {"drift": self.drift, "attention": list(FreeAttention.seen)},
        }


@dataclass(frozen=True)
class FreeOptions:
    """None."""


@register_variant("no_attention", formula="q + k + v", time="O(N·d)", memory="O(N·d)")
class FreeAttention(AttentionVariant):
    """The sum of a token's query, key and value: what a model costs around its attention."""

    Options = FreeOptions
    listed = False
    capabilities = Capabilities(
        noncausal_self=True,
        causal_self=True,
        noncausal_cross=True,
        causal_cross=True,
        key_padding=True,
        pairwise_mask=True,
        rotary=True,
        alibi=True,
    )
    seen: list[dict[str, Any]] = []  # noqa: RUF012  (of this process)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        N, M = q.shape[-2], k.shape[-2]
        if len(self.seen) < 1000:
            self.seen.append(
                {
                    "heads": q.shape[1],
                    "head_dim": q.shape[-1],
                    "queries": N,
                    "keys": M,
                    "causal": mask.causal,
                }
            )
        if N == M and q.shape[-1] == v.shape[-1]:
            return q + k + v
        spread = (k.mean((-2, -1)) + v.mean((-2, -1)))[..., None, None]  # gradients reach all
        return q.mean(-1, keepdim=True).expand(*q.shape[:-1], v.shape[-1]) + spread


def open_model(source: str, length: int, batch: int) -> tuple[nn.Module, Any]:
    """The model of a source (see `ModelWorkload`), and its input as a tuple or dict."""
    if source.startswith(HUGGING_FACE):
        from efficient_attn.integrations.transformers.checkpoints import open_for_tokens

        return open_for_tokens(source.removeprefix(HUGGING_FACE), length, batch)
    module, _, name = source.partition(":")
    try:
        function: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no function at {source!r}: {error}") from error
    model, inputs = function(length, batch)
    return model, (inputs,) if isinstance(inputs, Tensor) else inputs


def first_tensor(output: Any) -> Tensor:
    """What a model's answer is judged by: logits, last_hidden_state, or its first tensor."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        found = getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    values = output.values() if isinstance(output, dict) else output
    for value in values:
        if isinstance(value, Tensor):
            return value
    raise ValueError(f"the model returns a {type(output).__name__} without a tensor")


def _moved(inputs: Any, device: str, dtype: torch.dtype) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.to(device, dtype if inputs.is_floating_point() else None)
    if isinstance(inputs, dict):
        return {name: _moved(value, device, dtype) for name, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return tuple(_moved(value, device, dtype) for value in inputs)
    return inputs
