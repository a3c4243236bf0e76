"""Peak bytes above the inputs of every variant's core, by hand: the tensors alive at the peak.

One function per variant, in `FORMULAS`. It returns the terms of the peak by name; where two moments
of a pass compete, `most` takes the larger. Left out are terms of a few kilobytes: rows of flags,
index vectors, scalars.

The workspace of torch's fused CPU kernel follows aten/src/ATen/native/cpu/FlashAttentionKernel.cpp:
each thread has a block of scores, two numbers per row and a block of the output, in fp32; in half
precision also a copy of the block of scores. Where the machine multiplies bf16 by tiles (AMX), keys
and values are packed for it when queries are many enough to pay for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from efficient_attn.attention.kernels import blockwise as blockwise_kernel
from efficient_attn.attention.kernels.parts import Part
from efficient_attn.attention.variants import local_window, performer, shifted_window
from efficient_attn.bench.passes import Call
from efficient_attn.bench.workload import Workload

BOOL, FP32, INT64 = 1, 4, 8
BLOCK_OF_KEYS = 512

Terms = dict[str, int]


@dataclass(frozen=True)
class Sizes:
    """batch: B; heads: A, B times heads; N queries and keys of width D; itemsize: bytes of a
    number."""

    batch: int
    heads: int
    N: int
    D: int
    itemsize: int
    threads: int
    causal: bool
    backward: bool

    @property
    def half(self) -> bool:
        return self.itemsize < FP32

    @property
    def tensor(self) -> int:
        """A tensor of the size of q."""
        return self.heads * self.N * self.D * self.itemsize

    @property
    def fp32(self) -> int:
        """The same in fp32."""
        return self.heads * self.N * self.D * FP32


def by_hand(call: Call, workload: Workload) -> Terms:
    """Terms of the peak of this call. LookupError for a variant without a formula."""
    core = call.subject.core
    if core.name not in FORMULAS:
        raise LookupError(
            f"{core.name} has no formula for its peak memory: write a function with the tensors "
            "alive at the peak in tests/bench/memory_by_hand.py and enter it in FORMULAS"
        )
    sizes = Sizes(
        batch=workload.batch,
        heads=workload.batch * workload.heads,
        N=workload.length,
        D=workload.head_dim,
        itemsize=getattr(torch, workload.dtype).itemsize,
        threads=torch.get_num_threads(),
        causal=workload.causal,
        backward=call.backward,
    )
    return FORMULAS[core.name](sizes, core.options)


def most(*moments: Terms) -> Terms:
    return max(moments, key=lambda terms: sum(terms.values()))


def blocks_of(queries: int, keys: int) -> int:
    """Scores in a thread's block of the fused kernel."""
    rows = 256 if queries >= 768 else 64 if queries >= 192 else 32
    return min(rows, queries) * min(BLOCK_OF_KEYS, keys)


