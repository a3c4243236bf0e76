"""Peak bytes above the inputs of every variant's core, by hand: the tensors alive at the peak.

One function per variant, in `FORMULAS`. It returns the terms of the peak by name; where two moments
of a pass compete, `most` takes the larger. Left out are terms of a few kilobytes: rows of flags,
index vectors, scalars.

The workspace of torch's fused CPU kernel follows aten/src/ATen/native/cpu/FlashAttentionKernel.cpp:
each thread has a block of scores, two numbers per row and a block of the output, in fp32; in half
precision also a copy of the block of scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from efficient_attn.attention.kernels import performer_causal, performer_pieces
from efficient_attn.attention.variants import local_window
from efficient_attn.bench import memory
from efficient_attn.bench.passes import Call
from efficient_attn.bench.workload import Workload

BOOL, FP32, INT64 = 1, 4, 8
BLOCK_OF_KEYS = 512

Terms = dict[str, int]


@dataclass(frozen=True)
class Sizes:
    """heads: A, batch times heads; N queries and keys of width D; itemsize: bytes of a number."""

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
    return {
        "output": problems * queries * s.D * s.itemsize,
        "log-sum-exp": problems * queries * FP32,
        "workspace": s.threads * per_thread,
    }


def fused_backward(s: Sizes, problems: int, queries: int, keys: int) -> Terms:
    """The same for the backward kernel, beside the output and log-sum-exp of the forward one.

    The gradient of the output is copied, heads inside, unless there is one head only.
    """
    scores = blocks_of(queries, keys)
    forward = fused_forward(s, problems, queries, keys)
    return {
        "output": forward["output"],
        "log-sum-exp": forward["log-sum-exp"],
        "gradients of q, k and v": problems * (queries + 2 * keys) * s.D * s.itemsize,
        "contiguous gradient of the output": forward["output"],
        "workspace": s.threads * 2 * scores * (FP32 + s.half * s.itemsize),
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
    # Causal attention zeroes the probabilities of queries that see nothing in a copy.
    softmax = {"scores": scores, "probabilities": scores, "mask": mask}
    forward = {**softmax, "copy of the probabilities": scores if s.causal else rounded}
    if not s.backward:
        return forward
    saved = {"scaled q": s.fp32, "k in fp32": s.half * s.fp32}
    end_of_forward = {
        **softmax,
        **saved,
        "inverted mask": mask,
        "copy of the probabilities": s.causal * scores,
        "rounded probabilities": rounded,
    }
    backward = {
        **saved,
        "inverted mask": mask,
        "probabilities": scores,
        "their gradient": scores,
        # Causal: the copy, which the product with v has kept. Else the gradient of the scores.
        "copy, or gradient of the scores": scores,
        "output": s.tensor,
        "gradient of v": s.tensor,
    }
    return most(end_of_forward, backward)


def linformer(s: Sizes, options: Any) -> Terms:
    """The fused kernel over k rows; E and F are shared by the heads and have max_len = N columns.

    In the backward pass every head makes a gradient of E of its own before they are summed.
    """
    rows = 2 * s.heads * options.k * s.D * s.itemsize
    if not s.backward:
        return {"projected keys and values": rows, **fused_forward(s, s.heads, s.N, options.k)}
    matrix = options.k * s.N * s.itemsize
    return {
        "output": s.tensor,
        "gradients of q, k and v": 3 * s.tensor,
        "gradient of F": matrix,
        "gradients of E, head by head": s.heads * matrix,
        "gradient of E": matrix,
    }


def windows(s: Sizes, *, count: int, rows: int, keys: int, mask: Terms, padded: Terms) -> Terms:
    """`count` windows per head of `rows` queries and `keys` keys under a mask, if there is one.

    mask: bool masks alive in the forward pass, and "mask as numbers", that which the kernel adds.
    A mask means a copy of the output in which the queries that see nothing are zero.
    """
    fused = fused_forward(s, s.heads * count, rows, keys)
    numbers = {name: size for name, size in mask.items() if name == "mask as numbers"}
    flags = {name: size for name, size in mask.items() if name not in numbers}
    copy = {"output with zeros": fused["output"]} if mask else {}
    if s.backward:
        gradient = {"gradient of the output with zeros": fused["output"]} if mask else {}
        kernel = fused_backward(s, s.heads * count, rows, keys)
        return {**padded, **numbers, **copy, **gradient, **kernel}
    after = {"output": fused["output"], **copy}
    return most({**padded, **mask, **fused}, {**padded, **flags, **after})


def local(s: Sizes, options: Any) -> Terms:
    left, right = options.sides
    right = 0 if s.causal else right
    C = local_window.QUERIES_PER_BLOCK
    blocks = -(-s.N // C)
    tail = blocks * C - s.N
    span = C + left + right
    width = s.heads * s.D * s.itemsize
    padded = {
        "padded q": (tail > 0) * width * blocks * C,
        "padded k and v": 2 * width * (left + blocks * C + right),
    }
    scores = blocks * C * span  # of one head: all have the same mask
    mask = {
        "position of every slot": blocks * span * INT64,
        "who sees whom": scores * BOOL,
        "the same, with queries that see nothing": scores * BOOL,
        "mask as numbers": scores * s.itemsize,
    }
    return windows(s, count=blocks, rows=C, keys=span, mask=mask, padded=padded)


def shifted(s: Sizes, options: Any) -> Terms:
    """On a sequence."""
    (T,), (shift,) = options.windows, options.shifts
    front = -shift % T
    count = -(-(front + s.N) // T)
    pads = count * T > s.N
    padded = {"padded q, k and v": pads * 3 * s.heads * count * T * s.D * s.itemsize}
    rows = T if s.causal else 1  # without causality, every query of a window has the same mask
    scores = (count if pads else 1) * rows * T
    mask = {
        "who sees whom": scores * BOOL,
        "the same, with queries that see nothing": scores * BOOL,
        "mask as numbers": scores * s.itemsize,
    }
    if not pads and not s.causal:
        mask = {}
    return windows(s, count=count, rows=T, keys=T, mask=mask, padded=padded)


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
        return most({**terms, **product}, {**terms, **later})
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
    """What oneDNN takes for itself in a half-precision product over the tokens: asked of it."""
    phi, v = (torch.ones(heads, n, width, dtype=torch.bfloat16) for width in (R, D))
    out = torch.empty(heads, R, D, dtype=torch.bfloat16)

    def product() -> None:
        torch.bmm(phi.transpose(-1, -2), v, out=out)

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
