"""swin-transformer-pytorch (Aleksandr Chebotarev): Swin's window attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from efficient_attn.attention import Capabilities

from .base import dense, linear, merge, peer, split
from .grids import GridPeer, groups


@peer("swin-transformer-pytorch")
class SwinWindows(GridPeer):
    """`WindowAttention`, shifted, with its position bias."""

    distribution = "swin-transformer-pytorch"
    counterpart = "shifted_window"
    differs = (
        "one position bias for all heads (Swin's and ours is one a head); no bias in the packed "
        "projection; the grid must consist of whole windows"
    )
    capabilities = Capabilities()

    def __init__(self, heads: int, head_dim: int, options: Any, **place: Any) -> None:
        super().__init__(heads, head_dim, options)
        make = self.package("swin_transformer_pytorch.swin_transformer").WindowAttention
        width = heads * head_dim
        self.theirs = make(width, heads, head_dim, True, options.window, True).to(**place)

    def whole(self, x: Tensor, *, causal: bool, padding: Tensor | None) -> Tensor:
        return self.theirs(x.unflatten(1, self.grid(x.shape[1]))).flatten(1, 2)

    def token_formula(self, x: Tensor, *, causal: bool) -> Tensor:
        theirs, w = self.theirs, self.options.window
        grid = self.grid(x.shape[1])
        q, k, v = (split(part, self.heads) for part in linear(x, theirs.to_qkv).chunk(3, -1))
        row, column = (
            axis.flatten() for axis in torch.meshgrid(*map(torch.arange, grid), indexing="ij")
        )
        relative = [
            (axis[None, :] - axis[:, None]).clamp(1 - w, w - 1) + w - 1 for axis in (row, column)
        ]
        bias = theirs.pos_embedding[relative[0], relative[1]]
        keep = groups(grid, w, w // 2)
        return linear(merge(dense(q, k, v, keep, bias)), theirs.to_out)
