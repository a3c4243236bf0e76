"""Models in a folder and back: config.json and model.safetensors, without a network."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

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
        ValueError for a model that was made with what JSON cannot hold.
        """
        from safetensors.torch import save_model

        from efficient_attn import __version__

        target = Path(folder)
        config = {
            "class": type(self).__name__,
            "efficient_attn": __version__,
            "dtype": str(next(self.parameters()).dtype).removeprefix("torch."),
            "arguments": self._arguments,
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
        """The model of a folder, in eval, with its weights and their dtype.

        changes: arguments other than it was saved with, such as another variant; what a variant
        has of its own then starts fresh. FileNotFoundError and ValueError say what is amiss.
        """
        from safetensors.torch import load_file, load_model

        source = Path(folder)
        config = _read(source)
        if cls.__name__ != config["class"] and cls is not Saved:
            raise ValueError(f"{source} holds a {config['class']}, not a {cls.__name__}")
        kind = getattr(import_module("efficient_attn.nn"), config["class"], None)
        if kind is None:
            raise ValueError(f"{source} holds a {config['class']}, which this version has not")
        dtype = getattr(torch, config.get("dtype", "float32"))
        made = kind(**{**config["arguments"], **changes}).to(device, dtype)
        if changes:  # of weights that are shared the file holds one
            weights = load_file(str(source / WEIGHTS))
            take_weights(made, {**made.state_dict(), **weights})
        else:
            load_model(made, str(source / WEIGHTS), device=str(device))
        return made.eval()


def from_pretrained(
    folder: str | os.PathLike[str], device: torch.device | str = "cpu", **changes: Any
) -> nn.Module:
    """The model that `save_pretrained` wrote, of whichever class; see `Saved.from_pretrained`."""
    return Saved.from_pretrained(folder, device, **changes)


def _read(source: Path) -> dict[str, Any]:
    missing = [name for name in (CONFIG, WEIGHTS) if not (source / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{source} has no {' and no '.join(missing)}")
    config = json.loads((source / CONFIG).read_text())
    if not isinstance(config, dict) or not {"class", "arguments"} <= config.keys():
        raise ValueError(f"{source / CONFIG} is no config of this package")
    return config


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
