"""How far a variant's output is from that of full attention on the same queries, keys and values.

`FidelitySubject` lives in a worker process.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention import AttentionMask, make_core, resolve_options
from efficient_attn.attention.apply import attend
from efficient_attn.attention.variant import AttentionVariant
from efficient_attn.bench.intervals import mean_interval
from efficient_attn.bench.record import FidelityResult
from efficient_attn.bench.training import Diverged
from efficient_attn.bench.workload import Workload
from efficient_attn.tasks.task import generator


@dataclass(frozen=True)
class Deviation:
    """Of each head [H]: ‖out − full‖ / ‖full‖ and the cosine of both, over samples, queries and
    width."""

    relative_error: list[float]
    cosine: list[float]


def deviation(
    core: AttentionVariant,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask,
    *,
    cross: bool,
) -> Deviation:
    """Deviation of `core` from full attention in float64.

    q [B, H, N, D], k [B, H, M, D], v [B, H, M, V]. Queries that are padding themselves do not
    count. Raises `UnsupportedAttention` for what the variant does not honour, `Diverged` when its
    output is not finite.
    """
    with torch.no_grad():
        out = attend(core, q, k, v, mask, cross=cross)[0].double()
        full = make_core("full", q.shape[1], q.shape[-1], device=q.device, dtype=torch.float64)
        exact = attend(full, q.double(), k.double(), v.double(), mask, cross=cross)[0]
    if mask.key_padding is not None and not cross:
        exists = mask.key_padding[:, None, :, None]
        out, exact = out * exists, exact * exists
    out, exact = (x.transpose(0, 1).flatten(1) for x in (out, exact))
    broken = int((~out.isfinite()).sum())
    if broken:
        raise Diverged(f"{broken} of {out.numel()} numbers of the output are NaN or infinite")
    error = (out - exact).norm(dim=1) / exact.norm(dim=1)
    cosine = torch.nn.functional.cosine_similarity(out, exact, dim=1)
    return Deviation(error.tolist(), cosine.tolist())


class FidelitySubject:
    """One variant under one workload, compared with full attention on random tensors."""

    def __init__(
        self, variant: str, options: dict[str, Any], workload: Workload, scale: float, draws: int
    ) -> None:
        if workload.threads is not None:
            torch.set_num_threads(workload.threads)
        self.variant, self.options, self.workload = variant, options, workload
        self.scale, self.draws = scale, draws

    def compare(self, report: Callable[[int, int], None]) -> dict[str, Any]:
        """The result, as a dict of `FidelityResult`, and the options in effect.

        Every draw has q, k and v of its own, and random features or projections of its own where
        the variant has an option ``seed``: draw d takes that seed plus d.
        """
        found: list[Deviation] = []
        first = self._core(0)
        for draw in range(self.draws):
            core = self._core(draw)
            q, k, v = random_inputs(self.workload, self.scale, draw)
            found.append(deviation(core, q, k, v, self._mask(), cross=self.workload.cross))
            report(draw + 1, self.draws)
        errors = [statistics.fmean(one.relative_error) for one in found]
        cosines = [statistics.fmean(one.cosine) for one in found]
        error = mean_interval(errors)
        result = FidelityResult(
            relative_error=error.value,
            error_low=error.low if error.known else None,
            error_high=error.high if error.known else None,
            cosine=statistics.fmean(cosines),
            errors=errors,
            cosines=cosines,
            parameters=sum(weight.numel() for weight in first.parameters()),
        )
        return {
            "result": asdict(result),
            "options": asdict(first.options),
            "threads": torch.get_num_threads(),
        }

    def _core(self, draw: int) -> AttentionVariant:
        w = self.workload
        resolved = resolve_options(self.variant, self.options, max_len=w.keys)
        if "seed" in resolved:
            resolved["seed"] += draw
        where: dict[str, Any] = {"device": w.device, "dtype": getattr(torch, w.dtype)}
        return make_core(self.variant, w.heads, w.head_dim, **where, **resolved).eval()

    def _mask(self) -> AttentionMask:
        w = self.workload
        if not w.padding:
            return AttentionMask(w.causal)
        exists = torch.arange(w.keys, device=w.device) < w.keys - int(w.padding * w.keys)
        return AttentionMask(w.causal, exists.expand(w.batch, -1))


def random_inputs(workload: Workload, scale: float, draw: int) -> tuple[Tensor, Tensor, Tensor]:
    """Independent normal q [B, H, N, D], k and v [B, H, M, D] of standard deviation `scale`."""
    w = workload
    normal = generator("fidelity", w.seed, draw)

    def drawn(length: int) -> Tensor:
        values = normal.standard_normal((w.batch, w.heads, length, w.head_dim))
        return torch.from_numpy(scale * values).to(w.device, getattr(torch, w.dtype))

    return drawn(w.length), drawn(w.keys), drawn(w.keys)
