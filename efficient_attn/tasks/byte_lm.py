"""Next-byte prediction on real text: the Python standard library's sources, or one's own files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from efficient_attn.attention import UnsupportedAttention
from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.language_model import LanguageModel
from efficient_attn.nn.mode import evaluating
from efficient_attn.tasks.files import STDLIB, fingerprint, read_files
from efficient_attn.tasks.task import (
    Batch,
    Capability,
    ModelConfig,
    Split,
    Task,
    TaskPattern,
    generator,
    require_count,
    require_split,
)

BYTES = 256
IGNORE = -100
"""Label of a byte that is not scored, as torch's cross-entropy has it."""
EVALUATION_CHUNK = 64
ENDS = {"train": 0.8, "validation": 0.9, "test": 1.0}
"""Where each part ends, as a share of all bytes."""


@dataclass(frozen=True)
class ByteLM(Task):
    """Language model over bytes; bits per byte on files it was not trained on.

    source: "stdlib" (the ``.py`` files of the standard library, without its tests), or the path of
        a file or of a folder, whose files are all read.
    max_bytes: at most so many bytes are read, from files in a fixed random order.
    evaluation: at most so many windows of `length` bytes in each of validation and test.
    context: bytes at the start of each of these windows that are read and not scored, so that
        none is predicted without so many before it; windows overlap by as many.

    The split is by file, about 80 : 10 : 10 in bytes, the same for every seed; where whole files
    would leave a part empty (a single file), the text is cut into consecutive parts instead.
    """

    name: ClassVar[str] = "byte_lm"
    pattern: ClassVar[TaskPattern] = "causal_self"
    capability: ClassVar[Capability] = "locality"
    metric: ClassVar[str] = "bits_per_byte"
    higher_is_better: ClassVar[bool] = False
    positions: ClassVar[str] = "sinusoidal"

    length: int = 128
    source: str = STDLIB
    max_bytes: int = 2_000_000
    evaluation: int = 256
    context: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "max_bytes", "evaluation"):
            require_count(f"byte_lm.{name}", getattr(self, name))
        require_count("byte_lm.context", self.context, low=0)
        if self.context >= self.length:
            raise ValueError(
                f"byte_lm.context={self.context} leaves nothing to score in windows of "
                f"length={self.length}; make it smaller"
            )

    def build_model(
        self, variant: Variant, options: VariantOptions, model: ModelConfig
    ) -> nn.Module:
        settings = self.settings(variant, options, model)
        return LanguageModel(BYTES, max_len=self.length, **settings)

    def batches(self, seed: int, batch_size: int) -> Iterator[Batch]:
        """Bytes [B, N] and the bytes that follow them [B, N], from anywhere in training."""
        text = self._text("train")
        windows = np.lib.stride_tricks.sliding_window_view(text, self.length + 1)
        draw = generator("byte_lm", seed)
        while True:
            yield _batch(windows[draw.integers(0, len(windows), batch_size)])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, following = batch
        return F.cross_entropy(model(inputs).flatten(0, 1), following.flatten())

    def evaluate(self, model: nn.Module, split: Split) -> float:
        """Bits per byte over windows, each byte predicted from what stands before it in its own."""
        inputs, following = self._evaluation(split)
        nats = 0.0
        with evaluating(model) as device:
            for start in range(0, len(inputs), EVALUATION_CHUNK):
                rows = slice(start, start + EVALUATION_CHUNK)
                logits = model(inputs[rows].to(device)).flatten(0, 1).float()
                aims = following[rows].to(device).flatten()
                nats += F.cross_entropy(logits, aims, reduction="sum").item()
        return nats / int((following != IGNORE).sum()) / float(np.log(2))

    def sample(self, model: nn.Module) -> str | None:
        """`length` bytes after a line break, drawn at temperature 0.8; None without decoding."""
        assert isinstance(model, LanguageModel)
        start = [list(b"\n")]
        try:
            made = model.generate(start, max_new_tokens=self.length, temperature=0.8, seed=0)
        except UnsupportedAttention:
            return None
        return bytes(made.tokens[0].tolist()).decode(errors="replace")

    def baselines(self) -> dict[str, float]:
        """Uniform bytes; byte frequencies; frequencies after the byte before (all add-one)."""
        text = self._text("train")
        inputs, following = (part[:, self.context :].numpy() for part in self._evaluation("test"))
        unigram = np.bincount(text, minlength=BYTES) + 1.0
        pairs = text[:-1].astype(np.int64) * BYTES + text[1:]
        bigram = np.bincount(pairs, minlength=BYTES * BYTES).reshape(BYTES, BYTES) + 1.0
        bigram /= bigram.sum(1, keepdims=True)
        return {
            "chance": float(np.log2(BYTES)),
            "unigram": float(-np.log2(unigram / unigram.sum())[following].mean()),
            "bigram": float(-np.log2(bigram)[inputs, following].mean()),
        }

    def provenance(self) -> dict[str, Any]:
        """Number of files and bytes read, and a hash of the files' names and contents."""
        files = read_files(self.source, self.max_bytes, "byte_lm.source")
        return {
            "source": self.source,
            "files": len(files),
            "bytes": sum(len(content) for _, content in files),
            "sha256": fingerprint(files),
        }

    def _text(self, part: str) -> np.ndarray:
        text = _parts(self.source, self.max_bytes)[part]
        if len(text) <= self.length:
            raise ValueError(
                f"byte_lm.source={self.source!r}: the {part} part has {len(text)} bytes, fewer "
                f"than a window of length={self.length} and the byte after it; "
                "give more text, raise max_bytes or lower length"
            )
        return text

    def _evaluation(self, split: Split) -> Batch:
        require_split(split)
        text = self._text(split)
        windows = np.lib.stride_tricks.sliding_window_view(text, self.length + 1)
        windows = windows[:: self.length - self.context]
        rows = np.linspace(0, len(windows) - 1, min(self.evaluation, len(windows))).astype(int)
        inputs, following = _batch(windows[rows])
        scored = following.clone()  # it shares its memory with the inputs
        scored[:, : self.context] = IGNORE
        return inputs, scored


def _batch(windows: np.ndarray) -> Batch:
    whole = torch.from_numpy(windows.astype(np.int64))
    return whole[:, :-1], whole[:, 1:]


@lru_cache(maxsize=4)
def _parts(source: str, max_bytes: int) -> dict[str, np.ndarray]:
    """Bytes of train, validation and test: whole files one after another where that is possible."""
    files = [content for _, content in read_files(source, max_bytes, "byte_lm.source")]
    total = sum(map(len, files))
    chosen: dict[str, list[bytes]] = {name: [] for name in ENDS}
    start = 0
    for content in files:
        part = next(name for name, end in ENDS.items() if start < end * total)
        chosen[part].append(content)
        start += len(content)
    texts = {name: b"".join(contents) for name, contents in chosen.items()}
    if not all(texts.values()):
        text, start = b"".join(files), 0
        for name, end in ENDS.items():
            texts[name] = text[start : round(end * total)]
            start = round(end * total)
    return {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
