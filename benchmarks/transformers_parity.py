"""Our variants inside models of transformers: the same weights, beside transformers' own attention.

    python benchmarks/transformers_parity.py

prints, for small models with random weights of seven architectures, the largest absolute difference
from attn_implementation="eager" in fp32: of what the model says of real tokens without padding,
with padding on the right and on the left, and of the scores of eight generated tokens over a cache.
Windows that hold the whole input are full attention, and must agree like it; Performer and
Linformer approximate, and their difference is told but not judged. "refused": the model or the
variant cannot do it, and says so. Exit code 0 when every exact one agrees to 1e-5 of the largest
value.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from efficient_attn import UnsupportedAttention
from efficient_attn.integrations.transformers import make_cores, register

TOLERANCE = 1e-5
WIDE = 140  # characters of a line in a file or a pipe
B, N, NEW = 3, 12, 8
VOCABULARY, WIDTH, HEADS = 40, 32, 4
TOKENS: Any = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Architecture:
    """build: the model, with fresh weights. takes: tokens, pairs of source and target, or images.
    generates: whether it has `generate`."""

    build: Callable[[], nn.Module]
    takes: str = "tokens"
    generates: bool = False


def _bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return transformers.BertModel(config, add_pooling_layer=False)


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=WIDTH, n_head=HEADS, n_layer=2, n_positions=64, **TOKENS
    )
    return transformers.GPT2LMHeadModel(config)


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        num_hidden_layers=2,
        intermediate_size=64,
        max_position_embeddings=64,
        **TOKENS,
    )
    return transformers.LlamaForCausalLM(config)


def _t5() -> nn.Module:
    config = transformers.T5Config(  # type: ignore[call-arg]
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        num_heads=HEADS,
        num_layers=2,
        d_ff=64,
        decoder_start_token_id=1,
        **TOKENS,
    )
    return transformers.T5ForConditionalGeneration(config)


def _bart() -> nn.Module:
    config = transformers.BartConfig(
        d_model=WIDTH,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        **TOKENS,
    )
    return transformers.BartForConditionalGeneration(config)


def _vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=2,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
    )
    return transformers.ViTModel(config, add_pooling_layer=False)


def _swin() -> nn.Module:
    config = transformers.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=(2, 2),
        num_heads=(2, 4),
        window_size=4,
    )
    return transformers.SwinModel(config, add_pooling_layer=False)


ARCHITECTURES = {
    "BERT": Architecture(_bert),
    "GPT-2": Architecture(_gpt2, generates=True),
    "Llama": Architecture(_llama, generates=True),
    "T5": Architecture(_t5, "pairs", generates=True),
    "BART": Architecture(_bart, "pairs", generates=True),
    "ViT": Architecture(_vit, "images"),
    "Swin": Architecture(_swin, "images"),
}

EXACT: dict[str, Any] = {
    "sdpa": None,
    "efficient_attn:full": {},
    "efficient_attn:wide_window": {"variant": "local_window", "window": 64},
    "efficient_attn:one_window": {"variant": "shifted_window", "window": 64, "shift": 0},
}
APPROXIMATE: dict[str, Any] = {
    "efficient_attn:performer": {"variant": "performer", "num_features": 256},
    "efficient_attn:linformer": {"variant": "linformer", "k": 8},
}


@dataclass(frozen=True)
class Row:
    """Largest differences from eager, relative to the largest value where that is above 1; None =
    refused or not to be had, with the reason."""

    architecture: str
    implementation: str
    exact: bool
    none: float | None
    right: float | None
    left: float | None
    generate: float | None
    reasons: dict[str, str]

    @property
    def ok(self) -> bool:
        found = (self.none, self.right, self.left, self.generate)
        return not self.exact or all(each is None or each <= TOLERANCE for each in found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 when every exact implementation agrees, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    as_json = parser.parse_args(arguments).json
    transformers.logging.set_verbosity_error()
    register_all()
    found = list(rows())
    if as_json:
        print(json.dumps([{**asdict(row), "ok": row.ok} for row in found], indent=1))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=WIDE)
        console.print(table(found))
        for reason in sorted({text for row in found for text in row.reasons.values()}):
            console.print(f"refused: {reason}", markup=False, highlight=False)
    return 0 if all(row.ok for row in found) else 1


def register_all() -> None:
    for label, options in {**EXACT, **APPROXIMATE}.items():
        if options is not None:
            register(label.partition(":")[2], **{"variant": "full", **options})


def rows() -> Iterator[Row]:
    for name, architecture in ARCHITECTURES.items():
        model = prepared(architecture)
        for implementation in (*EXACT, *APPROXIMATE):
            yield compare(name, model, architecture, implementation)


def prepared(architecture: Architecture) -> nn.Module:
    """The model in eval with random weights large enough for attention to matter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = architecture.build().eval()
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "norm" not in name.lower():
                nn.init.normal_(weight, std=0.2)
    return model


