"""What is computed: coupling, normalisers, precision, windows, lengths. Kinds 5 to 9."""

from __future__ import annotations

from attention.mutants.base import (
    FULL,
    GRID,
    KERNELS,
    LINFORMER,
    LOCAL,
    MASKS,
    PERFORMER,
    PERFORMER_KERNEL,
    SHIFTED,
    WINDOWS,
    Mutation,
)

COUPLING = [
    Mutation(
        5,
        "keys are relative to the largest of the batch",
        "performer",
        PERFORMER,
        "log_k.detach().amax(-2, keepdim=True)",
        "log_k.detach().amax((0, 1, 2), keepdim=True)",
    ),
    Mutation(
        5,
        "projected keys are centred over the batch",
        "linformer",
        LINFORMER,
        "return F.scaled_dot_product_attention(q, k, v",
        "return F.scaled_dot_product_attention(q, k - k.mean(0, keepdim=True), v",
    ),
    Mutation(
        5,
        "every sample is padded like the first",
        "local_window",
        LOCAL,
        "_banded(q1, k1, v1, band, exists, dropout_p)",
        "_banded(q1, k1, v1, band, mask.key_padding[:1], dropout_p)",
    ),
    Mutation(
        5,
        "the heads of one sample read the padding of others",
        "shifted_window",
        SHIFTED,
        "exists = mask.key_padding.repeat_interleave(H, 0)",
        "exists = mask.key_padding.repeat(H, 1)",
    ),
    Mutation(
        5,
        "weights written out: scores are relative to the batch, with an epsilon",
        "full",
        MASKS,
        "        return scores.softmax(-1).to(q.dtype)\n",
        "        scores = (scores - scores.amax()).exp()\n"
        "        return (scores / (scores.sum(-1, keepdim=True) + 1e-9)).to(q.dtype)\n",
    ),
]

NORMALISERS = [
    Mutation(
        6,
        "an epsilon in the normaliser",
        "performer",
        PERFORMER,
        "normaliser = sums[..., -1:]\n",
        "normaliser = sums[..., -1:] + 1e-6\n",
    ),
    Mutation(
        6,
        "a small normaliser is taken for none",
        "performer",
        PERFORMER,
        "empty = normaliser == 0\n",
        "empty = normaliser < 1e-4\n",
    ),
    Mutation(
        6,
        "a normaliser that vanished in fp32 is trusted",
        "performer",
        PERFORMER,
        ".detach() < LOST",
        ".detach() < 0.0",
    ),
    Mutation(
        6,
        "exponents of queries without their maximum",
        "performer",
        PERFORMER,
        "phi_q = (exponents - exponents.detach().amax(-1, keepdim=True)).exp()",
        "phi_q = exponents.exp()",
    ),
    Mutation(
        6,
        "the kernel sums keys without relation to those of earlier spans",
        "performer",
        PERFORMER_KERNEL,
        "sums.mul_(kept.transpose(-1, -2)).add_(",
        "sums.add_(",
    ),
    Mutation(
        6,
        "softmax written out without its maximum",
        "full",
        MASKS,
        "        return scores.softmax(-1).to(q.dtype)\n",
        "        return (scores.exp() / scores.exp().sum(-1, keepdim=True)).to(q.dtype)\n",
    ),
]

HALF_PRECISION = [
    Mutation(
        7,
        "sums in the input's own precision",
        "performer",
        PERFORMER,
        "out = compute(q.to(dtype), k.to(dtype), values, exists)",
        "out = compute(q, k, values.to(q.dtype), exists)",
    ),
    Mutation(
        7,
        "autocast reaches the sums",
        "performer",
        PERFORMER,
        "enabled=False):\n"
        "            dtype = torch.promote_types(q.dtype, torch.float32)\n"
        "            values",
        "enabled=torch.is_autocast_enabled(q.device.type)):\n"
        "            dtype = torch.promote_types(q.dtype, torch.float32)\n"
        "            values",
    ),
    Mutation(
        7,
        "scores written out in half precision",
        "full",
        MASKS,
        "dtype = torch.promote_types(q.dtype, torch.float32)",
        "dtype = q.dtype",
    ),
    Mutation(
        7,
        "a mask's lowest number is added to scores",
        "full",
        MASKS,
        "added = self.pairwise.masked_fill(~_seen(self.pairwise), 0.0)",
        "added = self.pairwise",
    ),
]

