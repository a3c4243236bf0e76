"""Variants as attention of transformers' models: exactly eager's numbers, or a refusal."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from shipped import shipped

pytest.importorskip("transformers")

import transformers

from efficient_attn import UnsupportedAttention
from efficient_attn.integrations.transformers import make_cores, register

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "transformers_parity.py"
_spec = importlib.util.spec_from_file_location("transformers_parity", SCRIPT)
parity = importlib.util.module_from_spec(_spec)
sys.modules["transformers_parity"] = parity
_spec.loader.exec_module(parity)


@pytest.fixture(scope="module", autouse=True)
def registered():
    parity.register_all()


@pytest.mark.parametrize("implementation", parity.EXACT)
@pytest.mark.parametrize("name", parity.ARCHITECTURES)
def test_as_eager(name, implementation):
    architecture = parity.ARCHITECTURES[name]
    row = parity.compare(name, parity.prepared(architecture), architecture, implementation)
    assert row.ok, row
    if implementation in ("sdpa", "efficient_attn:full"):
        assert not row.reasons
    measured = [row.none, row.right, row.left, row.generate]
    assert any(value is not None for value in measured) or row.reasons


def test_the_comparison_can_fail():
    """A window of one neighbour is none of eager's."""
    register("narrow", "local_window", window=1)
    for name in ("BERT", "Llama"):
        architecture = parity.ARCHITECTURES[name]
        model = parity.prepared(architecture)
        row = parity.compare(name, model, architecture, "efficient_attn:narrow")
        assert min(row.none, row.right, row.left) > 1e-3


def small(kind, **settings):
    config = {
        "llama": transformers.LlamaConfig,
        "mistral": transformers.MistralConfig,
    }[kind](
        hidden_size=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        intermediate_size=16,
        max_position_embeddings=64,
        **{**parity.TOKENS, **settings},
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "norm" not in name:
            torch.nn.init.normal_(weight, std=0.2)
    return model


def logits(model, implementation, **inputs):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize("variant", shipped(causal=True))
def test_generating_with_a_cache_is_generating_without(variant):
    """For narrow windows and few features too, whose cache is transformers' own."""
    options = {
        "local_window": {"window": 3},
        "performer": {"num_features": 8},
        "shifted_window": {"window": 4},
    }.get(variant, {})
    (name,) = register(f"{variant}-small", variant, **options)
    model = small("llama")
    model.set_attn_implementation(name)
    tokens = torch.randint(3, parity.VOCABULARY, (2, 5))
    mask = torch.ones_like(tokens)
    mask[1, :2] = 0
    made = [
        model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=9,
            min_new_tokens=9,
            do_sample=False,
            use_cache=cached,
            output_scores=True,
            return_dict_in_generate=True,
        )
        for cached in (True, False)
    ]
    assert torch.equal(made[0].sequences, made[1].sequences)
    for ours, theirs in zip(made[0].scores, made[1].scores, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_static_cache():
    model = small("llama")
    tokens = torch.randint(3, parity.VOCABULARY, (2, 5))
    mask = torch.ones_like(tokens)
    mask[1, :2] = 0
    asked = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "attention_mask": mask}
    made = []
    for name in ("eager", "efficient_attn:full"):
        model.set_attn_implementation(name)
        made.append(model.generate(tokens, cache_implementation="static", **asked))
    assert torch.equal(*made)


def test_what_is_not_causal_is_refused_in_a_causal_model():
    (name,) = register("few", "linformer", k=4)
    model = small("llama")
    model.set_attn_implementation(name)
    with pytest.raises(UnsupportedAttention, match="causal"):
        model.generate(torch.randint(3, 9, (1, 4)), max_new_tokens=2)