def fused_forward(s: Sizes, problems: int, queries: int, keys: int) -> Terms:
    """What the fused kernel makes for `problems` of `queries` rows each."""
    scores = blocks_of(queries, keys)
    rows = scores // min(BLOCK_OF_KEYS, keys)
    per_thread = FP32 * (scores + 2 * rows + rows * s.D) + s.half * s.itemsize * scores
    packed = 0
    if s.half and torch.cpu._is_amx_tile_supported():
        shares = -(-problems * -(-queries // rows) // s.threads)  # blocks of queries of a thread
        if shares * rows >= 4 * problems:
            block = min(BLOCK_OF_KEYS, keys)
            packed = (2 * problems * keys + s.threads * block) * s.D * s.itemsize
    return {
        "output": problems * queries * s.D * s.itemsize,
        "log-sum-exp": problems * queries * FP32,
        "workspace": s.threads * per_thread,
        "packed keys and values": packed,
    }


def fused_backward(s: Sizes, problems: int, queries: int, keys: int) -> Terms:
    """The same for the backward kernel, beside the output and log-sum-exp of the forward one.

    The gradient of the output is copied, heads inside, unless there is one head only.
    """
    scores = blocks_of(queries, keys)
    block = min(BLOCK_OF_KEYS, keys)
    tiles = s.half and torch.cpu._is_amx_tile_supported()
    packed = (block + 3 * scores // block) * s.D * s.itemsize if tiles else 0
    forward = fused_forward(s, problems, queries, keys)
    return {
        "output": forward["output"],
        "log-sum-exp": forward["log-sum-exp"],
        "gradients of q, k and v": problems * (queries + 2 * keys) * s.D * s.itemsize,
        "contiguous gradient of the output": forward["output"],
        "workspace": s.threads * (2 * scores * (FP32 + s.half * s.itemsize) + packed),
    }


def full(s: Sizes, options: Any) -> Terms:
    if options.implementation == "naive":
        return naive(s)
    return (fused_backward if s.backward else fused_forward)(s, s.heads, s.N, s.N)


def naive(s: Sizes) -> Terms:
    """Scores are fp32 and live until the probabilities are ready, which is before the output."""
    scores = s.heads * s.N**2 * FP32
    mask = s.causal * s.N**2 * BOOL
    rounded = s.half * s.heads * s.N**2 * s.itemsize
    softmax = {"scores": scores, "probabilities": scores, "mask": mask}
    if not s.backward:
        masking = {"scores": scores, "masked scores": scores, "mask and its inverse": 2 * mask}
        return most(masking, {**softmax, "rounded probabilities": rounded})
    saved = {"scaled q": s.fp32, "k in fp32": s.half * s.fp32}
    end_of_forward = {
        **softmax,
        **saved,
        "inverted mask": mask,
        "rounded probabilities": rounded,
    }
    backward = {
        **saved,
        "inverted mask": mask,
        "probabilities": scores,
        "their gradient": scores,
        "gradient of the scores": scores,
        "output": s.tensor,
        "gradient of v": s.tensor,
    }
    return most(end_of_forward, backward)


def linformer(s: Sizes, options: Any) -> Terms:
    """The fused kernel over k rows; E and F are shared by the heads and have max_len = N columns.

    In the backward pass the heads of a sample's keys are copied beside each other, while the
    gradient of E is computed, the last.
    """
    rows = 2 * s.heads * options.k * s.D * s.itemsize
    if not s.backward:
        return {"projected keys and values": rows, **fused_forward(s, s.heads, s.N, options.k)}
    return {
        "output": s.tensor,
        "gradients of q, k and v": 3 * s.tensor,
        "gradients of E and F": 2 * options.k * s.N * s.itemsize,
        "gradient of the projected keys": rows // 2,
        "a sample's keys, heads side by side": (s.heads > s.batch) * s.tensor // s.batch,
    }


def blockwise(s: Sizes, parts: Sequence[Part], heads: int) -> Terms:
    """Parts of `heads` heads each, whose masks are kept for the backward pass.

    One part that has all queries leaves its output as the answer; several are put together.
    """
    masks = {"masks": sum(part.mask.nbytes for part in parts if part.mask is not None)}
    answer = {"answer": s.tensor, "its log-sum-exp": s.heads * s.N * FP32}
    if not s.backward:
        fused = [fused_forward(s, part.blocks * heads, part.rows, part.span) for part in parts]
        together = {} if len(parts) == 1 else answer
        return {**masks, **together, **most(*fused)}
    pieces = [
        piece
        for part in parts
        for piece in part.split(max(1, blockwise_kernel.WORKSPACE // part.block_size))
    ]
    scores = max(piece.blocks * piece.block_size for piece in pieces)
    gradients = {"gradients of q, k and v, in fp32": 3 * s.fp32}
    loop = {
        "exponents and dots": 2 * s.heads * s.N * FP32,
        "scores and their gradients": 2 * scores * FP32,
        "q, k, v and the gradient of a head in fp32": s.half * 4 * s.N * s.D * FP32,
        "mask to base 2": max(part.mask.nbytes for part in parts if part.mask is not None)
        if masks["masks"]
        else 0,
    }
    rounded = {"gradients of q, k and v": s.half * 3 * s.tensor}
    return {**masks, **answer, **gradients, **most(loop, rounded)}


def local(s: Sizes, options: Any) -> Terms:
    left, right = options.sides
    parts = local_window._parts(s.N, left, 0 if s.causal else right, None)
    return blockwise(s, parts, s.heads)


def shifted(s: Sizes, options: Any) -> Terms:
    """On a sequence."""
    (T,), (shift,) = options.windows, options.shifts
    parts = shifted_window._sequence_parts(s.N, T, shift, causal=s.causal)
    return blockwise(s, parts, s.heads)


def favor(s: Sizes, options: Any) -> Terms:
    """Computed in fp32 by chunks; values end in a 1, so that the sums include the normaliser."""
    return (favor_causal if s.causal else favor_noncausal)(s, options.num_features)


class Favor:
    """What both forms of FAVOR+ with R features have in common."""

    def __init__(self, s: Sizes, R: int) -> None:
        C = performer.CHUNK
        self.chunks = -(-s.N // C)
        self.last = s.N - (self.chunks - 1) * C
        self.values = s.heads * s.N * (s.D + 1) * FP32
        self.features = s.heads * s.N * R * FP32
        self.features_of_last = s.heads * self.last * R * FP32
        self.state = s.heads * R * (s.D + 1) * FP32
        self.scores = s.heads * s.N * C * FP32
        self.cast = s.half * self.chunks * R * s.D * FP32  # W in fp32, anew for each chunk
        self.inputs: Terms = {"q and k in fp32": s.half * 2 * s.fp32, "values and a 1": self.values}


def favor_noncausal(s: Sizes, R: int) -> Terms:
    f = Favor(s, R)
    joined = {
        **f.inputs,
        "log features of the last chunks of q and k": 2 * f.features_of_last,
        "sums, and the last term of them": 2 * f.state,
        "answers of the chunks": s.fp32,
        "joined answers": s.fp32,
    }
    if not s.backward:
        return {**joined, "features of the last chunk of q": f.features_of_last}
    end_of_forward = {
        **joined,
        "features of q and k": 2 * f.features,
        "W in fp32 for q and k": 2 * f.cast,
        "scaled k": s.fp32,
        "numerators": f.values,
    }
    # When the gradients of the first chunk reach k and the values, each through a tensor of zeros.
    backward = {
        "values and a 1": f.values,
        "output": s.tensor,
        "features of k": f.features,
        "W in fp32 for k": f.cast,
        "scaled k": s.fp32,
        "gradient of q": s.fp32,
        "gradient of k": s.fp32,
        "gradient of the values, and zeros around that of a chunk": 2 * f.values,
    }
    return most(end_of_forward, backward)


def favor_causal(s: Sizes, R: int) -> Terms:
    f = Favor(s, R)
    graph = {
        "features of q and k": 2 * f.features,
        "W in fp32 for q and k": 2 * f.cast,
        "scaled k": s.fp32,
        "scales of keys to queries": f.scores,
        "scaled scores": f.scores,
        "scaled values": f.values * (s.N - f.last) // s.N,
        "states before the chunks": f.chunks * f.state,
    }
    end_of_forward = {
        **f.inputs,
        "log features of the last chunks of q and k": 2 * f.features_of_last,
        "last state": f.state,
        "sums of the chunks": f.values,
        "joined sums": f.values,
        "quotient": s.fp32,
        "quotient with zeros": s.fp32,
    }
    if not s.backward:
        return end_of_forward
    # In the backward pass of the division, the first.
    backward = {
        **graph,
        "values and a 1": f.values,
        "joined sums": f.values,
        "output": s.tensor,
        "gradient of the quotient with zeros": s.fp32,
        "gradients of numerator and normaliser": 4 * s.fp32,
    }
    return most({**end_of_forward, **graph}, backward)


FORMULAS: dict[str, Callable[[Sizes, Any], Terms]] = {
    "full": full,
    "linformer": linformer,
    "local_window": local,
    "performer": favor,
    "shifted_window": shifted,
}
