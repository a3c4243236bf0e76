"""Every model refuses, when it is built, settings of a wrong type or range, and names them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from efficient_attn.attention import OptionError, UnsupportedAttention
from efficient_attn.nn import (
    DualEncoder,
    ImageClassifier,
    LanguageModel,
    MaskPredict,
    Seq2Seq,
    SequenceClassifier,
)

SIZES: dict[str, Any] = {"d_model": 8, "nhead": 2, "num_layers": 1}
ARGUMENTS: dict[type[nn.Module], dict[str, Any]] = {
    LanguageModel: {"vocab_size": 9, "max_len": 5},
    SequenceClassifier: {"num_classes": 2, "vocab_size": 9, "max_len": 5},
    DualEncoder: {"num_classes": 2, "vocab_size": 9, "max_len": 5},
    ImageClassifier: {"num_classes": 2, "image_size": (8, 8)},
    Seq2Seq: {"vocab_size": 9, "max_len": 5},
    MaskPredict: {"vocab_size": 9, "max_len": 5},
}
TRANSLATING = [Seq2Seq, MaskPredict]
WRONG: list[tuple[str, Any]] = [
    ("d_model", 0),
    ("d_model", 8.0),
    ("d_model", "8"),
    ("nhead", 0),
    ("nhead", None),
    ("num_layers", 0),
    ("num_layers", True),
    ("dim_feedforward", 0),
    ("dim_feedforward", 16.0),
    ("dropout", 1.0),
    ("dropout", "0.1"),
    ("drop_path", -0.1),
    ("norm_first", 1),
    ("norm_first", None),
    ("norm", "batch"),
    ("activation", "tanh"),
    ("activation", ["gelu"]),
    ("activation", None),
    ("positions", None),
    ("short_conv", -1),
    ("variant", None),
    ("variant", 3),
    ("variant_options", "window"),
    ("variant_options", 3),
    ("variant_options", ["window"]),
]


def build(kind: type[nn.Module], **settings: Any) -> Any:
    return kind(**{**SIZES, **ARGUMENTS[kind], **settings})


@pytest.mark.parametrize(("setting", "value"), WRONG)
@pytest.mark.parametrize("kind", ARGUMENTS, ids=lambda kind: kind.__name__)
def test_wrong_settings_are_named(kind: type[nn.Module], setting: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"\b{setting}=.*( is | are )"):
        build(kind, **{setting: value})


@pytest.mark.parametrize("value", [0, 2.0, "9", True])
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (kind, size)
        for kind, arguments in ARGUMENTS.items()
        for size in arguments
        if size != "image_size"
    ]
    + [(DualEncoder, "dim"), (ImageClassifier, "in_channels"), (SequenceClassifier, "in_features")]
    + [(kind, size) for kind in TRANSLATING for size in ("max_target_len", "target_vocab_size")],
)
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_wrong_sizes_are_named(
    kind: type[nn.Module], size: str, value: Any, positions: str
) -> None:
    with pytest.raises(OptionError, match=rf"^{size}={value!r}: allowed is a whole number"):
        build(kind, positions=positions, **{size: value})


@pytest.mark.parametrize(
    ("kind", "flag"), [(LanguageModel, "tied_embeddings"), (Seq2Seq, "shared_embeddings")]
)
def test_flags_are_bool(kind: type[nn.Module], flag: str) -> None:
    with pytest.raises(OptionError, match=f"{flag}='no': allowed are True, False"):
        build(kind, **{flag: "no"})


@pytest.mark.parametrize("kind", TRANSLATING)
def test_a_vocabulary_of_special_tokens_alone_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(OptionError, match=r"vocab_size=4.*at least 5"):
        build(kind, vocab_size=4)
    build(kind, vocab_size=5)


@pytest.mark.parametrize("cross", ["local_window", ["full", "local_window"], "shifted_window"])
@pytest.mark.parametrize("kind", TRANSLATING)
def test_cross_attention_of_equal_lengths_is_refused_when_built(
    kind: type[nn.Module], cross: Any
) -> None:
    with pytest.raises(UnsupportedAttention, match=r"window does not support.*full"):
        build(kind, cross_variant=cross)


@pytest.mark.parametrize(
    "source",
    [
        [[5, 6]],
        torch.tensor([5, 6]),
        torch.zeros(0, 2, dtype=torch.long),
        torch.zeros(2, 0, dtype=torch.long),
        torch.tensor([[5.0, 6.0]]),
        torch.tensor([[5, 9]]),
        torch.tensor([[-1, 5]]),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", TRANSLATING)
def test_a_source_is_tokens_of_the_vocabulary(kind: type[nn.Module], source: Tensor) -> None:
    with pytest.raises(OptionError, match=r"source.*: allowed|in 0\.\.\.8"):
        build(kind).generate(source)


@pytest.mark.parametrize("count", [0, 2.0, "3", True])
def test_new_tokens_are_counted_in_whole_numbers(count: Any) -> None:
    with pytest.raises(OptionError, match="max_new_tokens"):
        build(LanguageModel).generate([[1]], max_new_tokens=count)
    with pytest.raises(OptionError, match="max_new_tokens"):
        build(Seq2Seq).generate(torch.tensor([[5]]), max_new_tokens=count)


@pytest.mark.parametrize(
    ("prompts", "options", "words"),
    [
        ([[1, 9]], {}, r"token in prompts=9: allowed is in 0\.\.\.8"),
        ([[1], [-1]], {}, "token in prompts=-1"),
        ([[1]], {"eos": 9}, "eos=9"),
        ([[1]], {"pad": 9}, "pad=9"),
    ],
)
def test_tokens_beyond_the_vocabulary(prompts: Any, options: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        build(LanguageModel).generate(prompts, max_new_tokens=2, **options)


@pytest.mark.parametrize("prompts", [None, 3, [1, 2], "one", ["one"], [[0.5]], [[1], [2.0]], []])
def test_a_language_model_continues_token_numbers_alone(prompts: Any) -> None:
    with pytest.raises(OptionError, match=r"prompts.*allowed are"):
        build(LanguageModel).generate(prompts, max_new_tokens=2)