def compare(name: str, model: Any, architecture: Architecture, implementation: str) -> Row:
    """One architecture under one implementation, beside itself under eager."""
    found: dict[str, float | None] = dict.fromkeys(("none", "right", "left", "generate"))
    reasons = {}
    for case in found:
        if case in ("right", "left") and architecture.takes == "images":
            continue
        if case == "generate" and not architecture.generates:
            continue
        inputs = make_inputs(architecture, case)
        model.set_attn_implementation("eager")
        expected = answer(model, inputs, case)
        model.set_attn_implementation(implementation)
        try:
            if implementation == "efficient_attn:linformer":
                make_cores(model, **make_inputs(architecture, "none"))
            found[case] = difference(expected, answer(model, inputs, case))
        except UnsupportedAttention as refused:
            reasons[case] = str(refused)
    return Row(name, implementation, implementation in EXACT, **found, reasons=reasons)


def make_inputs(architecture: Architecture, case: str) -> dict[str, Tensor]:
    """none, right, left: where padding stands; generate: as models of this kind want it."""
    generator = torch.Generator().manual_seed(1)
    if architecture.takes == "images":
        side = 16 if architecture.build is _vit else 32
        return {"pixel_values": torch.randn(B, 3, side, side, generator=generator)}
    tokens = torch.randint(3, VOCABULARY, (B, N), generator=generator)
    made = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if case == "generate":
        case = "left" if architecture.takes == "tokens" else "right"
    elif architecture.takes == "pairs":
        made["decoder_input_ids"] = torch.randint(3, VOCABULARY, (B, 7), generator=generator)
    if case != "none":
        for sample, missing in enumerate((0, 3, 7)):
            columns = slice(N - missing, N) if case == "right" else slice(0, missing)
            made["attention_mask"][sample, columns] = 0
            tokens[sample, columns] = 0
    return made


def answer(model: Any, inputs: dict[str, Tensor], case: str) -> Tensor:
    """What a model says of real tokens, or the scores [B, steps, vocabulary] of what it writes."""
    with torch.no_grad():
        if case == "generate":
            written = model.generate(
                **inputs,
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
            )
            scores = torch.stack(written.scores, 1)
            return scores.masked_fill(scores == float("-inf"), 0.0)
        out = model(**inputs)
    said = out.logits if "logits" in out else out.last_hidden_state
    mask = inputs.get("attention_mask")
    if mask is None or "decoder_input_ids" in inputs:
        return said.flatten(0, 1)
    return said[mask.bool()]


def difference(expected: Tensor, found: Tensor) -> float:
    scale = max(1.0, expected.abs().max().item())
    return (expected - found).abs().max().item() / scale


def table(found: Sequence[Row]) -> Table:
    made = Table(title="Largest difference from eager attention (≤ 1e-5 where exact)")
    for header in ("model", "attn_implementation", "", "no padding", "right", "left", "generate"):
        made.add_column(header, justify="left" if header[:1] in "ma" else "right")
    for row in found:
        cells = [
            "refused" if case in row.reasons else "–" if value is None else f"{value:.1e}"
            for case, value in (
                ("none", row.none),
                ("right", row.right),
                ("left", row.left),
                ("generate", row.generate),
            )
        ]
        verdict = ("exact" if row.ok else "WRONG") if row.exact else "approximates"
        made.add_row(row.architecture, row.implementation, verdict, *cells)
    return made


if __name__ == "__main__":
    sys.exit(main())
