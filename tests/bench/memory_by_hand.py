"""Peak bytes above the inputs of every variant's core, by hand: the tensors alive at the peak.

One function per variant, in `FORMULAS`. It returns the terms of the peak by name; where two moments
of a pass compete, `most` takes the larger. Left out are terms of a few kilobytes: rows of flags,
index vectors, scalars.

The workspace of torch's fused CPU kernel follows aten/src/ATen/native/cpu/FlashAttentionKernel.cpp:
each thread has a block of scores, two numbers per row and a block of the output, in fp32; in half
precision also a copy of the block of scores. Where the machine multiplies bf16 by tiles (AMX), keys
and values are packed for it from 64 queries on (as observed, with 1, 2 and 4 threads).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from efficient_attn.attention.kernels import blockwise as blockwise_kernel
from efficient_attn.attention.kernels import performer_causal, performer_pieces
from efficient_attn.attention.kernels.flash import flash, flash_gradients
from efficient_attn.attention.kernels.parts import Part
from efficient_attn.attention.kernels.windows import at_once
from efficient_attn.attention.variants import local_window, shifted_window
from efficient_attn.bench import memory
from efficient_attn.bench.passes import Call
from efficient_attn.bench.workload import Workload

BOOL, FP32, INT64 = 1, 4, 8
BLOCK_OF_KEYS = 512
FEWEST_TO_PACK_FOR = 64

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
    if s.half and torch.cpu._is_amx_tile_supported() and queries >= FEWEST_TO_PACK_FOR:
        packed = (2 * problems * keys + s.threads * min(BLOCK_OF_KEYS, keys)) * s.D * s.itemsize
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
        "workspace of products": 0
        if tiles or not s.half
        else min(s.threads, problems) * left_to_onednn(queries, keys, s.D),
    }


@cache
def left_to_onednn(queries: int, keys: int, D: int) -> int:
    """What oneDNN takes for itself in a thread's products of the fused backward, which leaves them
    to it in half precision where there are no tiles: asked of a call with two heads, for the rows
    of one alone have other strides."""
    q, k, v = (torch.ones(1, 2, n, D, dtype=torch.bfloat16) for n in (queries, keys, keys))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        out, lse = flash(q, k, v)
        call = partial(flash_gradients, torch.ones_like(out), q, k, v, out, lse)
        peak = memory.peak_tensor_bytes(call, "cpu").tensor_bytes or 0
    finally:
        torch.set_num_threads(threads)
    made = sum(x.nbytes for x in (q, k, v, out))  # their gradients, that of out as a copy
    return peak - made - 2 * blocks_of(queries, keys) * (FP32 + q.itemsize)


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
        "workspace of the product": s.half * mixing_workspace(s, options.k),
    }


def blockwise(s: Sizes, parts: Sequence[Part], backward: Sequence[Part], heads: int) -> Terms:
    """Parts of `heads` heads each, whose masks are there from the beginning, for either pass.

    One part that has all queries leaves its output as the answer; several are put together.
    """

    def masks(*plans: Sequence[Part]) -> Terms:
        made = [part.mask for parts in plans for part in parts if part.mask is not None]
        return {"masks": sum({mask.data_ptr(): mask.nbytes for mask in made}.values())}

    answer = {"answer": s.tensor, "its log-sum-exp": s.heads * s.N * FP32}
    if not s.backward:
        fused = [fused_forward(s, part.blocks * heads, part.rows, part.span) for part in parts]
        together = {} if len(parts) == 1 else answer
        return {**masks(parts, backward), **together, **most(*fused)}
    pieces = [
        piece
        for part in backward
        for piece in part.split(max(1, blockwise_kernel.WORKSPACE // part.block_size))
    ]
    scores = max(
        piece.blocks
        * piece.block_size
        * min(heads, piece.heads_at_once(blockwise_kernel.WORKSPACE))
        for piece in pieces
    )
    gradients = {"gradients of q, k and v, in fp32": 3 * s.fp32}
    loop = {
        "exponents and dots": 2 * s.heads * s.N * FP32,
        "scores and their gradients": 2 * scores * FP32,
        "q, k, v and the gradient of a head in fp32": s.half * 4 * s.N * s.D * FP32,
        "mask to base 2": max(0 if part.mask is None else part.mask.nbytes for part in backward),
    }
    rounded = {"gradients of q, k and v": s.half * 3 * s.tensor}
    return {**masks(backward), **answer, **gradients, **most(loop, rounded)}


def local(s: Sizes, options: Any) -> Terms:
    left, right = options.sides
    right = 0 if s.causal else right
    forward, backward = local_window._rows(left + right)
    plans = {
        rows: local_window._parts(s.N, left, right, rows, None) for rows in {forward, backward}
    }
    return blockwise(s, plans[forward], plans[backward], s.heads)


def shifted(s: Sizes, options: Any) -> Terms:
    """On a sequence. Backward, windows are copied together, some at a time."""
    (T,), (shift,) = options.windows, options.shifts
    parts = shifted_window._sequence_parts(s.N, T, shift, causal=s.causal)
    if not s.backward:
        return blockwise(s, parts, parts, s.heads)
    scores, rows = 0, 0
    for part in parts:
        heads, windows = at_once(part, s.heads, s.D)
        together = heads * min(windows, part.blocks) * part.rows
        scores, rows = max(scores, together * part.rows), max(rows, together)
    return {
        "masks": sum(0 if part.mask is None else part.mask.nbytes for part in parts),
        "answer": s.tensor,
        "its log-sum-exp": s.heads * s.N * FP32,
        "gradients of q, k and v": 3 * s.tensor,
        "rows of q, k, v, out, its gradient, and those found": 6 * rows * s.D * s.itemsize,
        "q, k and out in fp32": s.half * 3 * rows * s.D * FP32,
        "exponents": rows * FP32,
        "weights and their gradients": 2 * scores * FP32,
        "weights and their gradients, narrow": s.half * 3 * scores * s.itemsize,
        "mask to base 2": max(0 if part.mask is None else part.mask.nbytes for part in parts),
    }


def favor(s: Sizes, options: Any) -> Terms:
    """Temporaries of one piece, which the next ones use again, beside what is kept of all.

    In half precision, products are taken of narrow copies.
    """
    return (favor_causal if s.causal else favor_noncausal)(s, options.num_features)


class Piece:
    """n tokens in all the heads of a piece; per number of them: features and rows of width D."""

    def __init__(self, s: Sizes, R: int) -> None:
        width = max(R, 4 * s.D)
        (_, heads), *_ = performer_pieces.head_groups(1, s.heads, s.N, width)
        span, *_ = performer_pieces.spans(s.N, width)
        self.heads, self.span = heads.stop - heads.start, span.stop - span.start
        self.n = self.heads * self.span
        self.state = self.heads * R * s.D * FP32
        self.constants: Terms = {"scaled features": R * s.D * FP32}


def favor_noncausal(s: Sizes, R: int) -> Terms:
    p = Piece(s, R)
    features, rows = p.n * R * FP32, p.n * s.D * FP32
    terms = {
        **p.constants,
        "output": s.tensor,
        "means of the values": s.heads * R * s.D * FP32,
        "rows in fp32": s.half * rows,
        "features": features,
        "narrow features": s.half * p.n * R * s.itemsize,
        "squares of k": rows,
        "sums of a piece": p.heads * R * s.D * s.itemsize,
        "means or their gradient": p.state,
    }
    product = {
        "workspace of the product": s.half * product_workspace(p.heads, p.span, R, s.D),
    }
    later = {
        "narrow means": s.half * p.heads * R * s.D * s.itemsize,
        "sums of a piece in fp32": s.half * p.heads * R * s.D * FP32,
        "answers, or gradients of q and v": p.n * s.D * s.itemsize,
    }
    if p.heads < s.heads:  # the temporaries of later steps are there from the piece before
        terms |= {**product, **later}
    elif s.backward:
        terms |= later
    if not s.backward:
        answering = {**terms, **later}
        if s.half and p.heads == s.heads:
            del answering["means or their gradient"]  # the narrow ones have replaced them
        return most({**terms, **product}, answering)
    return {
        **terms,
        "gradients of q, k and v": 3 * s.tensor,
        "gradient of the features": p.n * R * s.itemsize,
        "that of their logs": s.half * features,
        "output in fp32": s.half * rows,
        "gradient of k": p.n * s.D * s.itemsize,
        "the same in fp32": s.half * rows,
        "narrow constant features": s.half * R * s.D * s.itemsize,
    }


def product_workspace(heads: int, n: int, R: int, D: int) -> int:
    """What oneDNN takes for itself in a half-precision product over the tokens."""
    phi, v = (torch.ones(heads, n, width, dtype=torch.bfloat16) for width in (R, D))
    out = torch.empty(heads, R, D, dtype=torch.bfloat16)
    return asked_of(lambda: torch.bmm(phi.transpose(-1, -2), v, out=out))


def mixing_workspace(s: Sizes, k: int) -> int:
    """The same in the gradient of E, from those of the projected keys and the keys."""
    gradient, keys = (
        torch.ones(rows, s.heads // s.batch * s.D, dtype=torch.bfloat16) for rows in (k, s.N)
    )
    out = torch.empty(k, s.N, dtype=torch.bfloat16)
    return asked_of(lambda: torch.mm(gradient, keys.T, out=out))


def asked_of(product: Callable[[], object]) -> int:
    """Bytes that a product takes beside its output."""
    product()
    return memory.peak_tensor_bytes(product, "cpu").tensor_bytes or 0


def favor_causal(s: Sizes, R: int) -> Terms:
    p = Piece(s, R)
    c, C = performer_causal.chunking(p.span)
    n = p.heads * c * C
    copied = s.half or c * C > p.span
    W = s.D + 1  # values end in a 1, so that the sums include the normaliser
    narrow = s.half * s.itemsize
    sums = p.heads * R * W
    terms = {
        **p.constants,
        "output": s.tensor,
        "normalisers": s.heads * s.N * FP32,
        "q and k, padded or in fp32": copied * 2 * n * s.D * FP32,
        "features": 2 * n * R * FP32,
        "narrow features": 2 * n * R * narrow,
        "squares of k": n * s.D * FP32,
        "values and a 1, and weighted": 2 * n * W * s.itemsize,
        "scales of keys to queries": n * C * (FP32 + narrow),
        "scores": n * C * s.itemsize,
        "sums of the chunks, and before them": (2 * c + 1) * sums * FP32,
        "sums as they come from the product": c * sums * s.itemsize,
        "sums before the chunks, narrow": c * sums * narrow,
        "sums handed on": 2 * sums * FP32,
        "answers from outside and inside": 2 * n * W * s.itemsize,
        "both, and one of them in fp32": (1 + s.half) * n * W * FP32,
    }
    if not s.backward:
        return terms
    return {
        **terms,
        "gradients of q, k and v": 3 * s.tensor,
        "gradient of the weighted sums": n * W * (FP32 + narrow),
        "the same, outside": n * W * s.itemsize,
        "gradient of the features": n * R * s.itemsize,
        "gradient of q or k": n * s.D * s.itemsize,
        "the same in fp32": s.half * n * s.D * FP32,
        "narrow constant features": R * s.D * narrow,
    }


FORMULAS: dict[str, Callable[[Sizes, Any], Terms]] = {
    "full": full,
    "linformer": linformer,
    "local_window": local,
    "performer": favor,
    "shifted_window": shifted,
}
