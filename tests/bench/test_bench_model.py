"""Whole models: what is timed is the person's model, and what it tells of attention is so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import model_toys
import pytest
import torch

import efficient_attn as ea
from efficient_attn import cli
from efficient_attn.analysis.whole_model import flips, rows
from efficient_attn.bench.model import FreeAttention, ModelSubject, ModelWorkload, open_model
from efficient_attn.bench.race import CostSettings
from efficient_attn.bench.store import Store

QUICK = CostSettings(
    target=0.5, min_rounds=6, max_rounds=6, budget_s=1.0, warm_up_s=0.01, warm_up_max_s=0.02
)


@pytest.fixture(autouse=True)
def found_by_workers(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    sys.path.insert(0, str(Path(__file__).parent))
    asked = {
        "variants": ["full", "local_window", "linformer"],
        "options": {"local_window": {"window": 4}},
        "results": folder,
        "settings": QUICK,
        "batch": 2,
    }
    found = ea.bench_model(model_toys.language_model, [16, 32], **asked)
    again = ea.bench_model(model_toys.language_model, [16, 32], **asked)
    sys.path.pop(0)
    assert [one.cell for one in found] == [one.cell for one in again], "measured again"
    return found


def test_every_contestant_has_a_record_and_refusals_are_told(records):
    models = [one for one in records if one.measure == "model"]
    assert [one.contestant for one in models if one.request["length"] == 16] == [
        "original",
        "no attention",
        "full",
        "local_window",
        "linformer",
    ]
    refused = [one for one in models if one.contestant == "linformer"]
    assert all(one.status == "unsupported" and "causal" in one.reason for one in refused)
    others = [one for one in models if one.contestant != "linformer"]
    assert all(one.ok for one in others), [one.reason for one in others]


def test_drift_is_the_outputs(records):
    """Against the two models, run here."""
    by_name = {
        one.contestant: one.result
        for one in records
        if one.measure == "model" and one.request["length"] == 32 and one.ok
    }
    assert by_name["full"]["drift"] < 1e-5
    assert by_name["original"]["drift"] is None
    assert by_name["no attention"]["drift"] is None
    torch.manual_seed(0)
    model, tokens = model_toys.language_model(32, 2)
    with torch.no_grad():
        before = model.eval()(tokens)
        ea.swap(model, "local_window", window=4)
        after = model(tokens)
    drift = ((after - before).norm() / before.norm()).item()
    assert by_name["local_window"]["drift"] == pytest.approx(drift, rel=1e-3)


def test_attention_alone_is_measured_at_the_models_sizes(records):
    costs = [one for one in records if one.measure == "cost"]
    assert {one.contestant for one in costs} == {"full", "local_window", "linformer"}
    for one in costs:
        w = one.workload
        assert (w.heads, w.head_dim, w.batch, w.pattern) == (2, 8, 2, "causal_self")


def test_rows_and_flips(records):
    found = rows(records)
    assert [row.contestant for row in found[:2]] == ["original", "no attention"]
    for row in found:
        if row.contestant not in ("original", "no attention") and row.ms:
            assert row.share is not None
            assert 0 <= row.share[0] <= 1
            assert row.to_original is not None
            assert row.to_original.paired
    assert {flip.contestant for flip in flips(records)} == {"full", "local_window"}


def test_without_attention_every_parameter_still_gets_a_gradient():
    for source, length in (("model_toys:language_model", 8), ("model_toys:encoder", 8)):
        work = ModelWorkload(source, length, pass_="forward_backward")
        subject = ModelSubject(FreeAttention.name, {}, work)
        subject._call()
        assert all(weight.grad is not None for weight in subject._model.parameters())
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4, requires_grad=True)
    core = ea.attention.make_core("no_attention", 2, 4)
    out = core(q, k, k, ea.attention.AttentionMask())
    assert out.shape == (1, 2, 3, 4)
    out.sum().backward()
    assert k.grad is not None


def test_it_stays_out_of_lists():
    assert FreeAttention.name not in ea.list_variants()


@pytest.mark.parametrize("pass_", ["forward", "forward_backward", "train_step"])
def test_passes_do_what_they_say(pass_):
    subject = ModelSubject(None, {}, ModelWorkload("model_toys:encoder", 8, pass_=pass_))
    weight = next(subject._model.parameters())
    before = weight.detach().clone()
    subject._call()
    assert subject._model.training == (pass_ != "forward")
    assert (weight.grad is not None) == (pass_ == "forward_backward")
    assert torch.equal(weight, before) == (pass_ != "train_step")


def test_the_command(tmp_path, capsys):
    pytest.importorskip("transformers")
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "bert",
                "architectures": ["BertForMaskedLM"],
                "hidden_size": 16,
                "num_attention_heads": 2,
                "num_hidden_layers": 1,
                "intermediate_size": 16,
                "vocab_size": 40,
                "max_position_embeddings": 16,
            }
        )
    )
    asked = ["bench-model", "--hf-config", str(config), "--lengths", "24,32"]
    asked += ["--variants", "full,local_window,linformer", "--option", "linformer.k=4"]
    asked += ["--results", str(tmp_path / "results"), "--threads", "1"]
    assert cli.main(asked) == 0
    said = capsys.readouterr().out
    for word in ("no attention", "in attention", "drift", "attention alone", "N=32", "Figure"):
        assert word in said
    assert (tmp_path / "results" / "model.svg").is_file()
    assert cli.main([*asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    lengths = {row["length"] for row in answer["rows"]}
    assert lengths == {24, 32}
    full = [row for row in answer["rows"] if row["contestant"] == "full"]
    assert all(row["drift"] < 1e-4 for row in full)
    fresh = [row for row in answer["rows"] if row["contestant"] == "linformer"]
    assert all(row["drift"] is None and row["status"] == "ok" for row in fresh)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
def test_fresh_weights_have_the_positions_that_the_length_asks_for(kind, tmp_path):
    """RoBERTa and its kin start to count at pad_token_id + 1."""
    pytest.importorskip("transformers")
    config = {
        "model_type": kind,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "vocab_size": 40,
        "max_position_embeddings": 16,
        "pad_token_id": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for length in (15, 16, 24):
        model, inputs = open_model(f"hf:{tmp_path}", length, 1)
        inputs["input_ids"].fill_(7)
        assert model(**inputs).last_hidden_state.shape == (1, length, 16)
    if kind == "roberta":
        open_model(f"hf:{tmp_path}", 14, 1)[0].save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="at most 14 tokens, not 15"):
            open_model(f"hf:{tmp_path}", 15, 1)


def test_reading_results_knows_models(records, tmp_path):
    """The folder can be plotted, reported and exported like any other."""
    store = Store(tmp_path / "all")
    for record in records:
        store.write(record)
    assert cli.main(["export", str(tmp_path / "all")]) == 0
    assert cli.main(["plot", str(tmp_path / "all"), "--format", "svg"]) == 0
    assert cli.main(["report", str(tmp_path / "all")]) == 0


def test_wrong_requests(capsys):
    wrong = [
        (["--model", "no_such_module:make"], "no function"),
        (["--model", "model_toys:language_model", "--lengths", "few"], "whole numbers"),
        (["--model", "model_toys:language_model", "--variants", "fulll"], "unknown"),
        (["--model", "model_toys:language_model", "--option", "window=3"], "VARIANT"),
        (["--hf-config", "no/such/folder"], "there is no"),
    ]
    for words, said in wrong[1:4]:
        assert cli.main(["bench-model", *words]) == 2
        assert said in capsys.readouterr().err
    for words, said in (wrong[0], wrong[4]):
        source = words[1] if words[0] == "--model" else "hf:" + words[1]
        with pytest.raises(ValueError, match=said):
            open_model(source, 8, 1)
    with pytest.raises(ValueError, match="top"):
        ea.bench_model(lambda length, batch: None, [8])


def test_a_model_without_attention_is_said_so(tmp_path):
    found = ea.bench_model(
        model_toys.nothing_to_swap, [8], ["full"], results=tmp_path, settings=QUICK
    )
    by_name = {one.contestant: one for one in found}
    assert by_name["original"].ok
    assert not by_name["full"].ok
    assert "nothing to replace" in by_name["full"].reason
