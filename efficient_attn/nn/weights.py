"""Weights of a trained model around another attention: only the cores differ."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def take_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of the same model, whatever attention it was trained with.

    weights: its `state_dict`. The cores of attention keep what they have of their own (random
    features, projections along the length, biases); all else must be there, under its name and in
    its shape: ValueError says what is not.
    """
    own = {name: value for name, value in model.state_dict().items() if _in_core(name)}
    shared = {name: value for name, value in weights.items() if not _in_core(name)}
    try:
        model.load_state_dict({**shared, **own})
    except RuntimeError as error:
        raise ValueError(
            f"these weights are of another model than this {type(model).__name__}; models may "
            f"differ in the variant of attention alone: {error}"
        ) from error


def _in_core(name: str) -> bool:
    return "core" in name.split(".")
