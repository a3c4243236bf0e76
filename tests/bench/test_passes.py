"""What each pass and scope calls: the thing it names, from the same start every time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from shipped import SHIPPED

from efficient_attn.attention import (
    AttentionVariant,
    Capabilities,
    UnsupportedAttention,
    describe,
    register_variant,
    unregister_variant,
    variant_class,
)
from efficient_attn.attention.masks import AttentionMask
from efficient_attn.bench.cell import Contestant
from efficient_attn.bench.cost import CostSubject
from efficient_attn.bench.cost_cell import CostCell, CostSettings
from efficient_attn.bench.passes import FEED_FORWARD, build
from efficient_attn.bench.record import Record
from efficient_attn.bench.training import Diverged
from efficient_attn.bench.worker import Limits
from efficient_attn.bench.workload import PASSES, PATTERNS, Workload
from efficient_attn.nn import TransformerEncoderLayer

SMALL = Workload(batch=2, heads=2, head_dim=8, length=24)
DECODING = [name for name in SHIPPED if describe(name).capabilities.decode]


def every_workload() -> Iterator[Workload]:
    for pattern, pass_, scope, padding in product(
        PATTERNS, PASSES, ("core", "module", "block"), (0.0, 0.25)
    ):
        yield replace(SMALL, pattern=pattern, pass_=pass_, scope=scope, padding=padding)


@pytest.mark.parametrize("variant", SHIPPED)
def test_every_workload_runs_or_is_refused(variant: str) -> None:
    ran = 0
    for workload in every_workload():
        if workload.contradiction:
            continue
        can = variant_class(variant).capabilities
        honoured = (
            getattr(can, workload.pattern)
            and (can.key_padding or not workload.padding)
            and (can.decode or workload.pass_ not in ("prefill", "decode"))
        )
        if not honoured:
            with pytest.raises(UnsupportedAttention):
                CostSubject(variant, {}, workload)
            continue
        assert CostSubject(variant, {}, workload).prepare()["first_call_ms"] > 0
        ran += 1
    assert ran >= 8


@pytest.mark.parametrize("variant", DECODING)
@pytest.mark.parametrize("scope", ["core", "module"])
def test_prefill_is_the_causal_forward(variant: str, scope: str) -> None:
    prefill = build(
        variant, {}, replace(SMALL, pattern="causal_self", pass_="prefill", scope=scope)
    )
    forward = build(variant, {}, replace(SMALL, pattern="causal_self", scope=scope))
    # The random numbers of both are drawn in the same order: the same module, the same inputs.
    torch.testing.assert_close(prefill(), forward(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", DECODING)
@pytest.mark.parametrize("scope", ["core", "module"])
def test_decoding_starts_from_the_same_context_at_every_call(variant: str, scope: str) -> None:
    call = build(variant, {}, replace(SMALL, pattern="causal_self", pass_="decode", scope=scope))
    first = call()
    assert first.shape[-2 if scope == "core" else 1] == 1
    for _ in range(3):
        assert torch.equal(call(), first)
    assert call.subject.state is not None
    assert call.subject.state().position == SMALL.length


def test_a_token_of_full_sees_the_whole_context() -> None:
    call = build("full", {}, replace(SMALL, pattern="causal_self", pass_="decode"))
    torch.manual_seed(SMALL.seed)
    shape = (SMALL.batch, SMALL.heads, SMALL.length, SMALL.head_dim)
    _, k, v = (torch.randn(shape) for _ in range(3))
    q1, k1, v1 = (torch.randn(*shape[:2], 1, shape[3]) for _ in range(3))
    k, v = torch.cat([k, k1], -2), torch.cat([v, v1], -2)
    weights = (q1 @ k.transpose(-1, -2) / SMALL.head_dim**0.5).softmax(-1)
    torch.testing.assert_close(call(), weights @ v)


def test_the_state_of_full_is_its_keys_and_values() -> None:
    for pass_ in ("prefill", "decode"):
        subject = CostSubject("full", {}, replace(SMALL, pattern="causal_self", pass_=pass_))
        subject.prepare()
        assert subject.resources()["state_bytes"] == 2 * 2 * 2 * 24 * 8 * 4
    plain = CostSubject("full", {}, SMALL)
    plain.prepare()
    assert plain.resources()["state_bytes"] is None


def test_a_training_step_moves_the_parameters_and_leaves_no_gradients() -> None:
    call = build("full", {}, replace(SMALL, pass_="train_step", scope="module"))
    before = [p.detach().clone() for p in call.subject.module.parameters()]
    call()
    after = list(call.subject.module.parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(p.grad is None for p in after)


def test_forward_and_backward_moves_nothing() -> None:
    call = build("full", {}, replace(SMALL, pass_="forward_backward", scope="module"))
    before = [p.detach().clone() for p in call.subject.module.parameters()]
    call()
    assert all(leaf.grad is not None for leaf in call.subject.leaves)
    after = call.subject.module.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    call.reset()
    assert all(leaf.grad is None for leaf in call.subject.leaves)


def test_a_block_is_an_encoder_layer_without_dropout() -> None:
    for pass_ in ("forward", "forward_backward"):
        call = build("full", {}, replace(SMALL, pass_=pass_, scope="block"))
        block = call.subject.module
        assert isinstance(block, TransformerEncoderLayer)
        assert block.linear1.out_features == FEED_FORWARD * 16
        assert block.training == (pass_ == "forward_backward")
        assert torch.equal(call(), call()), "dropout would differ"


def test_compiling_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []

    def stand_in(function):  # type: ignore[no-untyped-def]
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", stand_in)
    facts = CostSubject("full", {}, replace(SMALL, compile=True)).prepare()
    assert len(compiled) == 1
    assert facts["compile_ms"] > 0
    assert CostSubject("full", {}, SMALL).prepare()["compile_ms"] is None


@dataclass(frozen=True)
class NoOptions:
    pass


class Broken(AttentionVariant):
    Options = NoOptions
    capabilities = Capabilities()

    def forward(self, q, k, v, mask: AttentionMask, dropout_p=0.0):  # type: ignore[no-untyped-def]
        out = v.clone()
        out[0, 0, 0, 0] = float("nan")
        return out


def test_output_that_is_not_finite_is_no_measurement() -> None:
    register_variant("broken")(Broken)
    try:
        with pytest.raises(Diverged, match="1 of 768 numbers of the output are NaN"):
            CostSubject("broken", {}, SMALL).prepare()
    finally:
        unregister_variant("broken")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pass_": "decode"}, "causal self-attention"),
        ({"pass_": "prefill", "pattern": "causal_cross"}, "causal self-attention"),
        ({"pass_": "decode", "pattern": "causal_self", "padding": 0.5}, "no padding"),
        ({"pass_": "train_step"}, "needs parameters"),
        ({"scope": "block", "pattern": "noncausal_cross"}, "no cross-attention"),
        ({"scope": "block", "pattern": "causal_self", "pass_": "decode"}, "measure scope=core"),
        ({"key_length": 7}, "needs a cross pattern"),
    ],
)
def test_what_nobody_can_be_asked_is_answered_once_without_a_worker(
    changes: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = replace(SMALL, **changes)  # type: ignore[arg-type]
    contestants = (Contestant("full", "full", {}), Contestant("performer", "performer", {}))
    cell = CostCell(contestants, Limits(1.0, 60.0), workload, CostSettings())
    monkeypatch.setattr(CostCell, "start_worker", lambda *_: pytest.fail("a worker was started"))
    records: list[Record] = list(cell.run(contestants, lambda share, what: None))
    assert [record.status for record in records] == ["unsupported"] * 2
    assert all(said in str(record.reason) for record in records)
