"""The subject of a cost measurement: one variant under one workload, ready to be called.

Lives in a worker process; the cell asks it for samples round by round.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention import refusal, variant_class
from efficient_attn.bench import contention, memory
from efficient_attn.bench.clock import clock_for
from efficient_attn.bench.flop_counter import count_flops
from efficient_attn.bench.passes import build
from efficient_attn.bench.training import Diverged
from efficient_attn.bench.work import work_of
from efficient_attn.bench.workload import Workload

SETTLED = 0.03
"""Relative change of the median call, from one stretch of warm-up to the next, that ends it."""


class CostSubject:
    """Builds the tensors and the module of a workload, and times one pass over them."""

    def __init__(self, variant: str, options: dict[str, Any], workload: Workload) -> None:
        if workload.threads is not None:
            torch.set_num_threads(workload.threads)
        self.workload = workload
        _require(variant, workload)
        self._call = build(variant, options, workload)
        self._clock = clock_for(workload.device)
        self._per_sample = 1
        self._first_call_ms = 0.0

    def prepare(self) -> dict[str, Any]:
        """First call, with its one-off costs, and what the module turned out to be.

        Raises `Diverged` when the output is not finite.
        """
        baseline = memory.reset_peak_rss()
        compile_ms = self._timed(1) if self.workload.compile else None
        outputs: list[Tensor] = []
        self._first_call_ms = self._clock.milliseconds(
            lambda: outputs.append(self._call()), self._call.reset, 1
        )
        peak = memory.peak_rss()
        self._require_finite(outputs)
        return {
            **self._facts(),
            "compile_ms": compile_ms,
            "first_call_ms": self._first_call_ms,
            "peak_rss_bytes": None if None in (baseline, peak) else max(0, peak - baseline),  # type: ignore[operator]
            "threads": torch.get_num_threads(),
        }

    def warm_up(self, at_least_s: float, at_most_s: float, sample_s: float) -> dict[str, Any]:
        """Call until times settle; how many calls make a sample of about `sample_s`, and the time
        that warming up took.

        Settled is when the median of the last third of the calls is that of the third before. A
        first call that took as long as all the warm-up should was warm-up enough.
        """
        start = time.perf_counter() - self._first_call_ms / 1e3
        times = [self._first_call_ms]
        while (spent := time.perf_counter() - start) < at_least_s or (
            spent < at_most_s and not _settled(times)
        ):
            times.append(self._timed(1))
        self._per_sample = max(1, min(1000, round(sample_s * 1e3 / max(min(times), 1e-3))))
        contention.rest_threads()
        return {"calls_per_sample": self._per_sample, "seconds": time.perf_counter() - start}

    def sample(self) -> tuple[float, float | None, float]:
        """Milliseconds per call, over one sample; the share of it spent waiting for a core; and
        the seconds of untimed calls before it.

        Another contestant has just run: where calls are so short that several make a sample, one
        goes ahead untimed, to bring caches back.
        """
        start = time.perf_counter()
        contention.wake_threads()
        if self._per_sample > 1:
            self._timed(1)
        ahead = time.perf_counter() - start
        before = contention.waited_seconds()
        start = time.perf_counter()
        milliseconds = self._timed(self._per_sample)
        elapsed = time.perf_counter() - start
        after = contention.waited_seconds()
        contention.rest_threads()
        waited = None if before is None or after is None else max(0.0, after - before) / elapsed
        return milliseconds, waited, ahead

    def resources(self) -> dict[str, Any]:
        """Memory, decoding state and arithmetic of one pass, found outside the timed calls."""
        self._call.reset()
        peak = memory.peak_tensor_bytes(self._call, self.workload.device)
        self._call.reset()
        subject = self._call.subject
        work = work_of(subject.module, subject.core, self.workload)
        flops, method = work.flops, work.flops_method
        if flops is None and not self.workload.compile:
            flops, method = count_flops(self._call), "counter"
        state_bytes = None
        if subject.state is not None:
            with torch.no_grad():
                state_bytes = subject.state().nbytes
        return {
            "peak_tensor_bytes": peak.tensor_bytes,
            "peak_method": peak.method,
            "peak_reserved_bytes": peak.reserved_bytes,
            "state_bytes": state_bytes,
            "flops": flops,
            "flops_method": method,
            "traffic_bytes": work.traffic_bytes,
        }

    def _facts(self) -> dict[str, Any]:
        """What the contestant turned out to be."""
        subject = self._call.subject
        return {
            "options": asdict(subject.core.options),
            "parameters": sum(p.numel() for p in subject.module.parameters()),
        }

    def _timed(self, calls: int) -> float:
        return self._clock.milliseconds(self._call, self._call.reset, calls)

    def _require_finite(self, outputs: list[Tensor]) -> None:
        gradients = [leaf.grad for leaf in self._call.subject.leaves if leaf.grad is not None]
        for what, tensors in (("output", outputs), ("gradient", gradients)):
            broken = sum(int((~tensor.isfinite()).sum()) for tensor in tensors)
            if broken:
                size = sum(tensor.numel() for tensor in tensors)
                raise Diverged(f"{broken} of {size} numbers of the {what} are NaN or infinite")


def _require(variant: str, workload: Workload) -> None:
    """Raise `UnsupportedAttention` for what the variant does not honour, before making anything."""
    asked = variant_class(variant)
    variant, capabilities = asked.name, asked.capabilities
    capabilities.require(variant, causal=workload.causal, cross=workload.cross)
    if workload.cross and capabilities.equal_lengths and workload.keys != workload.length:
        raise refusal(variant, "unequal_lengths")
    if workload.padding and not capabilities.key_padding:
        raise refusal(variant, "key_padding")
    if workload.pass_ in ("prefill", "decode") and not capabilities.decode:
        raise refusal(variant, "decode")


def _settled(times: list[float]) -> bool:
    third = len(times) // 3
    if third < 2:
        return False
    earlier, later = times[-2 * third : -third], times[-third:]
    return abs(statistics.median(later) / statistics.median(earlier) - 1) <= SETTLED
