"""BERT, Swin and Longformer of transformers beside ours, with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efficient_attn import MultiHeadAttention
from efficient_attn.integrations.transformers import from_transformers

from .comparison import B, Comparison, E, H, absent, compare, randomise, tokens


def rows() -> Iterator[Comparison]:
    yield from bert_rows()
    yield from whole_bert_rows()
    yield from swin_rows()
    yield from whole_swin_rows()
    yield from longformer_rows()


def attention_of(
    q: nn.Linear, k: nn.Linear, v: nn.Linear, out: nn.Linear | None, variant: str, **options: Any
) -> MultiHeadAttention:
    """Ours with these projections; out=None leaves the output as the heads give it."""
    made = MultiHeadAttention(E, H, variant, **options)
    own = {name: x for name, x in made.state_dict().items() if name.startswith("core.")}
    made.load_state_dict(
        {
            **own,
            "in_proj_weight": torch.cat([q.weight, k.weight, v.weight]),
            "in_proj_bias": torch.cat([q.bias, k.bias, v.bias]),
            "out_proj.weight": torch.eye(E) if out is None else out.weight,
            "out_proj.bias": torch.zeros(E) if out is None else out.bias,
        }
    )
    return made


class BertSelfAttention(nn.Module):
    """Ours where BERT calls its own: masks arrive as BERT makes them, added to the scores."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        padding = None if attention_mask is None else attention_mask[:, 0, 0, :]
        return self.attention(hidden_states, key_padding_mask=padding)[0], None


class LastHiddenState(nn.Module):
    """A model of transformers as a function of tokens and mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, exists: Tensor | None) -> Tensor:
        return self.model(input_ids=ids, attention_mask=exists).last_hidden_state


def bert_rows() -> Iterator[Comparison]:
    """The whole of BertModel, the attention of every layer replaced."""
    bert = import_module("transformers.models.bert.modeling_bert")
    length, vocabulary = 13, 50
    config = bert.BertConfig(
        vocab_size=vocabulary,
        hidden_size=E,
        num_hidden_layers=3,
        num_attention_heads=H,
        intermediate_size=2 * E,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    theirs = randomise(bert.BertModel(config, add_pooling_layer=False))
    ours = deepcopy(theirs)
    for layer in ours.encoder.layer:
        own, dense = layer.attention.self, layer.attention.output.dense
        swapped = attention_of(own.query, own.key, own.value, dense, "full")
        layer.attention.self = BertSelfAttention(swapped)
        layer.attention.output.dense = nn.Identity()
    ids = torch.randint(vocabulary, (B, length))
    padding = absent(length, [length, 5, 9])
    pair = LastHiddenState(theirs), LastHiddenState(ours)
    for settings, mask in {"no mask": None, "padding": (~padding).long()}.items():
        real = None if mask is None else ~padding
        yield compare("BertModel, 3 layers", settings, *pair, ids, mask, real=real)


class WholeModel(nn.Module):
    """What of a model's answer is compared; `shared` parameters have one name on both sides."""

    def __init__(self, model: nn.Module, shared: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.shared = nn.ParameterDict(shared)
        self.model = model

    def forward(self, *inputs: Tensor | None) -> Tensor:
        out: Any = self.model(*inputs)
        return out if isinstance(out, Tensor) else out.logits


class MaskOfExisting(nn.Module):
    """BertModel, whose mask says the opposite, with the mask of ours: True = ignore."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: Tensor, padding: Tensor | None, segments: Tensor) -> Tensor:
        exists = None if padding is None else (~padding).long()
        return self.bert(ids, exists, segments).last_hidden_state


def whole_bert_rows() -> Iterator[Comparison]:
    """BertModel, and our encoder with its weights."""
    bert = import_module("transformers.models.bert.modeling_bert")
    length, vocabulary = 13, 50
    config = bert.BertConfig(
        vocab_size=vocabulary,
        hidden_size=E,
        num_hidden_layers=3,
        num_attention_heads=H,
        intermediate_size=2 * E,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    theirs: Any = randomise(bert.BertModel(config, add_pooling_layer=False))
    ours: Any = from_transformers(theirs)
    pair = (
        WholeModel(
            MaskOfExisting(theirs),
            {
                "words": theirs.embeddings.word_embeddings.weight,
                "positions": theirs.embeddings.position_embeddings.weight,
                "last": theirs.encoder.layer[-1].output.dense.weight,
            },
        ),
        WholeModel(
            ours,
            {
                "words": ours.words.weight,
                "positions": ours.positions.weight,
                "last": ours.encoder.layers[-1].linear2.weight,
            },
        ),
    )
    ids, segments = torch.randint(vocabulary, (B, length)), torch.randint(2, (B, length))
    padding = absent(length, [length, 5, 9])
    for settings, mask in {"no mask, segments": None, "padding, segments": padding}.items():
        real = None if mask is None else ~mask
        yield compare("BertModel, whole", settings, *pair, ids, mask, segments, real=real)


class SwinBlock(nn.Module):
    """Swin's layer around its window attention, with norms and feed-forward taken away."""

    def __init__(self, layer: nn.Module, grid: tuple[int, int]) -> None:
        super().__init__()
        layer.layernorm_before = layer.layernorm_after = nn.Identity()
        layer.mlp = Nothing()
        self.layer, self.grid = layer, grid

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, self.grid)[0]


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class Residual(nn.Module):
    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x)[0]