def test_patterns_that_are_neither_causal_nor_bidirectional():
    """Packed sequences and sliding windows: full honours them, others say that they do not."""
    tokens = torch.randint(3, parity.VOCABULARY, (1, 10))
    packed = {"input_ids": tokens, "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]])}
    sliding = {"input_ids": tokens}
    for model, inputs in (
        (small("llama"), {**packed, "use_cache": False}),
        (small("mistral", sliding_window=3), {**sliding, "use_cache": False}),
    ):
        expected = logits(model, "eager", **inputs)
        found = logits(model, "efficient_attn:full", **inputs)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        with pytest.raises(UnsupportedAttention):
            logits(model, "efficient_attn:performer", **inputs)


def test_own_parameters_are_asked_for_before_training_and_are_in_the_state_dict():
    model = parity.prepared(parity.ARCHITECTURES["BERT"])
    (name,) = register("mixing", "linformer", k=4)
    model.set_attn_implementation(name)
    tokens = torch.randint(3, parity.VOCABULARY, (2, 8))
    with pytest.raises(RuntimeError, match="make_cores"):
        model(tokens)
    before = set(model.state_dict())
    names = make_cores(model, input_ids=tokens)
    assert len(names) == 2
    fresh = set(model.state_dict()) - before
    assert {key.rpartition(".")[2] for key in fresh} == {"E", "F"}
    model(tokens).last_hidden_state.sum().backward()
    assert all(model.get_parameter(key).grad is not None for key in fresh)


def test_without_parameters_the_state_dict_is_the_models_own():
    model = parity.prepared(parity.ARCHITECTURES["BERT"])
    before = set(model.state_dict())
    model.set_attn_implementation("efficient_attn:performer")
    tokens = torch.randint(3, parity.VOCABULARY, (2, 8))
    with torch.no_grad():
        first = model(tokens).last_hidden_state
        again = model(tokens).last_hidden_state
    assert set(model.state_dict()) == before
    assert torch.equal(first, again)


def test_options_in_the_config():
    register()
    model = parity.prepared(parity.ARCHITECTURES["BERT"])
    tokens = torch.randint(3, parity.VOCABULARY, (2, 12))
    model.set_attn_implementation("efficient_attn:local_window")
    model.config.efficient_attn_options = {"window": 1}
    register("one", "local_window", window=1)
    with torch.no_grad():
        found = model(tokens).last_hidden_state
        model.set_attn_implementation("efficient_attn:one")
        assert torch.equal(found, model(tokens).last_hidden_state)


def test_other_options_take_effect_on_a_model_that_has_run():
    """Of a name that is registered again, and of the config."""
    tokens = torch.randint(3, parity.VOCABULARY, (2, 12))

    def narrow(window):
        model = parity.prepared(parity.ARCHITECTURES["BERT"])
        model.set_attn_implementation(*register("fresh", "local_window", window=window))
        return model(tokens).last_hidden_state

    with torch.no_grad():
        model = parity.prepared(parity.ARCHITECTURES["BERT"])
        for window in (1, 3):
            model.set_attn_implementation(*register("again", "local_window", window=window))
            assert torch.equal(model(tokens).last_hidden_state, narrow(window))
        register()
        model.set_attn_implementation("efficient_attn:local_window")
        for window in (2, 4):
            model.config.efficient_attn_options = {"window": window}
            assert torch.equal(model(tokens).last_hidden_state, narrow(window))


def test_layers_keep_their_depth_when_options_change():
    model = parity.prepared(parity.ARCHITECTURES["ViT"])
    inputs = parity.make_inputs(parity.ARCHITECTURES["ViT"], "none")
    with torch.no_grad():
        for window in (2, 4, 6):
            model.set_attn_implementation(*register("deep", "shifted_window", window=window))
            model(**inputs)
    depths = [
        part.__dict__["_efficient_attn_layer"]
        for part in model.modules()
        if "_efficient_attn_layer" in part.__dict__
    ]
    assert depths == [0, 1]


class Layer(torch.nn.Module):
    is_causal = False


@pytest.mark.parametrize("name", ["softcap", "s_aux", "sinks", "indices", "block_indices", "new"])
def test_what_changes_attention_beside_the_mask_is_refused(name):
    """Models that have none give None or nothing."""
    from efficient_attn.integrations.transformers.attention import _attention

    run = partial(_attention, "full", "full", {}, Layer(), *torch.randn(3, 1, 2, 4, 8), None)
    run(**{name: None}, position_ids=torch.arange(4))
    value = 30.0 if name == "softcap" else torch.zeros(2)
    with pytest.raises(UnsupportedAttention, match=f"{name}.*No variant of this package"):
        run(**{name: value})


def test_packed_sequences_need_their_mask():
    from efficient_attn.integrations.transformers.attention import _attention

    q, borders = torch.randn(1, 2, 4, 8), torch.tensor([0, 2, 4])
    mask = torch.block_diag(*torch.ones(2, 2, 2)).bool()[None, None]
    _attention("full", "full", {}, Layer(), q, q, q, mask, cu_seq_lens_q=borders)
    with pytest.raises(UnsupportedAttention, match="cu_seq_lens_q"):
        _attention("full", "full", {}, Layer(), q, q, q, None, cu_seq_lens_q=borders)


def test_masks_of_whole_numbers_are_refused():
    """Added to the scores, 0 and 1 would hide nothing."""
    model = small("llama")
    tokens = torch.randint(3, parity.VOCABULARY, (1, 4))
    mask = torch.ones(4, 4, dtype=torch.long).tril()[None, None]
    with pytest.raises(ValueError, match=r"int64.*bool.*floats"):
        logits(model, "efficient_attn:full", input_ids=tokens, attention_mask=mask)


def test_windows_shift_in_every_second_layer():
    model = parity.prepared(parity.ARCHITECTURES["ViT"])
    (name,) = register("shifting", "shifted_window", window=4)
    model.set_attn_implementation(name)
    with torch.no_grad():
        model(**parity.make_inputs(parity.ARCHITECTURES["ViT"], "none"))
    cores = [
        core
        for part in model.modules()
        for core in part.__dict__.get("_efficient_attn_cores", {}).values()
    ]
    assert [core.options.shift for core in cores] == [0, 2]


def test_weights_when_they_are_asked_for():
    model = parity.prepared(parity.ARCHITECTURES["BERT"])
    tokens = torch.randint(3, parity.VOCABULARY, (2, 8))
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(tokens, output_attentions=True).attentions
        model.set_attn_implementation("efficient_attn:full")
        found = model(tokens, output_attentions=True).attentions
    if found[0] is not None:
        torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)


def test_another_variant_across():
    """Windows within each sequence and full attention between them, where windows would refuse."""
    architecture = parity.ARCHITECTURES["BART"]
    register("windows_and_full", "local_window", window=64, cross_variant="full")
    model = parity.prepared(architecture)
    row = parity.compare("BART", model, architecture, "efficient_attn:windows_and_full")
    assert not row.reasons
    assert max(row.none, row.right, row.left, row.generate) < 1e-5


def test_wrong_names_and_options_are_refused_when_registered():
    with pytest.raises(ValueError, match="unknown attention variant"):
        register("nothing")
    with pytest.raises(ValueError, match="windou"):
        register("short", "local_window", windou=3)
    with pytest.raises(ValueError, match="name"):
        register(variant="local_window", window=3)
