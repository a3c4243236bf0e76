"""Models in a folder and back: config.json and model.safetensors, without a network."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from efficient_attn.attention import MultiHeadAttention
from efficient_attn.nn.weights import take_weights

if TYPE_CHECKING:
    from typing_extensions import Self

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


class Saved(nn.Module):
    """A module that remembers the arguments it was made with, and so can be made again."""

    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        names = [*inspect.signature(cls.__init__).parameters][1:]  # without self
        made.__dict__["_arguments"] = {**dict(zip(names, args, strict=False)), **kwargs}
        return made

    def save_pretrained(self, folder: str | os.PathLike[str], evidence: str = "") -> list[Path]:
        """Write config.json, model.safetensors and a model card; the paths.

        evidence: for the card, why this attention was chosen: what `pick` or `compare` printed.
        After `swap` the model is written with the attention that it has now. ValueError for a model
        that was made with what JSON cannot hold, or whose attention its arguments cannot tell.
        """
        from safetensors.torch import save_model

        from efficient_attn import __version__

        target = Path(folder)
        config = {
            "class": type(self).__name__,
            "efficient_attn": __version__,
            "dtype": str(next(self.parameters()).dtype).removeprefix("torch."),
            "arguments": _arguments_now(self),
        }
        try:
            text = json.dumps(config, indent=1, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"this {type(self).__name__} was made with an argument that a file cannot hold: "
                f"{error}"
            ) from error
        target.mkdir(parents=True, exist_ok=True)
        save_model(self, str(target / WEIGHTS))
        (target / CONFIG).write_text(text + "\n")
        (target / CARD).write_text(_card(self, config, evidence))
        return [target / name for name in (CONFIG, WEIGHTS, CARD)]

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], device: torch.device | str = "cpu", **changes: Any
    ) -> Self:
        """The model of a folder, in eval, with its weights in their dtypes.

        changes: arguments other than it was saved with, such as another variant; what a variant
        has of its own then starts fresh. FileNotFoundError and ValueError say what is amiss.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        source = Path(folder)
        config = _read(source)
        if cls.__name__ != config["class"] and cls is not Saved:
            raise ValueError(f"{source} holds a {config['class']}, not a {cls.__name__}")
        kind = getattr(import_module("efficient_attn.nn"), str(config["class"]), None)
        if not (isinstance(kind, type) and issubclass(kind, Saved) and kind is not Saved):
            raise ValueError(f"{source} holds a {config['class']}, which this version has not")
        dtype = getattr(torch, str(config.get("dtype", "float32")), None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{source / CONFIG}: there is no dtype {config['dtype']!r}")
        try:
            made = kind(**{**config["arguments"], **changes}).to(device, dtype)
        except (TypeError, ValueError) as error:
            if changes and isinstance(error, ValueError):
                raise
            raise ValueError(
                f"{source / CONFIG}: no {config['class']} of these arguments: {error}"
            ) from error
        try:
            weights = load_file(str(source / WEIGHTS), device=str(device))
        except SafetensorError as error:
            raise ValueError(f"{source / WEIGHTS} is damaged: {error}") from error
        if changes:  # of weights that are shared the file holds one
            _take_dtypes(made, weights)
            take_weights(made, {**made.state_dict(), **weights})
        else:
            _load(made, weights, source / WEIGHTS)
        return cast("Self", made.eval())


def from_pretrained(
    folder: str | os.PathLike[str], device: torch.device | str = "cpu", **changes: Any
) -> nn.Module:
    """The model that `save_pretrained` wrote, of whichever class; see `Saved.from_pretrained`."""
    return Saved.from_pretrained(folder, device, **changes)


def _read(source: Path) -> dict[str, Any]:
    missing = [name for name in (CONFIG, WEIGHTS) if not (source / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{source} has no {' and no '.join(missing)}")
    try:
        config = json.loads((source / CONFIG).read_text())
    except ValueError as error:
        raise ValueError(f"{source / CONFIG} is no JSON: {error}") from error
    if not isinstance(config, dict) or not {"class", "arguments"} <= config.keys():
        raise ValueError(f"{source / CONFIG} is no config of this package")
    return config


def _take_dtypes(made: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, value in made.state_dict(keep_vars=True).items():
        if name in weights:
            value.data = value.data.to(weights[name].dtype)


def _load(made: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """All of both, in the dtypes of the file, which holds one of weights that are shared."""
    _take_dtypes(made, weights)
    try:
        differ = made.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise ValueError(f"{path} is of another model than {CONFIG} beside it: {error}") from error
    own = made.state_dict(keep_vars=True)
    found = {id(value) for name, value in own.items() if name in weights}
    lost = [name for name in differ.missing_keys if id(own[name]) not in found]
    if lost or differ.unexpected_keys:
        unknown = ", ".join(differ.unexpected_keys) or "none"
        raise ValueError(
            f"{path} is of another model than {CONFIG} beside it; it lacks: "
            f"{', '.join(lost) or 'nothing'}; unknown: {unknown}"
        )


def _arguments_now(model: Saved) -> dict[str, Any]:
    """Those that the model was made with, and after `swap` those that make what it is now."""
    from efficient_attn.integrations.swap import CHOICE

    swapped = {name: vars(layer)[CHOICE] for name, layer in _layers(model) if CHOICE in vars(layer)}
    if not swapped:
        return model._arguments
    arguments = dict(model._arguments)
    known = inspect.signature(type(model).__init__).parameters
    if "decoder_variant" in known and arguments.get("decoder_variant") is None:
        arguments["decoder_variant"] = arguments.get("variant", "full")
        if arguments.get("decoder_variant_options") is None:
            arguments["decoder_variant_options"] = arguments.get("variant_options")
    for name, choice in swapped.items():
        role = "cross_" if name.endswith("multihead_attn") else ""
        if not role and name.startswith("decoder."):
            role = "decoder_"
        role = role if f"{role}variant" in known else ""
        arguments[f"{role}variant"], arguments[f"{role}variant_options"] = choice
    try:
        with torch.random.fork_rng(devices=[]):
            twin = type(model)(**arguments)
        why = _difference(model, twin)
    except (TypeError, ValueError) as error:  # a variant that cannot stand in all these places
        why = str(error)
    if why:
        raise ValueError(
            f"no arguments of {type(model).__name__} make the attention that `swap` gave it: "
            f"{why}. Unswap it first, or keep its state_dict and swap again after loading"
        )
    return arguments


def _layers(model: nn.Module) -> list[tuple[str, MultiHeadAttention]]:
    modules = model.named_modules()
    return [(name, module) for name, module in modules if isinstance(module, MultiHeadAttention)]


def _difference(model: nn.Module, twin: nn.Module) -> str:
    """In what the attention of the two is not the same, "" where it is. Seeds may differ: what was
    drawn is in the state dict."""
    for (name, now), (_, made) in zip(_layers(model), _layers(twin), strict=True):
        pair = [
            (layer.variant, {**asdict(layer.core.options), "seed": None}) for layer in (now, made)
        ]
        if pair[0] != pair[1]:
            return (
                f"{name} is {now.variant}, {now.core.options}, and would be {made.variant}, "
                f"{made.core.options}"
            )
    tied = [[name for name, _ in each.named_parameters()] for each in (model, twin)]
    return "" if tied[0] == tied[1] else "its layers share parameters in another way"


def _card(model: nn.Module, config: Mapping[str, Any], evidence: str) -> str:
    """The model card, in Markdown."""
    count = sum(weight.numel() for weight in model.parameters())
    arguments = "\n".join(
        f"| `{name}` | `{value!r}` |" for name, value in config["arguments"].items()
    )
    return f"""---
library_name: efficient-attn
---

# {config["class"]}

{count:,} parameters. Load it with

```python
import efficient_attn as ea

model = ea.from_pretrained("this/folder")
```

| argument | value |
|---|---|
{arguments}

## Why this attention

{evidence.strip() or "Nothing was written down."}
"""
