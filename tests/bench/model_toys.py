"""Models that bench-model is asked about, found by worker processes under this module's name."""

from __future__ import annotations

import torch
from torch import nn

from efficient_attn.nn import LanguageModel


def language_model(length, batch):
    model = LanguageModel(32, max_len=length, d_model=16, nhead=2, num_layers=2)
    return model, torch.randint(32, (batch, length))


def encoder(length, batch):
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1), {"src": torch.randn(batch, length, 16)}


def nothing_to_swap(length, batch):
    return nn.Linear(4, 4), torch.randn(batch, length, 4)
