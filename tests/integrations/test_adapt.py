"""A trained model that gets another attention: better after the lessons, and resumable."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import torch.nn.functional as F

import efficient_attn as ea
from efficient_attn import cli
from efficient_attn.integrations.adapt import Adapting, adapt
from efficient_attn.nn import LanguageModel

TEXT = b"the cat sat on the mat and the dog ate the hat. " * 400
HOW = Adapting(match_steps=6, steps=8, save_every=4)


def trained():
    """A small model that knows the text: its window of four words is what attention is for."""
    torch.manual_seed(0)
    model = LanguageModel(256, max_len=64, d_model=32, nhead=2, num_layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(60):
        optimizer.zero_grad()
        loss(model, batch(step)).backward()
        optimizer.step()
    return model.eval()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(TEXT) - 32, (8, 1), generator=generator)
    tokens = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8)
    return tokens[starts + torch.arange(32)].long()


def loss(model, windows):
    return F.cross_entropy(model(windows)[:, :-1].flatten(0, 1), windows[:, 1:].flatten())


def metric(model):
    with torch.no_grad():
        return loss(model.eval(), batch(-1)).item()


def teach(model, how=HOW, **settings):
    return adapt(
        model,
        "performer",
        batches=batch,
        loss=loss,
        metric=metric,
        how=how,
        num_features=8,
        **settings,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The trained model, saved, and the text beside it."""
    place = tmp_path_factory.mktemp("trained")
    trained().save_pretrained(place / "model")
    (place / "text.txt").write_bytes(TEXT)
    return place


def load(folder):
    return ea.from_pretrained(folder / "model")


def test_matching_and_lessons_bring_the_metric_back(folder):
    model = load(folder)
    how = Adapting(match_steps=40, steps=60, rate=3e-3, match_rate=3e-3)
    found = teach(model, how)
    assert found.before < found.swapped
    assert found.matched < found.swapped
    assert found.adapted < found.swapped
    assert found.adapted == metric(model)
    assert not model.training
    assert [layer.self_attn.variant for layer in model.trunk.encoder.layers] == ["performer"] * 2
    assert len(found.curve) == 60
    assert found.seconds > 0


class Stopped(Exception):  # noqa: N818
    """As a person stops a run."""


@pytest.mark.parametrize("where", [("match", 5), ("task", 2), ("task", 7)])
def test_a_run_that_was_stopped_goes_on_to_the_same_end(folder, tmp_path, where):
    whole, halted = load(folder), load(folder)
    expected = teach(whole)

    def stop(stage, step, steps, value):
        if (stage, step) == where:
            raise Stopped

    with pytest.raises(Stopped):
        teach(halted, checkpoint=tmp_path / "adapt.pt", report=stop)
    halted = load(folder)
    steps = []
    found = teach(
        halted, checkpoint=tmp_path / "adapt.pt", report=lambda *told: steps.append(told[:2])
    )
    assert steps[0][1] > 1 or where == ("task", 2)
    assert found.adapted == pytest.approx(expected.adapted, rel=1e-6)
    assert [value for _, value in found.curve] == pytest.approx(
        [value for _, value in expected.curve], rel=1e-5
    )
    again = teach(
        load(folder), checkpoint=tmp_path / "adapt.pt", report=lambda *told: pytest.fail("taught")
    )
    assert again.adapted == pytest.approx(expected.adapted, rel=1e-6)


SHORT = Adapting(match_steps=1, steps=1)


def test_a_checkpoint_of_another_run_is_refused(folder, tmp_path):
    """Named is what differs."""
    kept = tmp_path / "adapt.pt"
    teach(load(folder), SHORT, checkpoint=kept, run={"text": "a"})
    other = load(folder)
    with torch.no_grad():
        other.head.weight[0, 0] += 1
    for model, how, more, said in (
        (load(folder), Adapting(match_steps=1, steps=2), {}, "steps: 1, now 2"),
        (other, SHORT, {}, "weights: "),
        (load(folder), SHORT, {"run": {"text": "b"}}, "text: 'a', now 'b'"),
        (load(folder), SHORT, {"where": "*layers.0*"}, "where: "),
        (load(folder), SHORT, {"max_len": 64}, "max_len: None, now 64"),
    ):
        with pytest.raises(ValueError, match=f"another run .*{said}.*delete"):
            teach(model, how, checkpoint=kept, **{"run": {"text": "a"}, **more})
    teach(load(folder), SHORT, checkpoint=kept, run={"text": "a"})


def test_a_damaged_checkpoint_is_named(folder, tmp_path):
    kept = tmp_path / "adapt.pt"
    teach(load(folder), SHORT, checkpoint=kept)
    for content in (kept.read_bytes()[:2000], b"no checkpoint", b""):
        kept.write_bytes(content)
        with pytest.raises(ValueError, match=r"adapt\.pt is damaged.*delete"):
            teach(load(folder), SHORT, checkpoint=kept)


