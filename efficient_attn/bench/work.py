"""What one pass of a workload must at least do: FLOPs and bytes, by formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from efficient_attn.attention import MultiHeadAttention
from efficient_attn.attention.variant import AttentionVariant
from efficient_attn.bench.workload import Workload
from efficient_attn.nn import TransformerEncoderLayer

ADAMW_PASSES = 7
"""AdamW reads parameter, gradient and both moments, and writes all but the gradient."""


@dataclass(frozen=True)
class Work:
    """flops: in matrix products, as executed, None when unknown; flops_method: ``formula`` or
    ``counter``; traffic_bytes: that the pass must at least read and write, None when unknown."""

    flops: int | None
    flops_method: str | None
    traffic_bytes: int | None


@dataclass(frozen=True)
class _Linear:
    """A linear layer on `rows` rows: weight [out, in]. shared_input: another one reads its input
    already."""

    rows: int
    weight: Tensor
    bias: Tensor | None
    shared_input: bool = False

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.weight.numel()

    @property
    def elements(self) -> int:
        """Input, output, weight and bias."""
        wide, narrow = self.weight.shape
        read = 0 if self.shared_input else self.rows * narrow
        parameters = self.weight.numel() + (0 if self.bias is None else self.bias.numel())
        return read + self.rows * wide + parameters


def work_of(module: nn.Module, core: AttentionVariant, workload: Workload) -> Work:
    """The work of `workload` on `module`, which holds `core` (and is it, in scope ``core``).

    FLOPs: the core's formula and, around it, the linear layers, whose backward costs twice their
    forward, since the input's gradient is taken too. None where the core has no formula, and for a
    compiled workload, whose program may cut a sequence otherwise than an eager call does.

    Bytes: every input, output and parameter of the core and of each linear layer once, in training
    their gradients as well, and AdamW's reads and writes. Norms, residuals and activations are left
    out: a compiler can fuse them with their neighbours.
    """
    w = workload
    backward = w.backward
    itemsize = _itemsize(w)
    rows = None if module is core else _shortened_length(core, w)
    linears = list(_linears(module, w, rows))
    if rows is None:
        flops, traffic = _core_work(core, w, backward, itemsize)
    else:
        flops, traffic = _shortened_work(core, w, backward, itemsize)
    if w.compile or core.implementation in ("compiled", "flex"):
        flops = None
    if flops is not None:
        flops += sum(linear.flops for linear in linears) * (3 if backward else 1)
    traffic += sum(linear.elements for linear in linears) * itemsize * (2 if backward else 1)
    if w.pass_ == "train_step":
        traffic += ADAMW_PASSES * sum(parameter.nbytes for parameter in module.parameters())
    return Work(flops, None if flops is None else "formula", traffic)


def _core_work(
    core: AttentionVariant, w: Workload, backward: bool, itemsize: int
) -> tuple[int | None, int]:
    if w.pass_ in ("prefill", "decode"):
        context, tokens = (0, w.length) if w.pass_ == "prefill" else (w.length, 1)
        flops = core.step_flops(w.batch, context, tokens)
        return flops, core.step_traffic(w.batch, context, tokens, itemsize)
    padded = w.padding > 0
    flops = core.flops(w.batch, w.length, w.keys, causal=w.causal, backward=backward, padded=padded)
    traffic = core.traffic(
        w.batch,
        w.length,
        w.keys,
        causal=w.causal,
        itemsize=itemsize,
        backward=backward,
        padded=padded,
    )
    return flops, traffic


def _shortened_length(core: AttentionVariant, w: Workload) -> int | None:
    """Rows of keys and values that a module projects, where its core shortens them before."""
    width = w.heads * w.head_dim
    if w.causal or w.pass_ in ("prefill", "decode") or core.implementation != "eager":
        return None
    return core.shortened_length(w.keys, (width, width), width)


def _shortened_work(
    core: AttentionVariant, w: Workload, backward: bool, itemsize: int
) -> tuple[int, int]:
    """Of a core that is given a module's inputs; in self-attention the query's projection has
    them read already."""
    width = w.heads * w.head_dim
    flops, traffic = core.shortened_work(
        w.batch,
        w.length,
        w.keys,
        width,
        itemsize=itemsize,
        backward=backward,
        padded=w.padding > 0,
    )
    if w.cross:
        traffic += w.batch * w.keys * width * itemsize * (1 + backward)
    return flops, traffic


def _linears(module: nn.Module, w: Workload, shortened: int | None) -> Iterator[_Linear]:
    """The linear layers that a pass runs through; shortened: see `_shortened_length`."""
    attention = module.self_attn if isinstance(module, TransformerEncoderLayer) else module
    if not isinstance(attention, MultiHeadAttention):
        return
    queries = w.batch * (1 if w.pass_ == "decode" else w.length)
    keys = w.batch * w.keys if w.cross else queries
    if shortened is not None:
        keys = w.batch * shortened
    assert attention.in_proj_weight is not None
    width = attention.num_heads * attention.head_dim
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    yield _Linear(queries, weight[:width], None if bias is None else bias[:width])
    shared = not w.cross and shortened is None
    yield _Linear(keys, weight[width:], None if bias is None else bias[width:], shared_input=shared)
    layers = [attention.out_proj]
    if isinstance(module, TransformerEncoderLayer):
        layers += [module.linear1, module.linear2]
    for layer in layers:
        yield _Linear(queries, layer.weight, layer.bias)


def _itemsize(w: Workload) -> int:
    return {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}[w.dtype]
