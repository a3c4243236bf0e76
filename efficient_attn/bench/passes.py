"""What is called when a pass of a workload is measured: tensors, module, and one call of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.attention import (
    AttentionMask,
    MultiHeadAttention,
    make_core,
    resolve_options,
    variant_class,
)
from efficient_attn.attention.apply import attend
from efficient_attn.attention.variant import AttentionVariant
from efficient_attn.bench.workload import Workload
from efficient_attn.nn import TransformerEncoderLayer

FEED_FORWARD = 4
"""Width of a block's feed-forward over the width of the model."""

Forward = Callable[[], Tensor]


@dataclass
class Subject:
    """module: of the workload's scope; core: the variant inside; leaves: get gradients; state:
    makes the decoding state after the prompt, for passes that have one."""

    module: nn.Module
    core: AttentionVariant
    forward: Forward
    leaves: list[Tensor]
    state: Callable[[], Any] | None = None


class Call:
    """One pass over a subject; `reset` before each undoes what the one before left behind."""

    def __init__(self, subject: Subject, workload: Workload) -> None:
        self.subject = subject
        self.backward = workload.backward
        self.forward = torch.compile(subject.forward) if workload.compile else subject.forward
        self.gradient: Tensor | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        if self.backward:
            for leaf in subject.leaves:
                leaf.requires_grad_(True)
        if workload.pass_ == "train_step":
            self.optimizer = torch.optim.AdamW(subject.module.parameters(), lr=1e-6)

    def __call__(self) -> Tensor:
        if not self.backward:
            with torch.no_grad():
                return self.forward()
        out = self.forward()
        if self.gradient is None:
            self.gradient = torch.randn_like(out)
        out.backward(self.gradient)
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return out

    def reset(self) -> None:
        for leaf in self.subject.leaves:
            leaf.grad = None


def build(variant: str, options: dict[str, Any], workload: Workload) -> Call:
    """The call of a workload. ValueError for one that contradicts itself."""
    if workload.contradiction:
        raise ValueError(workload.contradiction)
    torch.manual_seed(workload.seed)
    decoding = workload.pass_ in ("prefill", "decode")
    if workload.scope == "core":
        subject = (_core_decoding if decoding else _core)(variant, options, workload)
    elif workload.scope == "module":
        subject = (_module_decoding if decoding else _module)(variant, options, workload)
    else:
        subject = _block(variant, options, workload)
    call = Call(subject, workload)
    subject.module.train(call.backward)
    return call


def _core(variant: str, options: dict[str, Any], w: Workload) -> Subject:
    core = _make_core(variant, options, w)
    q = torch.randn(w.batch, w.heads, w.length, w.head_dim, **_place(w))
    k, v = (torch.randn(w.batch, w.heads, w.keys, w.head_dim, **_place(w)) for _ in range(2))
    exists = _exists(w)
    mask = AttentionMask(w.causal, exists)

    def forward() -> Tensor:
        return attend(core, q, k, v, mask, cross=w.cross)[0]

    return Subject(core, core, forward, [q, k, v, *core.parameters()])


def _core_decoding(variant: str, options: dict[str, Any], w: Workload) -> Subject:
    core = _make_core(variant, options, w).eval()

    def tokens(n: int) -> list[Tensor]:
        return [torch.randn(w.batch, w.heads, n, w.head_dim, **_place(w)) for _ in range(3)]

    (q, k, v), (q1, k1, v1) = tokens(w.length), tokens(1)

    def prefill() -> tuple[Tensor, Any]:
        return core.step(q, k, v, core.init_state(w.batch, **_place(w)))

    return _decoding(core, core, prefill, lambda state: core.step(q1, k1, v1, state), w)


def _module(variant: str, options: dict[str, Any], w: Workload) -> Subject:
    module = _make_module(variant, options, w)
    width = w.heads * w.head_dim
    query = torch.randn(w.batch, w.length, width, **_place(w))
    key = torch.randn(w.batch, w.keys, width, **_place(w)) if w.cross else query
    exists = _exists(w)
    padding = None if exists is None else ~exists

    def forward() -> Tensor:
        return module(query, key, key, key_padding_mask=padding, is_causal=w.causal)[0]

    leaves = [query, *([key] if w.cross else []), *module.parameters()]
    return Subject(module, module.core, forward, leaves)


def _module_decoding(variant: str, options: dict[str, Any], w: Workload) -> Subject:
    module = _make_module(variant, options, w).eval()
    width = w.heads * w.head_dim
    prompt, token = (torch.randn(w.batch, n, width, **_place(w)) for n in (w.length, 1))

    def prefill() -> tuple[Tensor, Any]:
        return module.step(prompt, module.init_state(w.batch))

    return _decoding(module, module.core, prefill, lambda state: module.step(token, state), w)


def _decoding(
    module: nn.Module,
    core: AttentionVariant,
    prefill: Callable[[], tuple[Tensor, Any]],
    step: Callable[[Any], tuple[Tensor, Any]],
    w: Workload,
) -> Subject:
    """Prefill, or one token on from its state, which every call starts from anew."""
    if w.pass_ == "prefill":
        return Subject(module, core, lambda: prefill()[0], [], lambda: prefill()[1])
    with torch.no_grad():
        state = prefill()[1]
    return Subject(module, core, lambda: step(state)[0], [], lambda: state)


def _block(variant: str, options: dict[str, Any], w: Workload) -> Subject:
    width = w.heads * w.head_dim
    block = TransformerEncoderLayer(
        width,
        w.heads,
        FEED_FORWARD * width,
        dropout=0.0,
        variant=variant,
        variant_options=options,
        max_len=w.keys,
        **_place(w),
    )
    x = torch.randn(w.batch, w.length, width, **_place(w))
    exists = _exists(w)
    padding = None if exists is None else ~exists

    def forward() -> Tensor:
        return block(x, src_key_padding_mask=padding, is_causal=w.causal)

    return Subject(block, block.self_attn.core, forward, [x, *block.parameters()])


def _make_core(variant: str, options: dict[str, Any], w: Workload) -> AttentionVariant:
    resolved = resolve_options(variant, options, max_len=w.keys)
    return make_core(variant, w.heads, w.head_dim, **_place(w), **resolved)


def _make_module(variant: str, options: dict[str, Any], w: Workload) -> Any:
    """`MultiHeadAttention`, or the module that a core brings with projections of its own: it has
    `core` and is called alike."""
    whole = getattr(variant_class(variant), "whole_module", None)
    if whole is not None:
        return whole(_make_core(variant, options, w))
    resolved = resolve_options(variant, options, max_len=w.keys)
    return MultiHeadAttention(w.heads * w.head_dim, w.heads, variant, **_place(w), **resolved)


def _place(w: Workload) -> dict[str, Any]:
    return {"device": w.device, "dtype": getattr(torch, w.dtype)}


def _exists(w: Workload) -> Tensor | None:
    """Bool [B, M], False at the padding; None without padding."""
    if not w.padding:
        return None
    exists = torch.ones(w.batch, w.keys, dtype=torch.bool, device=w.device)
    exists[:, w.keys - int(w.padding * w.keys) :] = False
    return exists
