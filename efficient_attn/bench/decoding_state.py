"""How much a trained model carries from token to token when it decodes."""

from __future__ import annotations

from torch import nn

from efficient_attn.attention import UnsupportedAttention
from efficient_attn.nn.language_model import LanguageModel
from efficient_attn.nn.mode import evaluating
from efficient_attn.tasks import Task


def state_bytes(task: Task, model: nn.Module) -> int | None:
    """Bytes of the decoding state of all layers after one sample of the task.

    Everything that `step` hands on counts: keys and values or sums of attention, and the last
    inputs of a short convolution. None for a model that is no language model, and for a variant
    that does not decode.
    """
    if not isinstance(model, LanguageModel):
        return None
    tokens, _ = next(task.batches(0, 1))
    try:
        with evaluating(model) as device:
            _, state = model.step(tokens.to(device), model.init_state(1))
    except UnsupportedAttention:
        return None
    return state.nbytes
