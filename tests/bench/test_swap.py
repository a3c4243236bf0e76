"""Swapping attention in a trained model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from efficient_attn.attention import MultiHeadAttention
from efficient_attn.bench import environment
from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.decoding_state import state_bytes
from efficient_attn.bench.swap import attention_inputs
from efficient_attn.bench.swap_cell import SwapCell
from efficient_attn.bench.training import Training, fit
from efficient_attn.bench.worker import Limits
from efficient_attn.nn import Seq2Seq
from efficient_attn.tasks import Copying, Digits, ModelConfig, Mqar

TASK = Mqar(length=16, pairs=2, vocab=8, evaluation=200)
SMALL = ModelConfig(d_model=32, nhead=2, num_layers=2, dim_feedforward=32)
TRAINING = Training(steps=60, batch_size=32, learning_rates=(1e-2,))
FULL = Contestant("full", "full", {})
WIDE = Contestant("wide", "local_window", {"window": 16})
NARROW = Contestant("narrow", "local_window", {"window": 1})
LINFORMER = Contestant("linformer", "linformer", {"k": 4})


@pytest.fixture(scope="module", autouse=True)
def scratch(tmp_path_factory):
    """Where trained models are kept."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("scratch")
    patch.setattr(environment, "scratch_folder", lambda: folder)
    yield folder
    patch.undo()


def cell(*contestants, training=TRAINING, steps=20, rates=(1e-2,)) -> SwapCell:
    limits = Limits(8, 120)
    return SwapCell(
        contestants,
        limits,
        TASK,
        SMALL,
        training,
        1,
        "cpu",
        1,
        1,
        finetune_steps=steps,
        finetune_rates=rates,
    )


def run(cell: SwapCell) -> dict:
    records = list(cell.run(cell.contestants, lambda *told: None))
    return {record.contestant: record for record in records}


@pytest.fixture(scope="module")
def records() -> dict:
    return run(cell(FULL, WIDE, NARROW, LINFORMER))


def test_full_for_full_changes_nothing_and_is_the_trained_model(records) -> None:
    result = records["full"].result
    assert result["swapped"] == result["before"]
    assert result["before"] == fit(TASK, "full", {}, SMALL, TRAINING, seed=1).value
    assert result["before"] > 0.6
    assert max(e for layer in result["layers"] for e in layer["relative_error"]) < 1e-5
    assert result["fresh_parameters"] == 0


def test_a_window_over_everything_is_full(records) -> None:
    wide, full = records["wide"].result, records["full"].result
    assert wide["swapped"] == full["before"]
    assert wide["tuned"] == pytest.approx(full["tuned"], abs=0.02)
    assert max(e for layer in wide["layers"] for e in layer["relative_error"]) < 1e-5


def test_a_window_over_nothing_loses_what_it_cannot_see(records) -> None:
    result = records["narrow"].result
    assert [layer["layer"] for layer in result["layers"]] == [
        f"trunk.encoder.layers.{number}.self_attn" for number in range(2)
    ]
    assert all(len(layer["relative_error"]) == 2 for layer in result["layers"])
    assert result["swapped"] < result["before"] - 0.2
    assert result["tuned"] > result["swapped"]
    assert result["steps"] == 20
    assert [trial["status"] for trial in result["trials"]] == ["ok"]


def test_what_cannot_be_causal_is_a_record(records) -> None:
    assert records["linformer"].status == "unsupported"
    assert "linformer" in records["linformer"].reason


def test_a_trained_model_serves_other_swaps(records, scratch) -> None:
    """Without a fine-tune there is none, and the model is not trained again."""
    (kept,) = (scratch / "trained").iterdir()
    again = run(cell(FULL, NARROW, steps=0))
    assert list((scratch / "trained").iterdir()) == [kept]
    result = again["narrow"].result
    assert result["swapped"] == records["narrow"].result["swapped"]
    assert (result["tuned"], result["trials"], result["curve"]) == (None, [], [])
    assert again["full"].request["finetune"] == {"steps": 0, "learning_rates": []}


