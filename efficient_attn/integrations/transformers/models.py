"""BERT and Swin of transformers, from their configs or with their weights, with any variant.

Configs and models are read by attribute: transformers itself is only needed for the activation
functions that it names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from efficient_attn.nn.choice import Variant, VariantOptions
from efficient_attn.nn.encoder import TransformerEncoder, TransformerEncoderLayer
from efficient_attn.nn.swin import SwinTransformer


class BertEncoder(nn.Module):
    """Embeddings and encoder of BERT; token numbers to features.

    Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2019),
    section 3: words, positions and segments are added, normed, and read by post-norm layers.

    config: of transformers (BertConfig or of the same fields). variant, variant_options: as in
    `TransformerEncoderLayer`; windows and the like take the place of BERT's full attention.

    Raises ValueError for a config that this is not: a decoder, or other than absolute positions.
    """

    def __init__(
        self, config: Any, variant: Variant = "full", variant_options: VariantOptions = None
    ) -> None:
        _require(config, is_decoder=False, add_cross_attention=False)
        _require(config, position_embedding_type="absolute")
        super().__init__()
        D, eps = config.hidden_size, config.layer_norm_eps
        self.words = nn.Embedding(config.vocab_size, D, padding_idx=config.pad_token_id)
        self.positions = nn.Embedding(config.max_position_embeddings, D)
        self.segments = nn.Embedding(config.type_vocab_size, D)
        self.norm = nn.LayerNorm(D, eps=eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        layer = TransformerEncoderLayer(
            D,
            config.num_attention_heads,
            config.intermediate_size,
            config.hidden_dropout_prob,
            _activation(config.hidden_act),
            eps,
            variant=variant,
            variant_options=variant_options,
            max_len=config.max_position_embeddings,
        )
        self.encoder = TransformerEncoder(layer, config.num_hidden_layers, same_weights=False)
        for each in self.encoder.layers:
            each.self_attn.dropout = config.attention_probs_dropout_prob
            # BERT drops the output of its feed-forward, and nothing inside.
            each.dropout = nn.Identity()
        for embedding in (self.words, self.positions, self.segments):
            nn.init.normal_(embedding.weight, std=config.initializer_range)

    def forward(
        self,
        input_ids: Tensor,
        key_padding_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Token numbers [B, N] to features [B, N, D].

        key_padding_mask [B, N]: True = ignore, the opposite of transformers' attention_mask.
        token_type_ids: segments [B, N], all 0 when None.
        """
        N, most = input_ids.shape[1], self.positions.num_embeddings
        if N > most:
            raise ValueError(f"input of {N} tokens is longer than the {most} positions of BERT")
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        x = self.words(input_ids) + self.segments(token_type_ids) + self.positions.weight[:N]
        return self.encoder(self.dropout(self.norm(x)), src_key_padding_mask=key_padding_mask)


def from_config(
    config: Any, variant: Variant | None = None, variant_options: VariantOptions = None
) -> nn.Module:
    """The model of a config of transformers, with fresh weights.

    A BertConfig gives a `BertEncoder`, with full attention when variant is None; a SwinConfig a
    `SwinTransformer` with shifted windows, of the config's size unless options name another.
    ValueError for other kinds, and for what of a config has no counterpart.
    """
    return _builder(config)(config, variant, variant_options)


def from_transformers(
    model: nn.Module, variant: Variant | None = None, variant_options: VariantOptions = None
) -> nn.Module:
    """A model of transformers rebuilt here with its weights, dtype, device and mode.

    BertModel gives a `BertEncoder` (its last_hidden_state; a pooler is left out), SwinModel a
    `SwinTransformer` without head (its pooler_output), SwinForImageClassification one with (its
    logits). With other variants than the model's own, parameters of those start fresh.
    """
    config: Any = model.config
    made = _builder(config)(config, variant, variant_options)
    weights = _renamed(model.state_dict(), _NAMES[config.model_type])
    if config.model_type == "swin" and "head.weight" not in weights:
        made.head = nn.Identity()
    _load(made, weights)
    first = next(model.parameters())
    return made.to(first.device, first.dtype).train(model.training)


def _builder(config: Any) -> Callable[..., nn.Module]:
    builders = {"bert": _bert, "swin": _swin}
    kind = getattr(config, "model_type", type(config).__name__)
    if kind not in builders:
        raise ValueError(
            f"no model here for a config of kind {kind!r}; there are: {', '.join(builders)}. "
            "MultiHeadAttention.from_config reads the sizes of any config"
        )
    return builders[kind]