OFF_BY_ONE = [
    Mutation(
        8,
        "the left end of the window is open",
        "local_window",
        LOCAL,
        "(j >= i - left)",
        "(j > i - left)",
    ),
    Mutation(
        8,
        "the right end of the band is open",
        "local_window",
        LOCAL,
        "slot <= row[:, None] + left + right",
        "slot < row[:, None] + left + right",
    ),
    Mutation(
        8,
        "one global token too many",
        "local_window",
        LOCAL,
        "(j < self.options.global_tokens)",
        "(j <= self.options.global_tokens)",
    ),
    Mutation(
        8,
        "windows start one token early",
        "shifted_window",
        SHIFTED,
        "front = -shift % T\n",
        "front = (1 - shift) % T\n",
    ),
    Mutation(
        8,
        "its kernel shows one key too many on the right",
        "local_window",
        LOCAL,
        "(j > i[:, None] + right)",
        "(j > i[:, None] + right + 1)",
    ),
]

DIVISIBILITY = [
    Mutation(
        9,
        "the zeros that fill a window are attended to",
        "shifted_window",
        SHIFTED,
        "F.pad(exists, (front, back))",
        "F.pad(exists, (front, back), value=True)",
    ),
    Mutation(
        9,
        "the zeros around the band are attended to",
        "local_window",
        LOCAL,
        "F.pad(real & (torch.arange(N, device=device) >= G), (left, tail + right))",
        "F.pad(real & (torch.arange(N, device=device) >= G), (left, tail + right), value=True)",
    ),
    Mutation(
        9,
        "the roll joins far corners",
        "shifted_window",
        GRID,
        '(tokens - shift).div(window, rounding_mode="floor"), -2)',
        "torch.zeros_like(tokens), -2)",
    ),
    Mutation(
        9,
        "an axis shorter than its window is shifted",
        "shifted_window",
        GRID,
        "0 if length <= size else shift",
        "shift",
    ),
    Mutation(
        9,
        "keys after the last whole chunk are left out",
        "performer",
        PERFORMER,
        "_parts(k, values, exists, CHUNK)\n",
        "_parts(k, values, exists, CHUNK)[: max(1, k.shape[-2] // CHUNK)]\n",
    ),
    Mutation(
        9,
        "a chunk that is not full is aligned as if it were",
        "full",
        FULL,
        "keep = causal_keep(n, seen, q.device)",
        "keep = causal_keep(size, seen, q.device)[:n]",
    ),
    Mutation(
        9,
        "its kernel starts the last block of a sequence one row late",
        "local_window",
        LOCAL,
        "(high * C, N, high * C - left, N)",
        "(high * C, N, high * C - left + 1, N)",
    ),
    Mutation(
        9,
        "its kernel gives the first, partial window the bias of a whole one",
        "shifted_window",
        SHIFTED,
        "(1, 0, first, T - shift)",
        "(1, 0, first, 0)",
    ),
    Mutation(
        9,
        "its kernel lets rows that no token has take part",
        "shifted_window",
        GRID,
        "& (group != -2)[:, None, :]",
        "",
    ),
    Mutation(
        9,
        "the gradient of the bias is that of the last windows only",
        "shifted_window",
        WINDOWS,
        "dbias[some, window, window] += dS.sum(1)",
        "dbias[some, window, window] = dS.sum(1)",
    ),
    Mutation(
        9,
        "gradients come back in the order of the windows",
        "shifted_window",
        f"{KERNELS}/order.py",
        "return reordered(gradient, place, order), None, None",
        "return gradient, None, None",
    ),
]

COMPUTING = [*COUPLING, *NORMALISERS, *HALF_PRECISION, *OFF_BY_ONE, *DIVISIBILITY]
