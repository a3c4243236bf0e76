"""Checkpoints and configs of transformers on disk, those with a swapped attention among them."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.integrations.swap import swap
from efficient_attn.integrations.transformers.attention import CORE, make_cores

CHOICE = "efficient_attn"
"""Of a config: {"variant", "options"}, which the checkpoint was trained with."""


def save(
    model: Any, folder: str | os.PathLike[str], variant: str, options: Mapping[str, Any]
) -> None:
    """`save_pretrained`, with the attention that the model lives with in its config."""
    setattr(model.config, CHOICE, {"variant": variant, "options": dict(options)})
    model.save_pretrained(folder)


def load(folder: str | os.PathLike[str]) -> nn.Module:
    """The model of a folder, of the class that its config names, in eval; with the attention that
    `save` wrote down, if there is one. What lies elsewhere than on this disk is not looked for.
    ValueError for weights that are damaged."""
    from safetensors import SafetensorError

    config = _config(folder)
    try:
        model = _class(config).from_pretrained(folder, local_files_only=True)
    except (SafetensorError, UnpicklingError, RuntimeError) as error:
        raise ValueError(f"the weights in {folder} are damaged: {error}") from error
    choice = getattr(config, CHOICE, None)
    if choice:
        swap(model, choice["variant"], **choice["options"])
        saved = _core_weights(Path(folder))
        if saved:
            make_cores(model)
            model.load_state_dict(saved, strict=False)
    return model.eval()


def has_weights(folder: str | os.PathLike[str]) -> bool:
    path = Path(folder)
    return path.is_dir() and any((*path.glob("*.safetensors"), *path.glob("*.bin")))


def open_for_tokens(name: str, length: int, batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model and random tokens to read, [batch, length].

    name: folder of a checkpoint; or a config.json, its folder, or an architecture's name, for fresh
    weights and as many positions as the length asks for.

    ValueError for a model of no tokens, and for a checkpoint with fewer positions.
    """
    config = _config(name)
    if getattr(config, "vocab_size", None) is None:
        raise ValueError(
            f"{type(config).__name__} reads no tokens: give a function of your own that makes "
            "model and input, --model module:function"
        )
    longest, trained = getattr(config, "max_position_embeddings", None), has_weights(name)
    skipped = _skipped(config) if longest is not None else 0
    if longest is not None and longest - skipped < length:
        if trained:
            raise ValueError(f"{name} takes at most {longest - skipped} tokens, not {length}")
        config.max_position_embeddings = length + skipped
    model = load(name) if trained else _class(config)._from_config(config)
    tokens = torch.randint(config.vocab_size, (batch, length))
    inputs = {"input_ids": tokens}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens
    return model, inputs


def _config(name: str | os.PathLike[str]) -> Any:
    import transformers

    path = Path(name)
    if path.exists():
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True)
    if path.suffix or len(path.parts) > 1:
        raise ValueError(f"there is no {name}: give a folder, a config.json or an architecture")
    return transformers.AutoConfig.for_model(str(name))


def _class(config: Any) -> Any:
    """The class that a config names; the bare model of its architecture when it names none."""
    import transformers

    for name in getattr(config, "architectures", None) or []:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    return transformers.AutoModel._model_mapping[type(config)]


def _skipped(config: Any) -> int:
    """Learned positions that no token gets: RoBERTa and its kin start at pad_token_id + 1."""
    with torch.device("meta"):
        model = _class(config)._from_config(copy.deepcopy(config))
    return max(
        (
            part.padding_idx + 1
            for name, part in model.named_modules()
            if name.endswith("position_embeddings")
            and isinstance(part, nn.Embedding)
            and part.padding_idx is not None
        ),
        default=0,
    )


def _core_weights(folder: Path) -> dict[str, Tensor]:
    """Parameters of variants, which transformers' own loader does not know."""
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update({name: x for name, x in load_file(file).items() if f".{CORE}." in name})
    return found
