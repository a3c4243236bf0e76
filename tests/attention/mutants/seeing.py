"""Who is seen: blind rows, masks dropped, padding, the future. Kinds 1 to 4."""

from __future__ import annotations

from attention.mutants.base import (
    APPLY,
    FULL,
    LINFORMER,
    LOCAL,
    MASKS,
    MIXING,
    MULTIHEAD,
    PERFORMER,
    PERFORMER_CAUSAL,
    SHIFTED,
    Mutation,
)

ROWS = [
    Mutation(
        1,
        "a blind query gets the mean of all values",
        None,
        MASKS,
        "return out.masked_fill(~alive, 0.0)",
        "return out",
    ),
    Mutation(
        1,
        "finfo.min in a float mask does not count as never",
        "full",
        MASKS,
        "return bias > torch.finfo(bias.dtype).min",
        'return bias > float("-inf")',
    ),
    Mutation(
        1,
        "weights written out: a blind row is spread over all keys",
        "full",
        MASKS,
        "return weights.masked_fill(~alive, 0.0).to(q.dtype)",
        "return weights.to(q.dtype)",
    ),
    Mutation(
        1,
        "queries before the first key copy the next one",
        "full",
        FULL,
        "return F.pad(out, (0, 0, N - M, 0))",
        "return torch.cat([out[..., :1, :].expand(*out.shape[:-2], N - M, -1), out], -2)",
    ),
    Mutation(
        1,
        "0 / 0 where there was no key",
        "performer",
        PERFORMER,
        "return (sums[..., :-1] / normaliser.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)",
        "return sums[..., :-1] / normaliser",
    ),
    Mutation(
        1,
        "masked keys and values are -inf when they are projected",
        "linformer",
        LINFORMER,
        "x = x.masked_fill(~mask.key_padding[:, None, :, None], 0.0)",
        'x = x.masked_fill(~mask.key_padding[:, None, :, None], float("-inf"))',
    ),
    Mutation(
        1,
        "what padding holds is mixed in, and a weight of zero does not undo it",
        "linformer",
        MIXING,
        "torch.where(exists[b].view(M, *[1] * (x.dim() - 2)), x[b], zero, out=scratch)",
        "torch.mul(exists[b].view(M, *[1] * (x.dim() - 2)), x[b], out=scratch)",
    ),
    Mutation(
        1,
        "the bias of padding is projected",
        "linformer",
        MIXING,
        "first.sum(-1) if exists is None else first.mv(_weight(exists, b, x))",
        "first.sum(-1)",
    ),
]

DROPPED_MASKS = [
    Mutation(
        2,
        "causal is accepted and means nothing",
        "linformer",
        LINFORMER,
        "noncausal_self=True, noncausal_cross=True",
        "causal_self=True, noncausal_self=True, noncausal_cross=True",
    ),
    Mutation(
        2,
        "causal is dropped by the fused kernel",
        "full",
        FULL,
        "dropout_p=dropout_p, is_causal=True)",
        "dropout_p=dropout_p)",
    ),
    Mutation(
        2,
        "causal is dropped beside a pairwise mask",
        "full",
        MASKS,
        "if self.causal:",
        "if self.causal and self.pairwise is None:",
    ),
    Mutation(
        2,
        "a pairwise mask is accepted and dropped",
        "performer",
        PERFORMER,
        "causal_cross=True,\n        key_padding=True,",
        "causal_cross=True,\n        key_padding=True,\n        pairwise_mask=True,",
    ),
    Mutation(
        2,
        "any pairwise mask is read as the causal one",
        None,
        APPLY,
        "if bool((seen == causal_keep(N, M, seen.device)).all()):",
        "if True:",
    ),
    Mutation(
        2,
        "padding of the keys but not of the values",
        "linformer",
        LINFORMER,
        "values = _project(self.F, v, mask, ",
        "values = _project(self.F, v, AttentionMask(), ",
    ),
    Mutation(
        2,
        "padding of the values but not of the normaliser",
        "performer",
        PERFORMER,
        "out = compute(q.to(dtype), k.to(dtype), values, exists)",
        "if exists is not None:\n"
        "                gone = ~exists[:, None, :, None]\n"
        "                rest = values[..., :-1].masked_fill(gone, 0.0)\n"
        "                values = torch.cat([rest, values[..., -1:]], -1)\n"
        "            out = compute(q.to(dtype), k.to(dtype), values, None)",
    ),
    Mutation(
        2,
        "padding along the queries",
        None,
        MASKS,
        "parts.append(self.key_padding[:, None, None, :])",
        "parts.append(self.key_padding[:, None, :, None])",
    ),
    Mutation(
        2,
        "padding is skipped at batch 1",
        None,
        MASKS,
        "if self.key_padding is not None:",
        "if self.key_padding is not None and len(self.key_padding) > 1:",
    ),
    Mutation(
        2,
        "the first padding mask is kept for ever",
        "shifted_window",
        SHIFTED,
        "exists = mask.key_padding.repeat_interleave(H, 0)",
        'given = self.__dict__.setdefault("_first", mask.key_padding)\n'
        "                exists = given.repeat_interleave(H, 0)",
    ),
    Mutation(
        2,
        "padding is dropped for the queries of global tokens",
        "local_window",
        LOCAL,
        "keep = None if mask.key_padding is None else mask.key_padding[:, None, None, :]",
        "keep = None",
    ),
    Mutation(
        2,
        "a float padding mask loses what it adds",
        "full",
        MULTIHEAD,
        "    return None, mask\n",
        "    return exists, None\n",
    ),
]

