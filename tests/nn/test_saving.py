"""Models in a folder and back: the same numbers, and errors that say what is amiss."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys

import pytest
import torch

import efficient_attn as ea
from efficient_attn.nn import (
    DualEncoder,
    ImageClassifier,
    LanguageModel,
    MaskPredict,
    Seq2Seq,
    SequenceClassifier,
    SwinTransformer,
    Transformer,
)

pytest.importorskip("safetensors")

SMALL = {"d_model": 16, "nhead": 2, "num_layers": 2}
TOKENS = torch.arange(12).reshape(2, 6) % 7 + 4
MODELS = {
    "classifier": (
        lambda: SequenceClassifier(3, vocab_size=20, max_len=9, variant="linformer", **SMALL),
        (TOKENS,),
    ),
    "images": (lambda: ImageClassifier(3, image_size=(8, 4), **SMALL), (torch.ones(2, 3, 8, 4),)),
    "language": (
        lambda: LanguageModel(
            20,
            max_len=9,
            tied_embeddings=True,
            variant=["local_window", "performer"],
            variant_options={"performer": {"num_features": 8}},
            **SMALL,
        ),
        (TOKENS,),
    ),
    "retrieval": (lambda: DualEncoder(2, vocab_size=20, max_len=9, **SMALL), (TOKENS, TOKENS)),
    "translation": (lambda: Seq2Seq(20, max_len=9, **SMALL), (TOKENS, TOKENS)),
    "parallel": (lambda: MaskPredict(20, max_len=9, **SMALL), (TOKENS, TOKENS)),
    "swin": (
        lambda: SwinTransformer(3, embed_dim=8, depths=(1, 2), num_heads=(1, 2), patch_size=2),
        (torch.ones(1, 3, 20, 16),),
    ),
    "transformer": (
        lambda: Transformer(16, 2, 1, 1, 16, 0.0),
        (torch.ones(1, 4, 16), torch.ones(1, 3, 16)),
    ),
}


def answer(model, inputs):
    with torch.no_grad():
        return torch.cat([x.flatten() for x in _tensors(model.eval()(*inputs))])


def _tensors(output):
    if isinstance(output, torch.Tensor):
        return [output]
    values = output if isinstance(output, (tuple, list)) else vars(output).values()
    return [value for value in values if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(name, tmp_path):
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model = make()
    expected = answer(model, inputs)
    files = model.save_pretrained(tmp_path / "saved")
    assert sorted(file.name for file in files) == ["README.md", "config.json", "model.safetensors"]
    torch.manual_seed(1)
    found = ea.from_pretrained(tmp_path / "saved")
    assert type(found) is type(model)
    assert not found.training
    assert torch.equal(answer(found, inputs), expected)
    assert torch.equal(answer(type(model).from_pretrained(tmp_path / "saved"), inputs), expected)


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_can_be_saved_too(twin, tmp_path):
    make, inputs = MODELS["language"]
    model = make()
    twin(model).save_pretrained(tmp_path)
    assert torch.equal(answer(ea.from_pretrained(tmp_path), inputs), answer(model, inputs))


def test_with_another_variant(tmp_path):
    model = LanguageModel(20, max_len=9, **SMALL)
    model.save_pretrained(tmp_path)
    swapped = ea.from_pretrained(tmp_path, variant="local_window", variant_options={"window": 20})
    assert swapped.trunk.encoder.layers[0].self_attn.variant == "local_window"
    torch.testing.assert_close(answer(swapped, (TOKENS,)), answer(model, (TOKENS,)))


@pytest.mark.parametrize(
    ("name", "variant", "options", "max_len"),
    [
        ("language", "shifted_window", {"window": 4}, None),
        ("language", "performer", {"num_features": 4, "seed": 5}, None),
        ("classifier", "linformer", {"k": 3, "share": "layers"}, 12),
        ("translation", "full", {}, None),
        ("transformer", "full", {}, None),
        ("swin", "local_window", {"window": 2}, None),
    ],
)
def test_after_a_swap_it_is_what_it_is_now(name, variant, options, max_len, tmp_path):
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model = make()
    ea.swap(model, variant, max_len=max_len, **options)
    state = torch.get_rng_state()
    model.save_pretrained(tmp_path / "swapped")
    assert torch.equal(torch.get_rng_state(), state)
    found = ea.from_pretrained(tmp_path / "swapped")
    assert variant in str(found._arguments)
    assert torch.equal(answer(found, inputs), answer(model, inputs))
    ea.unswap(model)
    model.save_pretrained(tmp_path / "back")
    assert torch.equal(answer(ea.from_pretrained(tmp_path / "back"), inputs), answer(model, inputs))


def test_swapped_parts_of_an_encoder_and_decoder(tmp_path):
    make, inputs = MODELS["translation"]
    for number, (variant, where) in enumerate(
        [
            ("performer", "*encoder*"),
            ("local_window", "*self_attn"),
            ("linformer", "*multihead_attn"),
        ]
    ):
        model = make()
        ea.swap(model, variant, where=where, max_len=9)
        model.save_pretrained(tmp_path / str(number))
        found = ea.from_pretrained(tmp_path / str(number))
        assert torch.equal(answer(found, inputs), answer(model, inputs))


def test_attention_that_no_arguments_make_is_refused(tmp_path):
    model = LanguageModel(20, max_len=9, **SMALL)
    ea.swap(model, "local_window", where="*layers.1.*")
    with pytest.raises(ValueError, match=r"layers\.0.* is full.*would be local_window.*Unswap"):
        model.save_pretrained(tmp_path)
    model = ImageClassifier(3, image_size=(8, 4), **SMALL)
    ea.swap(model, "shifted_window", window=4)
    with pytest.raises(ValueError, match=r"grid=None.*grid=\(2, 1\).*Unswap"):
        model.save_pretrained(tmp_path)


def test_mixed_dtypes_come_back(tmp_path):
    model = LanguageModel(20, max_len=9, tied_embeddings=True, **SMALL)
    model.trunk.encoder.layers[0].half()
    model.save_pretrained(tmp_path)
    for found in (ea.from_pretrained(tmp_path), ea.from_pretrained(tmp_path, variant="performer")):
        assert {n: w.dtype for n, w in found.named_parameters()} == {
            n: w.dtype for n, w in model.named_parameters()
        }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"class": "generate"}, "generate, which"),
        ({"class": ["LanguageModel"]}, "which this version has not"),
        ({"class": "TransformerEncoder"}, "TransformerEncoder, which"),
        ({"dtype": "float31"}, r"config\.json.*float31"),
        ({"dtype": "nn"}, r"config\.json.*nn"),
        ({"arguments": {"vocab_size": 20, "max_len": 9, "widht": 3}}, r"config\.json.*widht"),
        ({"arguments": [1]}, r"config\.json"),
        ({"arguments": {"vocab_size": 21, "max_len": 9, **SMALL}}, r"safetensors.*another model"),
        (
            {"arguments": {"vocab_size": 20, "max_len": 9, **SMALL, "num_layers": 1}},
            r"safetensors.*another model.*layers\.1",
        ),
        (
            {"arguments": {"vocab_size": 20, "max_len": 9, **SMALL, "num_layers": 3}},
            r"safetensors.*lacks.*layers\.2",
        ),
    ],
)
def test_a_damaged_folder_is_named(change, said, tmp_path):
    LanguageModel(20, max_len=9, **SMALL).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ValueError, match=f"(?s){said}"):
        ea.from_pretrained(tmp_path)


def test_damaged_files_are_named(tmp_path):
    LanguageModel(20, max_len=9, **SMALL).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        ea.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is no JSON"):
        ea.from_pretrained(tmp_path)


def test_in_another_process(tmp_path):
    make, inputs = MODELS["translation"]
    model = make()
    model.save_pretrained(tmp_path)
    script = (
        "import sys, torch, efficient_attn as ea\n"
        "model = ea.from_pretrained(sys.argv[1])\n"
        "tokens = torch.arange(12).reshape(2, 6) % 7 + 4\n"
        "print(model(tokens, tokens).double().sum().item())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == pytest.approx(
        model.eval()(*inputs).double().sum().item(), rel=1e-4
    )


def test_the_card_says_what_it_is_and_why(tmp_path):
    model = LanguageModel(20, max_len=9, variant="performer", **SMALL)
    model.save_pretrained(tmp_path, evidence="fastest beyond 4096 tokens")
    card = (tmp_path / "README.md").read_text()
    assert "performer" in card
    assert "fastest beyond 4096 tokens" in card


def test_what_is_amiss_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        ea.from_pretrained(tmp_path)
    model = LanguageModel(20, max_len=9, **SMALL)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="LanguageModel"):
        Seq2Seq.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "class": "Nothing"}))
    with pytest.raises(ValueError, match="Nothing"):
        ea.from_pretrained(tmp_path)
    odd = Transformer(16, 2, 1, 1, 16, activation=torch.tanh)
    with pytest.raises(ValueError, match="argument"):
        odd.save_pretrained(tmp_path / "odd")
    assert not (tmp_path / "odd").exists()