def test_padded_batches_of_an_encoder_of_torch():
    """In eval it packs them in nested tensors, which match no others."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    padding = torch.arange(6) >= torch.tensor([[6], [3]])

    def error(model, x):
        return model(x, src_key_padding_mask=padding)[~padding].square().mean()

    found = adapt(
        model,
        "local_window",
        batches=lambda step: torch.randn(2, 6, 16),
        loss=error,
        metric=lambda model: error(model.eval(), torch.ones(2, 6, 16)).item(),
        how=SHORT,
        window=1,
    )
    assert len(found.replaced) == 2


@pytest.mark.parametrize("field", ["match_steps", "steps", "rate", "save_every"])
def test_settings_out_of_range(field):
    with pytest.raises(ValueError, match=field):
        Adapting(**{field: -1})


def command(folder, out, *more):
    asked = f"--text {folder / 'text.txt'} --out {out} --length 32 --batch 4"
    steps = "--match-steps 3 --steps 4"
    return cli.main(["adapt", str(folder / "model"), *asked.split(), *steps.split(), *more])


def test_the_command_with_a_model_of_this_package(folder, tmp_path, capsys):
    assert command(folder, tmp_path, "--variant", "local_window", "--option", "window=4") == 0
    said = capsys.readouterr().out
    assert "bits per byte" in said
    assert "after the swap" in said
    model = ea.from_pretrained(tmp_path / "model")
    assert model.trunk.encoder.layers[0].self_attn.core.options.window == 4
    result = json.loads((tmp_path / "adapt.json").read_text())
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"{result['adapted']:.4f}" in card
    assert "local_window" in card


@pytest.mark.parametrize(
    ("kind", "variant"),
    [("GPT2LMHeadModel", "local_window"), ("BertForMaskedLM", "linformer")],
)
def test_the_command_with_a_checkpoint_of_transformers(kind, variant, folder, tmp_path, capsys):
    """Loaded again it is the same model: parameters of its attention are in the checkpoint."""
    transformers = pytest.importorskip("transformers")
    from efficient_attn.integrations.transformers import load as load_checkpoint

    configs = {
        "GPT2LMHeadModel": lambda: transformers.GPT2Config(
            vocab_size=256, n_embd=16, n_head=2, n_layer=1, n_positions=64
        ),
        "BertForMaskedLM": lambda: transformers.BertConfig(
            vocab_size=257,
            hidden_size=16,
            num_attention_heads=2,
            num_hidden_layers=1,
            intermediate_size=16,
            max_position_embeddings=64,
        ),
    }
    torch.manual_seed(0)
    getattr(transformers, kind)(configs[kind]()).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_bytes(TEXT)
    options = {"local_window": "window=4", "linformer": "k=8"}
    out = tmp_path / "out"
    asked = ("--variant", variant, "--option", options[variant], "--json")
    assert command(tmp_path, out, *asked) == 0
    result = json.loads(capsys.readouterr().out)
    assert "token" in result["unit"] or "byte" in result["unit"]
    card = (out / "model" / "README.md").read_text()
    assert "from efficient_attn.integrations.transformers import load" in card
    assert "full attention" in card
    model = load_checkpoint(out / "model")
    again = load_checkpoint(out / "model")
    tokens = batch(0)[:2]
    with torch.no_grad():
        first = model(tokens).logits
        assert torch.equal(first, again(tokens).logits)
        state = torch.load(out / "adapt.pt", weights_only=True)["model"]
        model.load_state_dict(state)
        assert torch.equal(first, model(tokens).logits)


def test_what_is_wrong_is_said(folder, tmp_path, capsys):
    assert command(folder, tmp_path / "a", "--variant", "linformerr") == 2
    assert "unknown attention variant" in capsys.readouterr().err
    assert command(folder, tmp_path / "b", "--variant", "linformer", "--option", "k=4") == 2
    assert "causal" in capsys.readouterr().err
    assert command(folder, tmp_path / "c", "--variant", "full", "--length", "4000") == 2
    assert "too few" in capsys.readouterr().err
    assert command(folder, tmp_path / "d", "--variant", "full") == 0
    assert command(folder, tmp_path / "d", "--variant", "full", "--seed", "1") == 2
    assert "seed: 0, now 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--batch 0", "batch=0: allowed is"),
        ("--length 0", "length=0: allowed is"),
        ("--length -5", "length=-5: allowed is"),
        ("--length 1", "length=1: allowed is"),
    ],
)
def test_sizes_out_of_range_are_said(flags, said, folder, tmp_path, capsys):
    assert command(folder, tmp_path, "--variant", "full", *flags.split()) == 2
    assert said in capsys.readouterr().err


def test_damaged_inputs_are_named(folder, tmp_path, capsys):
    place = tmp_path / "place"
    shutil.copytree(folder, place)
    (place / "text.txt").write_bytes(b"")
    assert command(place, tmp_path / "a", "--variant", "full") == 2
    assert "text.txt is empty" in capsys.readouterr().err
    shutil.copy(folder / "text.txt", place)
    for content in ("{", "5"):
        (place / "model" / "config.json").write_text(content)
        assert command(place, tmp_path / "b", "--variant", "full") == 2
        assert "config.json is no config" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert (
        cli.main(
            [
                "adapt",
                str(empty),
                "--text",
                str(folder / "text.txt"),
                "--out",
                "o",
                "--variant",
                "full",
            ]
        )
        == 2
    )
    assert "checkpoint" in capsys.readouterr().err


def test_damaged_weights_of_transformers_are_named(tmp_path):
    transformers = pytest.importorskip("transformers")
    from efficient_attn.integrations.transformers import load as load_checkpoint

    config = transformers.GPT2Config(vocab_size=256, n_embd=16, n_head=2, n_layer=1, n_positions=64)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    weights, said = tmp_path / "model.safetensors", tmp_path / "config.json"
    whole, content = weights.read_bytes(), json.loads(said.read_text())
    weights.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=f"{tmp_path.name} are damaged"):
        load_checkpoint(tmp_path)
    weights.write_bytes(whole)
    said.write_text(json.dumps({**content, "n_embd": 32}))
    with pytest.raises(ValueError, match=f"{tmp_path.name} are damaged"):
        load_checkpoint(tmp_path)
