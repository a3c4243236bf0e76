"""What a trained language model is taught and examined on: the person's text, in windows."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efficient_attn.attention.errors import require_int
from efficient_attn.nn import LanguageModel
from efficient_attn.nn.mode import evaluating
from efficient_attn.nn.saving import CARD, CONFIG, Saved

BYTES = 256
HELD = 0.1
"""Share of the text, its end, that is examined on and not taught."""
WINDOWS = 64
"""Held windows that are examined, spread evenly."""
MASKED = 0.15
"""Share of tokens that a masked language model is asked for (Devlin et al. 2019)."""


@dataclass(frozen=True)
class Lessons:
    """model: in eval. tokens: of the text, [T]. score: of a model on windows [B, N] and a seed,
    the mean loss in nats per token that is asked for. unit: of `metric`."""

    model: nn.Module
    tokens: Tensor
    length: int
    size: int
    seed: int
    unit: str
    score: Callable[[nn.Module, Tensor, int], Tensor]
    write: Callable[[Path, str, Mapping[str, Any], str], None]

    @classmethod
    def of(
        cls,
        checkpoint: str | os.PathLike[str],
        text: str | os.PathLike[str],
        length: int,
        size: int,
        seed: int = 0,
    ) -> Lessons:
        """Of a folder that transformers or `save_pretrained` wrote, and a text file or a folder of
        them. ValueError where the model is no language model or the text is too short."""
        folder = Path(checkpoint)
        config = folder / CONFIG
        if not config.is_file():
            raise ValueError(f"{folder} has no {CONFIG}: give the folder of a checkpoint")
        require_int("length", length, low=2)  # the first token has none to be told by
        require_int("batch", size, low=1)
        content = _read(Path(text))
        try:
            own = "class" in dict(json.loads(config.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{config} is no config of a model: {error}") from error
        model, score, write, tokens = (_own if own else _foreign)(folder, content)
        if len(tokens) * HELD < 2 * length:
            raise ValueError(
                f"{text} has {len(tokens):,} tokens: too few for windows of {length}; give more "
                "text or a smaller --length"
            )
        masked = score is _masked
        unit = f"bits per {'masked ' if masked else ''}{'byte' if tokens is content else 'token'}"
        return cls(model, tokens, length, size, seed, unit, score, write)

    def batch(self, step: int) -> tuple[Tensor, int]:
        """Windows [B, N] of the taught text, and a seed; the same for the same step."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        last = self._held() - self.length
        starts = torch.randint(last, (self.size, 1), generator=generator)
        return self.tokens[starts + torch.arange(self.length)].long(), step

    def loss(self, model: nn.Module, batch: tuple[Tensor, int]) -> Tensor:
        windows, seed = batch
        return self.score(model, windows.to(next(model.parameters()).device), seed)

    def metric(self, model: nn.Module) -> float:
        """Bits per token on held windows, lower is better."""
        first, last = self._held(), len(self.tokens) - self.length
        starts = torch.linspace(first, last, min(WINDOWS, (last - first) // self.length + 1)).long()
        windows = self.tokens[starts[:, None] + torch.arange(self.length)].long()
        device = next(model.parameters()).device
        with torch.no_grad(), evaluating(model):
            losses = [
                self.score(model, part.to(device), number).item() * len(part)
                for number, part in enumerate(windows.split(self.size))
            ]
        return sum(losses) / len(windows) / math.log(2)

    def identity(self) -> dict[str, Any]:
        """What the lessons depend on."""
        text = hashlib.sha256(self.tokens.numpy().tobytes()).hexdigest()[:16]
        return {"text": text, "length": self.length, "batch": self.size, "seed": self.seed}

    def save(self, folder: Path, variant: str, options: Mapping[str, Any], evidence: str) -> None:
        """The model as it is now, to be loaded with the attention it has."""
        self.write(folder, variant, options, evidence)

    def _held(self) -> int:
        return int(len(self.tokens) * (1 - HELD))


def _read(path: Path) -> Tensor:
    """The bytes of a file, or of all files below a folder in order of their names."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    if not files:
        raise ValueError(f"there is no text at {path}: give a file or a folder of them")
    content = bytearray(b"\n".join(file.read_bytes() for file in files))
    if not content:
        raise ValueError(f"the text at {path} is empty")
    return torch.frombuffer(content, dtype=torch.uint8)


def _own(folder: Path, content: Tensor) -> tuple[nn.Module, Any, Any, Tensor]:
    """A `LanguageModel` of this package, which reads bytes."""
    model = Saved.from_pretrained(folder)
    if not isinstance(model, LanguageModel):
        raise ValueError(f"{folder} holds a {type(model).__name__}, which is no LanguageModel")
    if model.embed.num_embeddings < BYTES:
        raise ValueError(f"the model knows {model.embed.num_embeddings} tokens; bytes are {BYTES}")

    def write(target: Path, variant: str, options: Mapping[str, Any], evidence: str) -> None:
        model.save_pretrained(target, evidence)

    return model, _next, write, content


def _foreign(folder: Path, content: Tensor) -> tuple[nn.Module, Any, Any, Tensor]:
    """A language model of transformers, causal or masked, and its tokenizer where it has one."""
    from efficient_attn.integrations.transformers import checkpoints

    model: Any = checkpoints.load(folder)
    kind = type(model).__name__
    if kind.endswith("ForMaskedLM"):
        score: Any = _masked
    elif kind.endswith(("ForCausalLM", "LMHeadModel")):
        score = _next
    else:
        raise ValueError(
            f"{folder} holds a {kind}: adapt teaches causal and masked language models; others "
            "with efficient_attn.integrations.adapt.adapt and a loss of your own"
        )
    tokenizer = None
    if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        text = bytes(content.tolist()).decode(errors="replace")
        content = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
        model._mask_token = tokenizer.mask_token_id
    elif model.config.vocab_size < BYTES:
        raise ValueError(
            f"{folder} has no tokenizer, and its {model.config.vocab_size} tokens are too few for "
            "bytes: put the tokenizer's files beside the weights"
        )

    def write(target: Path, variant: str, options: Mapping[str, Any], evidence: str) -> None:
        checkpoints.save(model, target, variant, options)
        (target / CARD).write_text(_card(kind, variant, evidence))
        if tokenizer is not None:
            tokenizer.save_pretrained(target)

    return model, score, write, content


def _card(kind: str, variant: str, evidence: str) -> str:
    return f"""# {kind} with {variant}

{evidence}

Load it with

```python
from efficient_attn.integrations.transformers import load

model = load("this/folder")
```

`AutoModel` and the like of transformers load this folder too, but with full attention, which these
weights were not trained for.
"""


def _next(model: nn.Module, windows: Tensor, seed: int) -> Tensor:
    """Of the next token at every position."""
    out = model(windows)
    logits = out if isinstance(out, Tensor) else out.logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), windows[:, 1:].flatten())


def _masked(model: Any, windows: Tensor, seed: int) -> Tensor:
    """Of tokens that are masked, drawn from the seed; without a mask token the last of all."""
    generator = torch.Generator().manual_seed(seed)
    chosen = (torch.rand(windows.shape, generator=generator) < MASKED).to(windows.device)
    chosen[:, 0] |= ~chosen.any(1)
    mask = getattr(model, "_mask_token", None)
    shown = windows.masked_fill(chosen, model.config.vocab_size - 1 if mask is None else mask)
    logits = model(shown).logits
    return F.cross_entropy(logits[chosen].float(), windows[chosen])
