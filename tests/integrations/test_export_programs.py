"""Programs for other runtimes: the model's numbers at other lengths and batch sizes."""

from __future__ import annotations

import pytest
import torch
from shipped import SHIPPED

from efficient_attn import MultiHeadAttention
from efficient_attn.integrations.export import export_onnx, export_program
from efficient_attn.nn import LanguageModel, SequenceClassifier

OPTIONS = {
    "linformer": {"k": 4, "max_len": 64},
    "local_window": {"window": 4},
    "performer": {"num_features": 8},
    "shifted_window": {"window": 4, "shift": 2},
}
SIZES = [(1, 9), (3, 33), (2, 64)]


def module(variant):
    torch.manual_seed(0)
    return MultiHeadAttention(16, 2, variant, **OPTIONS.get(variant, {})).eval()


@pytest.mark.parametrize("variant", SHIPPED)
def test_export_program(variant):
    made = module(variant)
    program = export_program(made, [torch.randn(3, 20, 16)], max_len=64).module()
    for B, N in SIZES:
        x = torch.randn(B, N, 16)
        torch.testing.assert_close(program(x)[0], made(x)[0], atol=1e-5, rtol=1e-5)


def test_whole_models_and_padding():
    torch.manual_seed(0)
    made = SequenceClassifier(
        3, vocab_size=9, max_len=64, d_model=16, nhead=2, variant="local_window"
    ).eval()
    tokens = torch.randint(9, (3, 20))
    padding = torch.zeros(3, 20, dtype=torch.bool)
    padding[1, 5:] = True
    program = export_program(
        made, [tokens], max_len=64, kwargs={"key_padding_mask": padding}
    ).module()
    for B, N in SIZES:
        tokens, padding = torch.randint(9, (B, N)), torch.arange(N).repeat(B, 1) > N // 2
        torch.testing.assert_close(
            program(tokens, key_padding_mask=padding),
            made(tokens, key_padding_mask=padding),
            atol=1e-5,
            rtol=1e-5,
        )


def test_examples_that_would_become_constants_are_refused():
    for shape in ((1, 20, 16), (3, 1, 16)):
        with pytest.raises(ValueError, match="constants"):
            export_program(module("full"), [torch.randn(shape)])


def test_training_mode_is_left_as_it_was():
    made = module("full").train()
    export_program(made, [torch.randn(3, 20, 16)], max_len=64)
    assert made.training


@pytest.mark.parametrize("variant", SHIPPED)
def test_onnx(variant, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    made = module(variant)
    path = export_onnx(made, [torch.randn(3, 20, 16)], tmp_path / "m.onnx", max_len=64)
    session = onnxruntime.InferenceSession(str(path))
    name = session.get_inputs()[0].name
    for B, N in SIZES:
        x = torch.randn(B, N, 16)
        (found, *_) = session.run(None, {name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), made(x)[0], atol=1e-4, rtol=1e-4)


def test_a_language_model_in_onnx(tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    made = LanguageModel(11, max_len=64, d_model=16, nhead=2, variant="local_window").eval()
    path = export_onnx(made, [torch.randint(11, (3, 20))], tmp_path / "m.onnx", max_len=64)
    session = onnxruntime.InferenceSession(str(path))
    for B, N in SIZES:
        tokens = torch.randint(11, (B, N))
        (found,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), made(tokens), atol=1e-4, rtol=1e-4)