def test_a_fine_tune_that_diverges_keeps_the_swap(records) -> None:
    result = run(cell(FULL, NARROW, rates=(1e30,)))["narrow"].result
    assert result["swapped"] == records["narrow"].result["swapped"]
    assert result["tuned"] is None
    assert result["trials"] == [{"learning_rate": 1e30, "validation": None, "status": "diverged"}]


def test_a_full_model_that_cannot_be_trained_fails_all() -> None:
    hopeless = Training(steps=8, batch_size=8, learning_rates=(1e30,), clip=1e30, warmup=0.0)
    failed = run(cell(FULL, NARROW, training=hopeless))
    assert {record.status for record in failed.values()} == {"diverged"}
    assert failed["narrow"].reason.startswith("the full model to replace attention in:")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps": -1}, r"finetune_steps=-1"),
        ({"rates": (0.0,)}, r"measure\.finetune_rates: .*positive"),
    ],
    ids=str,
)
def test_impossible_fine_tunes_are_named(changed, said) -> None:
    with pytest.raises(ValueError, match=said):
        cell(FULL, **changed)
    with pytest.raises(ValueError, match="needs full among its contestants"):
        cell(NARROW)


def test_inputs_of_attention_give_the_output_of_attention() -> None:
    """Through softmax written out here, with rotary positions, which act before the core."""
    config = ModelConfig(d_model=16, nhead=2, num_layers=2, positions="rotary")
    model = TASK.build_model("full", {}, config)
    batch = next(TASK.batches(0, 3))
    outputs: dict[str, torch.Tensor] = {}
    for name, part in model.named_modules():
        if isinstance(part, MultiHeadAttention):
            part.core.register_forward_hook(
                lambda _, args, out, name=name: outputs.update({name: out.detach()})
            )
    seen = attention_inputs(TASK, model, batch)
    assert seen.keys() == outputs.keys()
    assert len(seen) == 2
    for name, (q, k, v, mask) in seen.items():
        assert mask.causal
        scores = (q.double() @ k.double().transpose(-1, -2)) / np.sqrt(8)
        scores = scores.masked_fill(torch.ones(16, 16).triu(1).bool(), -torch.inf)
        expected = scores.softmax(-1) @ v.double()
        torch.testing.assert_close(outputs[name].double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("variant", "options", "bytes_of_a_layer"),
    [
        ("full", {}, 2 * 16 * 32 * 4),  # keys and values of 16 tokens, 32 wide, fp32
        ("local_window", {"window": 5}, 2 * 5 * 32 * 4),
        ("local_window", {"window": 99}, 2 * 16 * 32 * 4),
        # of 2 heads: sums of values and 1 for each feature, and their scale, in fp64
        ("performer", {"num_features": 12}, 2 * (12 * (16 + 1) + 1) * 8),
    ],
)
def test_the_state_by_hand(variant, options, bytes_of_a_layer) -> None:
    plain = ModelConfig(d_model=32, nhead=2, num_layers=3, short_conv=0)
    model = TASK.build_model(variant, options, plain)
    assert state_bytes(TASK, model) == 3 * bytes_of_a_layer
    convolved = ModelConfig(d_model=32, nhead=2, num_layers=3, short_conv=3)
    last_inputs = 2 * 32 * 4
    model = TASK.build_model(variant, options, convolved)
    assert state_bytes(TASK, model) == 3 * (bytes_of_a_layer + last_inputs)


def test_a_model_that_does_not_decode_has_no_state() -> None:
    digits = Digits()
    assert state_bytes(digits, digits.build_model("full", {}, SMALL)) is None
    assert state_bytes(Copying(), Seq2Seq(12, max_len=8)) is None
    result = fit(TASK, "full", {}, SMALL, Training(steps=1, learning_rates=(1e-3,)), seed=0)
    assert result.state_bytes == 2 * (2 * 16 * 32 * 4 + 2 * 32 * 4)