def _bert(config: Any, variant: Variant | None, options: VariantOptions) -> BertEncoder:
    return BertEncoder(config, variant or "full", options)


def _swin(config: Any, variant: Variant | None, options: VariantOptions) -> SwinTransformer:
    _require(config, use_absolute_embeddings=False, qkv_bias=True)
    variant = variant or "shifted_window"
    if variant == "shifted_window" and (options is None or isinstance(options, Mapping)):
        options = {"window": config.window_size, **(options or {})}
    return SwinTransformer(
        config.num_labels or None,
        embed_dim=config.embed_dim,
        depths=config.depths,
        num_heads=config.num_heads,
        patch_size=config.patch_size,
        in_channels=config.num_channels,
        mlp_ratio=config.mlp_ratio,
        dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        drop_path=config.drop_path_rate,
        activation=_activation(config.hidden_act),
        layer_norm_eps=config.layer_norm_eps,
        variant=variant,
        variant_options=options,
        image_size=config.image_size,
        as_published=True,
    )


_NAMES: dict[str, dict[str, str]] = {
    "bert": {
        r"^embeddings\.word_embeddings": "words",
        r"^embeddings\.position_embeddings": "positions",
        r"^embeddings\.token_type_embeddings": "segments",
        r"^embeddings\.LayerNorm": "norm",
        r"^encoder\.layer\.": "encoder.layers.",
        r"attention\.self\.(query|key|value)": r"self_attn.\1",
        r"attention\.output\.dense": "self_attn.out_proj",
        r"attention\.output\.LayerNorm": "norm1",
        r"intermediate\.dense": "linear1",
        r"output\.dense": "linear2",
        r"output\.LayerNorm": "norm2",
    },
    "swin": {
        r"^swin\.": "",
        r"^embeddings\.patch_embeddings": "embed",
        r"^embeddings": "embed",
        r"^encoder\.layers\.(\d+)\.blocks": r"stages.\1",
        r"^encoder\.layers\.(\d+)\.downsample": r"merging.\1",
        r"attention\.q_proj": "self_attn.query",
        r"attention\.k_proj": "self_attn.key",
        r"attention\.v_proj": "self_attn.value",
        r"attention\.o_proj": "self_attn.out_proj",
        r"attention\.relative_position_bias\.relative_position_bias_table": (
            "self_attn.core.relative_bias"
        ),
        r"layernorm_before": "norm1",
        r"layernorm_after": "norm2",
        r"mlp\.fc": "linear",
        r"^layernorm": "norm",
        r"^classifier": "head",
    },
}
"""What transformers calls a parameter, and its name here; applied in order."""

_LEFT_OUT = ("pooler.", "embed.mask_token")


def _renamed(theirs: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Parameters under our names; projections of query, key and value in one."""
    found: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        for pattern, ours in names.items():
            name = re.sub(pattern, ours, name)
        found[name] = tensor
    for name in [name for name in found if ".query." in name]:
        parts = [found.pop(name.replace(".query.", f".{each}.")) for each in _PROJECTIONS]
        found[name.replace(".query.", ".in_proj_")] = torch.cat(parts)
    return {name: x for name, x in found.items() if not name.startswith(_LEFT_OUT)}


_PROJECTIONS = ("query", "key", "value")


def _load(made: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """All of `weights`, and all of `made`, but for what belongs to a variant."""
    differ = made.load_state_dict(weights, strict=False)
    strangers = [
        name for name in (*differ.missing_keys, *differ.unexpected_keys) if ".core." not in name
    ]
    if strangers:
        raise ValueError(
            f"no counterpart for {', '.join(strangers)}; give a BertModel, a SwinModel or a "
            "SwinForImageClassification (of a larger model its part, such as model.bert)"
        )


def _require(config: Any, **expected: Any) -> None:
    for name, value in expected.items():
        given = getattr(config, name, value)
        if given != value:
            raise ValueError(f"{name}={given!r} has no counterpart here: allowed is {value!r}")


def _activation(name: Any) -> Callable[[Tensor], Tensor]:
    """The function that transformers means by the name."""
    if callable(name):
        return name
    known = import_module("transformers.activations").ACT2FN
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"hidden_act={name!r}: allowed is a callable or one of {', '.join(known)}")
    function: Callable[[Tensor], Tensor] = known[name]
    return function