def swin_rows() -> Iterator[Comparison]:
    """Window attention with relative bias, on grids of whole windows.

    On other grids Swin lets tokens attend to the zeros it pads with, which is not its definition.
    """
    swin = import_module("transformers.models.swin.modeling_swin")
    window = 4
    config = swin.SwinConfig(
        window_size=window, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    config._attn_implementation = "eager"
    for grid in ((8, 8), (8, 12)):
        for shift in (0, 2):
            layer = randomise(swin.SwinLayer(config, E, grid, H, shift_size=shift))
            q, k, v, out = (x for x in layer.attention.modules() if isinstance(x, nn.Linear))
            ours = attention_of(
                q, k, v, out, "shifted_window",
                window=window, shift=shift, grid=grid, relative_bias=True,
            )  # fmt: skip
            bias = dict(layer.attention.named_parameters())[
                "relative_position_bias.relative_position_bias_table"
            ]
            assert isinstance(ours.core.relative_bias, nn.Parameter)
            ours.core.relative_bias.data.copy_(bias)
            yield compare(
                f"SwinLayer's attention, grid {grid[0]}×{grid[1]}",
                f"window {window}, shift {shift}, relative bias",
                SwinBlock(layer, grid),
                Residual(ours),
                tokens(grid[0] * grid[1]),
            )


def whole_swin_rows() -> Iterator[Comparison]:
    """SwinForImageClassification, and our `SwinTransformer` with its weights: images whose maps are
    whole windows, images whose maps are not, and a last map that is one window wide."""
    swin = import_module("transformers.models.swin.modeling_swin")
    for window, size in ((7, (224, 224)), (4, (200, 136)), (5, (160, 77))):
        config = swin.SwinConfig(
            embed_dim=8,
            depths=(2, 2, 2),
            num_heads=(1, 2, 4),
            window_size=window,
            num_labels=5,
            drop_path_rate=0.0,
        )
        theirs: Any = randomise(swin.SwinForImageClassification(config))
        ours: Any = from_transformers(theirs)
        stages = theirs.swin.encoder.layers
        table = stages[1].blocks[1].attention.relative_position_bias.relative_position_bias_table
        pair = (
            WholeModel(
                theirs,
                {
                    "patches": theirs.swin.embeddings.patch_embeddings.projection.weight,
                    "bias": table,
                    "merging": stages[0].downsample.reduction.weight,
                },
            ),
            WholeModel(
                ours,
                {
                    "patches": ours.embed.projection.weight,
                    "bias": ours.stages[1][1].self_attn.core.relative_bias,
                    "merging": ours.merging[0].reduction.weight,
                },
            ),
        )
        images = torch.randn(B, 3, *size, requires_grad=True)
        yield compare("SwinForImageClassification, whole", f"window {window}", *pair, images)


class LongformerAttention(nn.Module):
    """Longformer's self-attention as a function of any length, padded as LongformerModel does."""

    def __init__(self, attention: nn.Module, window: int, global_tokens: int) -> None:
        super().__init__()
        self.attention, self.window, self.global_tokens = attention, window, global_tokens

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        length = x.shape[1]
        if padding is None:
            padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        more = -length % self.window
        masked = F.pad(padding, (0, more), value=True)
        is_global = torch.zeros_like(masked)
        is_global[:, : self.global_tokens] = True
        code = masked * -10000.0 + is_global * 10000.0
        (out,) = self.attention(
            F.pad(x, (0, 0, 0, more)),
            attention_mask=code,
            is_index_masked=masked,
            is_index_global_attn=is_global,
            is_global_attn=self.global_tokens > 0,
        )
        return out[:, :length]


class Padded(nn.Module):
    """Ours as a function of tokens and padding."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        return self.attention(x, key_padding_mask=padding)[0]


def longformer_rows() -> Iterator[Comparison]:
    """Sliding window of w/2 to either side; global tokens with the same projections as the rest."""
    longformer = import_module("transformers.models.longformer.modeling_longformer")
    window = 8
    config = longformer.LongformerConfig(
        hidden_size=E,
        num_attention_heads=H,
        attention_window=[window],
        attention_probs_dropout_prob=0.0,
    )
    for length in (6 * window, 6 * window - 3):
        padding = absent(length, [length, 11, 30])
        for global_tokens in (0, 2):
            theirs = randomise(longformer.LongformerSelfAttention(config, 0))
            for name in ("query", "key", "value"):
                everywhere = theirs.get_submodule(name).state_dict()
                theirs.get_submodule(f"{name}_global").load_state_dict(everywhere)
            ours = attention_of(
                theirs.query, theirs.key, theirs.value, None, "local_window",
                window=window // 2, global_tokens=global_tokens,
            )  # fmt: skip
            pair = LongformerAttention(theirs, window, global_tokens), Padded(ours)
            for settings, mask in {"no mask": None, "padding": padding}.items():
                if global_tokens:
                    settings = f"{settings}, {global_tokens} global tokens"
                yield compare(
                    f"LongformerSelfAttention, {length} tokens",
                    f"window {window}, {settings}",
                    *pair,
                    tokens(length),
                    mask,
                    real=None if mask is None else ~mask,
                )
