"""The subject of a cost measurement: one variant under one workload, ready to be called.

Lives in a worker process; the cell asks it for samples round by round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention import (
    AttentionMask,
    MultiHeadAttention,
    make_core,
    refusal,
    resolve_options,
    variant_class,
)
from efficient_attn.attention.apply import attend
from efficient_attn.bench import memory
from efficient_attn.bench.workload import Workload


class CostSubject:
    """Builds the tensors and the module of a workload, and times one pass over them."""

    def __init__(self, variant: str, options: dict[str, Any], workload: Workload) -> None:
        if workload.threads is not None:
            torch.set_num_threads(workload.threads)
        torch.manual_seed(workload.seed)
        self.workload = workload
        capabilities = variant_class(variant).capabilities
        capabilities.require(variant, causal=workload.causal, cross=workload.cross)
        if workload.cross and capabilities.equal_lengths and workload.keys != workload.length:
            raise refusal(variant, "unequal_lengths")
        self._call, self._module = _build(variant, options, workload)
        self._per_sample = 1
        self._first_call_ms = 0.0

    def prepare(self) -> dict[str, Any]:
        """First call, with its one-off costs, and what the module turned out to be."""
        baseline = memory.reset_peak_rss()
        self._first_call_ms = first_call_ms = self._timed(1)
        peak = memory.peak_rss()
        core: Any = getattr(self._module, "core", self._module)
        return {
            "options": asdict(core.options),
            "parameters": sum(p.numel() for p in self._module.parameters()),
            "first_call_ms": first_call_ms,
            "peak_rss_bytes": None if None in (baseline, peak) else max(0, peak - baseline),  # type: ignore[operator]
            "threads": torch.get_num_threads(),
        }

    def warm_up(self, at_least_s: float, sample_s: float) -> int:
        """Call until times settle; returns how many calls make a sample of about `sample_s`.

        A first call that took as long as all the warm-up should was warm-up enough.
        """
        best = self._first_call_ms
        deadline = time.perf_counter() + at_least_s - best / 1e3
        while time.perf_counter() < deadline:
            best = min(best, self._timed(1))
        self._per_sample = max(1, min(1000, round(sample_s * 1e3 / max(best, 1e-3))))
        return self._per_sample

    def sample(self) -> float:
        """Milliseconds per call, over one sample.

        Another contestant has just run: where calls are so short that several make a sample, one
        goes ahead untimed, to bring caches and threads back.
        """
        if self._per_sample > 1:
            self._timed(1)
        return self._timed(self._per_sample)

    def peak_memory(self) -> tuple[int, str]:
        """Peak tensor bytes above the inputs, and how they were found."""
        self._clear_gradients()
        return memory.peak_tensor_bytes(self._call, self.workload.device)

    def _timed(self, calls: int) -> float:
        total = 0.0
        for _ in range(calls):
            self._clear_gradients()
            self._synchronise()
            start = time.perf_counter()
            self._call()
            self._synchronise()
            total += time.perf_counter() - start
        return total * 1e3 / calls

    def _clear_gradients(self) -> None:
        for tensor in self._call.leaves:
            tensor.grad = None

    def _synchronise(self) -> None:
        if self.workload.device.startswith("cuda"):
            torch.cuda.synchronize(self.workload.device)


class _Call:
    """One pass: forward without gradients, or forward and backward from a fixed gradient."""

    def __init__(self, forward: Callable[[], Tensor], leaves: list[Tensor], backward: bool) -> None:
        self.forward = forward
        self.leaves = leaves if backward else []
        self.backward = backward
        self.gradient: Tensor | None = None
        for leaf in self.leaves:
            leaf.requires_grad_(True)

    def __call__(self) -> None:
        if not self.backward:
            with torch.no_grad():
                self.forward()
            return
        out = self.forward()
        if self.gradient is None:
            self.gradient = torch.randn_like(out)
        out.backward(self.gradient)


def _build(
    variant: str, options: dict[str, Any], workload: Workload
) -> tuple[_Call, torch.nn.Module]:
    w = workload
    dtype = getattr(torch, w.dtype)
    place: dict[str, Any] = {"device": w.device, "dtype": dtype}
    resolved = resolve_options(variant, options, max_len=w.keys)
    exists = None
    if w.padding:
        exists = torch.ones(w.batch, w.keys, dtype=torch.bool, device=w.device)
        exists[:, w.keys - int(w.padding * w.keys) :] = False
    backward = w.pass_ == "forward_backward"

    if w.scope == "module":
        width = w.heads * w.head_dim
        module = MultiHeadAttention(width, w.heads, variant, **place, **resolved).train(backward)
        query = torch.randn(w.batch, w.length, width, **place)
        key = torch.randn(w.batch, w.keys, width, **place) if w.cross else query
        padding = None if exists is None else ~exists

        def through_module() -> Tensor:
            return module(query, key, key, key_padding_mask=padding, is_causal=w.causal)[0]

        leaves = [query, *([key] if w.cross else []), *module.parameters()]
        return _Call(through_module, leaves, backward), module

    core = make_core(variant, w.heads, w.head_dim, **place, **resolved).train(backward)
    q = torch.randn(w.batch, w.heads, w.length, w.head_dim, **place)
    k, v = (torch.randn(w.batch, w.heads, w.keys, w.head_dim, **place) for _ in range(2))
    mask = AttentionMask(w.causal, exists)

    def through_core() -> Tensor:
        return attend(core, q, k, v, mask, cross=w.cross)[0]

    return _Call(through_core, [q, k, v, *core.parameters()], backward), core
