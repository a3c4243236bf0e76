"""Linformer: keys and values projected along the length to K rows.

Paper: Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", equation 7.

    out = softmax(Q (E·Kᵢₙ)ᵀ / √d) (F·Vᵢₙ)      E, F ∈ R^{k × max_len} learned

Sequences shorter than ``max_len`` use the first columns of E and F. Masked keys and values are set
to zero before they are projected, so that they contribute nothing. ``share`` says what is common:
"none" (E and F per head), "heads" (one E and one F), "kv" (one matrix for both), "layers" (one
matrix for both in every layer of a stack).

Cost: time and memory O(N·k) a head, and k·max_len parameters.

Where the time goes (N = 4096, k = 256, 8 heads of 64, fp32, 2 threads that multiply at 240
GFLOP/s): a module needs 9 GFLOP forward and 28 with backward, a floor of 37 and 115 ms, and takes
37 and 118, where projecting every key first took 52 and 184. A third of that is torch's fused
attention, nearly all else matrix products. A backward of the attention by hand, from its
log-sum-exp and batched products, took 46 ms for the fused one's 38; in bf16, where the fused one is
half of the whole, the products and exponentials alone take as long as it does.

It cannot be causal: every projected key mixes all positions, later ones included. The columns
belong to positions, so moving a sequence (as left padding does) changes the result: pad right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from efficient_attn.attention.arithmetic import attention_flops, product_flops
from efficient_attn.attention.errors import OptionError, require_choice, require_int
from efficient_attn.attention.kernels.flash import hand_written, wants_gradient
from efficient_attn.attention.kernels.mixing import beside_each_other, columns, mix
from efficient_attn.attention.masks import AttentionMask, dense_weights
from efficient_attn.attention.registry import Capabilities, register_variant
from efficient_attn.attention.variant import IMPLEMENTATIONS, AttentionVariant

SMALL, FEW_ROWS = 2**24, 64
"""Multiply-adds of a sample's projection up to which a product for each head is faster, and rows
projected to, below which it is."""


@dataclass(frozen=True)
class LinformerOptions:
    """k: projected length; share: none, heads, kv or layers; max_len: longest input; seed: of E, F;
    implementation: eager, formula or compiled.

    max_len must be given where nothing around the module decides it.
    """

    k: int = 256
    share: str = "heads"
    max_len: int | None = None
    seed: int = 0
    implementation: str = "eager"

    def __post_init__(self) -> None:
        require_int("k", self.k, low=1)
        require_choice("share", self.share, ["none", "heads", "kv", "layers"])
        if self.max_len is not None:
            require_int("max_len", self.max_len, low=1)
        require_int("seed", self.seed, low=0)
        require_choice("implementation", self.implementation, IMPLEMENTATIONS)


@register_variant(
    "linformer",
    paper='Wang et al. 2020, "Linformer"',
    formula="softmax(Q (E K)ᵀ/√d) (F V)",
    time="O(N·k·d)",
    memory="O(N·(d + k))",
)
class Linformer(AttentionVariant):
    """Softmax attention over k learned mixtures of all keys; linear in length, never causal."""

    Options = LinformerOptions
    capabilities = Capabilities(
        noncausal_self=True, noncausal_cross=True, key_padding=True, weights=True
    )
    refusals = {  # noqa: RUF012
        "causal_self": "each projected key mixes all positions",
        "causal_cross": "each projected key mixes all positions",
        "pairwise_mask": "projected keys belong to no single position",
        "decode": "each projected key mixes all positions",
        "rotary": "projected keys belong to no single position",
        "alibi": "projected keys belong to no single position",
    }

    def __init__(
        self,
        heads: int,
        head_dim: int,
        options: LinformerOptions,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(heads, head_dim, options)
        if options.max_len is None:
            raise OptionError(
                "linformer needs max_len, the longest sequence it will see, "
                "e.g. MultiHeadAttention(512, 8, variant='linformer', max_len=4096)"
            )
        shape = (heads if options.share == "none" else 1, options.k, options.max_len)
        self.E = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        one_matrix = options.share in ("kv", "layers")
        self.F = self.E if one_matrix else nn.Parameter(torch.empty_like(self.E))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal with variance 1/max_len: a projected row keeps the scale of a token."""
        generator = torch.Generator().manual_seed(self.options.seed)
        with torch.no_grad():
            for matrix in dict.fromkeys([self.E, self.F]):
                drawn = torch.randn(matrix.shape, generator=generator, dtype=torch.float64)
                matrix.copy_(drawn / self.options.max_len**0.5)

    @classmethod
    def resolve(
        cls,
        options: LinformerOptions,
        *,
        max_len: int | None,
        grid: tuple[int, int] | None,
        layer: int | None,
    ) -> LinformerOptions:
        if options.max_len is None and max_len is not None:
            options = replace(options, max_len=max_len)
        if layer and options.share != "layers":
            options = replace(options, seed=options.seed + layer)
        return options

    @classmethod
    def tie_layers(cls, cores: Sequence[nn.Module]) -> None:
        """Let every core with ``share="layers"`` use the first one's matrix."""
        sharing = [c for c in cores if isinstance(c, cls) and c.options.share == "layers"]
        for core in sharing[1:]:
            core.E = core.F = sharing[0].E

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        keys = _project(self.E, k, mask, self.options.max_len)
        values = _project(self.F, v, mask, self.options.max_len)
        return self.attend_shortened(q, keys, values, dropout_p)

    def shortened_length(self, keys: int, sources: tuple[int, int], width: int) -> int | None:
        """E (X Wᵀ + 1 bᵀ) = (E X) Wᵀ + (E 1) bᵀ: k rows are projected instead of all keys."""
        if len(self.E) > 1 or keys > self.options.max_len:
            return None
        K = self.options.k
        saved = sum(source * width + K * width - K * source for source in sources)
        if torch.compiler.is_compiling():  # whose program serves every length
            return K if saved > 0 else None
        return K if keys * saved > sum(K * source * width for source in sources) else None

    def shorten(self, key: Tensor, value: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor]:
        if key is not value:
            keys, values = (
                mix([matrix], x, exists, ones=True)[:, 0]
                for matrix, x in ((self.E, key), (self.F, value))
            )
            return keys, values
        matrices = [self.E] if self.E is self.F else [self.E, self.F]
        mixed = mix(matrices, key, exists, ones=True)
        return mixed[:, 0], mixed[:, -1]

    def attend_shortened(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)

    def weights(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Tensor:
        """softmax(Q (E K)ᵀ/√d) F as [B, H, N, M]: may be negative, rows need not sum to 1."""
        keys = _project(self.E, k, mask, self.options.max_len)
        weights = dense_weights(q, keys) @ columns(self.F, k.shape[-2]).to(q.dtype)
        if mask.key_padding is not None:
            weights = weights.masked_fill(~mask.key_padding[:, None, None, :], 0.0)
        return weights

    def flops(
        self,
        batch: int,
        queries: int,
        keys: int,
        *,
        causal: bool,
        backward: bool = False,
        padded: bool = False,
    ) -> int:
        """Keys and values projected to k rows, and attention to those."""
        heads, D, K = batch * self.heads, self.head_dim, self.options.k
        projection = product_flops(heads, K, keys, D) * (3 if backward else 1)
        return 2 * projection + attention_flops(heads * queries * K, D, backward=backward)

    def traffic(
        self,
        batch: int,
        queries: int,
        keys: int,
        *,
        causal: bool,
        itemsize: int,
        backward: bool = False,
        padded: bool = False,
    ) -> int:
        """The projected keys and values are written and read back; of E and F, the columns that
        the keys need are read."""
        total = super().traffic(
            batch,
            queries,
            keys,
            causal=causal,
            itemsize=itemsize,
            backward=backward,
            padded=padded,
        )
        projected = 2 * batch * self.heads * self.options.k * self.head_dim
        parameters = sum(matrix.numel() for matrix in dict.fromkeys([self.E, self.F]))
        unread = parameters // self.options.max_len * (self.options.max_len - keys)
        return total + (2 * projected - unread) * itemsize * (1 + backward)

    def shortened_work(
        self,
        batch: int,
        queries: int,
        keys: int,
        source: int,
        *,
        itemsize: int,
        backward: bool = False,
        padded: bool = False,
    ) -> tuple[int, int]:
        K, width = self.options.k, self.heads * self.head_dim
        matrices = 1 if self.E is self.F else 2
        flops = matrices * product_flops(batch, K, keys, source) * (3 if backward else 1)
        if padded:  # what each sample's own columns make of a constant
            flops += matrices * product_flops(batch, K, keys)
        pairs = batch * self.heads * queries * K
        flops += attention_flops(pairs, self.head_dim, backward=backward)
        elements = 2 * batch * width * (queries + K) + matrices * K * (keys + batch * source)
        return flops, elements * itemsize * (1 + backward) + batch * keys * padded


def _project(matrix: Tensor, x: Tensor, mask: AttentionMask, max_len: int) -> Tensor:
    """matrix [1 or H, K, max_len] on x [B, H, M, D] -> [B, H, K, D], masked rows as zeros."""
    M = x.shape[-2]
    if M > max_len:
        raise OptionError(
            f"linformer was built for max_len={max_len} and got {M} keys; build it with a larger "
            "max_len or shorten the input"
        )
    if _heads_together(matrix, x):
        rows = mix([matrix], x.transpose(1, 2), mask.key_padding)
        return rearrange(rows, "b 1 k (h d) -> b h k d", d=x.shape[-1])
    if mask.key_padding is not None:
        x = x.masked_fill(~mask.key_padding[:, None, :, None], 0.0)
    return columns(matrix, M).to(x.dtype) @ x


def _heads_together(matrix: Tensor, x: Tensor) -> bool:
    """Whether one product for all heads is faster than one for each; it may cost a copy of x."""
    K, (H, M, D) = matrix.shape[1], x.shape[1:]
    if len(matrix) > 1 or not hand_written(x, matrix) or M <= K:
        return False
    if K < FEW_ROWS or K * M * H * D <= SMALL:
        return False
    if wants_gradient(x, matrix):
        return True
    return x.dtype.itemsize < 4 or beside_each_other(x.transpose(1, 2))