PADDING = [
    Mutation(
        3,
        "a padded key weighs little instead of nothing",
        "performer",
        PERFORMER,
        'return log_k.masked_fill(~exists[:, None, :, None], float("-inf"))',
        "return log_k.masked_fill(~exists[:, None, :, None], -20.0)",
    ),
    Mutation(
        3,
        "a short sequence takes other columns of E and F than a padded one",
        "linformer",
        MIXING,
        "return matrix[..., :M]",
        "return matrix[..., -M:]",
    ),
    Mutation(
        3,
        "causal with padding: a chunk reads the padding of later keys",
        "full",
        FULL,
        "mask.key_padding[:, None, None, :seen]",
        "mask.key_padding[:, None, None, M - seen :]",
    ),
    Mutation(
        3,
        "padding in the band is dropped",
        "local_window",
        LOCAL,
        "real = exists.repeat_interleave(H, 0)",
        "real = torch.ones_like(exists).repeat_interleave(H, 0)",
    ),
]

LEAKS = [
    Mutation(
        4,
        "a stabiliser of the whole sequence, times epsilon, in every normaliser",
        "performer",
        PERFORMER,
        "_rescued(_divide(total), ",
        "_rescued(_divide(total + 1e-6 * total[..., -1:].amax(-2, keepdim=True)), ",
    ),
    Mutation(
        4,
        "the causal kernel looks one token ahead",
        "performer",
        PERFORMER_CAUSAL,
        "decay_(ratio).tril_()",
        "decay_(ratio).tril_(1)",
    ),
    Mutation(
        4,
        "the causal kernel takes the largest key of the whole piece",
        "performer",
        PERFORMER_CAUSAL,
        "torch.maximum(top.cummax(-1).values, log_scale)",
        "torch.maximum(top.amax(-1, keepdim=True).expand_as(top), log_scale)",
    ),
    Mutation(
        4,
        "a chunk looks one token ahead",
        "performer",
        PERFORMER,
        "later = torch.ones(C, C, dtype=torch.bool, device=log_k.device).triu(1)",
        "later = torch.ones(C, C, dtype=torch.bool, device=log_k.device).triu(2)",
    ),
    Mutation(
        4,
        "in a traced program a chunk sees all of itself",
        "performer",
        PERFORMER,
        "order[None, :] >= order[:, None]",
        "order[None, :] > order[:, None]",
    ),
    Mutation(
        4, "the causal mask shows one key too many", None, MASKS, ".tril(M - N)", ".tril(M - N + 1)"
    ),
    Mutation(
        4,
        "long sequences look to the right",
        "local_window",
        LOCAL,
        "right = 0 if causal else right",
        "right = self.options.sides[1]",
    ),
    Mutation(
        4,
        "global tokens see the future",
        "local_window",
        LOCAL,
        "keep = intersect(keep, causal_keep(G, G, q.device, columns=N))",
        "keep = intersect(keep)",
    ),
    Mutation(
        4,
        "no order within a window",
        "shifted_window",
        SHIFTED,
        "keep = intersect(keep, causal_keep(T, T, q.device))",
        "keep = intersect(keep)",
    ),
    Mutation(
        4,
        "the shift depends on the length",
        "shifted_window",
        SHIFTED,
        "front = -shift % T\n",
        "front = -shift % T if N > T else 0\n",
    ),
]

SEEING = [*ROWS, *DROPPED_MASKS, *PADDING, *LEAKS]
