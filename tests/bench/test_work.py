"""Formulas of FLOPs and bytes against what the calls do, for every variant, pass and scope."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from shipped import SHIPPED
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from efficient_attn.attention import make_core, variant_class
from efficient_attn.attention.variant import AttentionVariant
from efficient_attn.bench.flop_counter import count_flops
from efficient_attn.bench.passes import build
from efficient_attn.bench.work import Work, work_of
from efficient_attn.bench.workload import PASSES, PATTERNS, Workload

H, D = 2, 4
E = H * D
LENGTHS = [1, 7, 70, 71, 520]
CROSSED = [(1, 7), (7, 1), (150, 300), (600, 530)]
FEW_LENGTHS, FEW_CROSSED = [71], [(7, 1)]
# Sizes at the edges: 70 tokens are the last that window 3 takes densely, 512 queries a chunk of
# causal full attention, 128 tokens one of performer.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "full": [{}, {"implementation": "naive"}],
    "local_window": [{"window": 3}, {"window": (5, 2), "global_tokens": 3}, {"window": 0}],
    "linformer": [{"k": 4}, {"k": 9, "share": "none"}, {"k": 4, "share": "kv", "max_len": 700}],
    "performer": [{"num_features": 5}],
    "shifted_window": [
        {"window": 7},
        {"window": 8, "shift": 3},
        {"window": 8, "shift": 3, "relative_bias": True},
        {"window": (3, 4), "shift": (1, 2), "grid": (5, 14)},
        {"window": 4, "grid": (7, 10), "relative_bias": True},
    ],
}
CONTESTANTS = [
    pytest.param(name, options, id=f"{name}-{options}")
    for name in SHIPPED
    for options in OPTIONS.get(name, [{}])
]


def workloads(
    name: str,
    options: dict[str, Any],
    scope: str,
    lengths: list[int],
    crossed: list[tuple[int, int]],
) -> Iterator[Workload]:
    """Everything of `scope` that the variant honours; with padding, two samples of the last
    lengths."""
    given = {"max_len": 700, **options} if name == "linformer" else options
    core = make_core(name, H, D, **given)
    if "grid" in options:
        lengths = [options["grid"][0] * options["grid"][1]]
    selves = [(length, None) for length in lengths]
    for pattern, pass_, padding in product(PATTERNS, PASSES, (0.0, 0.3)):
        sizes = crossed if pattern.endswith("cross") else selves
        for length, keys in sizes[-2:] if padding else sizes:
            w = Workload(
                batch=2 if padding else 1,
                heads=H,
                head_dim=D,
                length=length,
                key_length=keys,
                pattern=pattern,
                padding=padding,
                pass_=pass_,
                scope=scope,  # type: ignore[arg-type]
            )
            if w.contradiction is None and _honours(core, w):
                yield w


def _honours(core: AttentionVariant, w: Workload) -> bool:
    can = core.capabilities
    return (
        can.supports(causal=w.causal, cross=w.cross)
        and (can.key_padding or not w.padding)
        and (can.decode or w.pass_ not in ("prefill", "decode"))
    )


def work(name: str, options: dict[str, Any], w: Workload) -> Work:
    subject = build(name, options, w).subject
    return work_of(subject.module, subject.core, w)


@pytest.mark.parametrize("scope", ["core", "module", "block"])
@pytest.mark.parametrize(("name", "options"), CONTESTANTS)
def test_flops_are_those_that_a_counter_sees(name, options, scope):
    wrong = []
    lengths, crossed = (LENGTHS, CROSSED) if scope == "core" else (FEW_LENGTHS, FEW_CROSSED)
    for w in workloads(name, options, scope, lengths, crossed):
        call = build(name, options, w)
        found = work_of(call.subject.module, call.subject.core, w)
        if found.flops is None:
            assert found.flops_method is None
            pytest.skip(f"{name} has no formula")
        assert found.flops_method == "formula"
        counted = count_flops(call)
        if found.flops != counted:
            wrong.append((w.pattern, w.pass_, w.length, w.keys, w.padding, found.flops, counted))
    assert not wrong


@pytest.mark.parametrize(("name", "options"), CONTESTANTS)
def test_steps_of_several_tokens_after_a_context(name, options):
    if not variant_class(name).capabilities.decode or "grid" in options:
        pytest.skip(f"{name} does not decode")
    core = make_core(name, H, D, **options).eval()
    for context, tokens in [(0, 1), (5, 3), (9, 130), (130, 70)]:
        first, then = ([torch.zeros(2, H, n, D) for _ in range(3)] for n in (context or 1, tokens))
        state = core.init_state(2)
        with torch.no_grad():
            if context:
                state = core.step(*first, state)[1]
            counted = count_flops(lambda then=then, state=state: core.step(*then, state))
        formula = core.step_flops(2, context, tokens)
        assert formula in (None, counted), (context, tokens)


class Moved(TorchDispatchMode):
    """Sums the bytes of what operators read and write; views move nothing."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = tree_leaves((args, kwargs, out))
            self.total += sum(x.nbytes for x in leaves if isinstance(x, torch.Tensor))
        return out


@pytest.mark.parametrize("scope", ["core", "module", "block"])
@pytest.mark.parametrize(("name", "options"), CONTESTANTS)
def test_traffic_is_no_more_than_operators_move(name, options, scope):
    for w in workloads(name, options, scope, FEW_LENGTHS, FEW_CROSSED):
        call = build(name, options, w)
        call()  # makes the fixed gradient and the optimizer's moments
        call.reset()
        with Moved() as moved:
            call()
        found = work_of(call.subject.module, call.subject.core, w).traffic_bytes
        assert found is not None
        assert 0 < found <= moved.total, (w.pattern, w.pass_, w.length, w.keys, w.padding)


def test_flops_of_full_attention_by_hand():
    small = {"batch": 3, "heads": H, "head_dim": D}
    cross = Workload(**small, length=5, key_length=7, pattern="noncausal_cross")
    assert work("full", {}, cross).flops == 2 * (2 * 3 * H * 5 * 7 * D)
    causal = Workload(**small, length=4, pattern="causal_self")
    seen = 1 + 2 + 3 + 4
    assert work("full", {}, causal).flops == 2 * (2 * 3 * H * seen * D)
    assert work("full", {"implementation": "naive"}, causal).flops == 2 * (2 * 3 * H * 16 * D)


def test_flops_of_a_block_by_hand():
    w = Workload(heads=H, head_dim=D, length=5, scope="block", pass_="forward_backward")
    projections = 4 * (2 * 5 * E * E)
    feed_forward = 2 * (2 * 5 * E * 4 * E)
    product = 2 * H * 5 * 5 * D
    assert work("full", {}, w).flops == 3 * (projections + feed_forward) + 7 * product


def test_decoding_a_token_by_hand():
    w = Workload(
        heads=H, head_dim=D, length=9, pattern="causal_self", scope="module", pass_="decode"
    )
    found = work("full", {}, w)
    assert found.flops == 4 * (2 * E * E) + 2 * (2 * H * 10 * D)
    layers = (E + 3 * E + 3 * E * E + 3 * E) + (E + E + E * E + E)
    attention = 4 * E
    cache = 2 * (9 + 1) * E  # nine keys and values are read, one of each is written
    assert found.traffic_bytes == 4 * (layers + attention + cache)


def test_traffic_of_full_attention_by_hand():
    small = {"batch": 3, "heads": H, "head_dim": D, "pattern": "noncausal_cross"}
    w = Workload(**small, length=5, key_length=7)
    inputs_and_output = 3 * H * D * (5 + 7 + 7 + 5)
    assert work("full", {}, w).traffic_bytes == 4 * inputs_and_output
    matrix = 3 * H * 5 * 7
    naive = work("full", {"implementation": "naive"}, w).traffic_bytes
    assert naive == 4 * (inputs_and_output + 4 * matrix)
    half = Workload(**small, length=5, key_length=7, dtype="bfloat16", padding=0.5)
    assert work("full", {}, half).traffic_bytes == 2 * inputs_and_output + 3 * 7
    naive = work("full", {"implementation": "naive"}, half).traffic_bytes
    assert naive == 2 * inputs_and_output + 3 * 7 + 4 * 4 * matrix
    both = Workload(**small, length=5, key_length=7, pass_="forward_backward")
    assert work("full", {}, both).traffic_bytes == 2 * 4 * inputs_and_output


@pytest.mark.parametrize(
    ("name", "options", "pass_", "expected"),
    [
        # q, k, v and output are 5 tokens of width E; two matrices of 4 × 5; keys and values
        # projected to 4 rows are written and read back.
        ("linformer", {"k": 4}, "forward", 4 * (4 * 5 * E + 2 * 4 * 5 + 2 * 2 * 4 * E)),
        # W of 3 × D; φ stays in the cache.
        ("performer", {"num_features": 3}, "forward", 4 * (4 * 5 * E + 3 * D)),
        (
            "performer",
            {"num_features": 3},
            "forward_backward",
            4 * (2 * 4 * 5 * E + 3 * D),
        ),
        # A token after five: sums of 3 × (D + 1) and a scale a head, read and written in fp64.
        (
            "performer",
            {"num_features": 3},
            "decode",
            4 * (4 * E + 3 * D) + 2 * 8 * H * (3 * (D + 1) + 1),
        ),
        # The last two of five keys and values are read, one of each is written.
        ("local_window", {"window": 2}, "decode", 4 * (4 * E + 2 * (2 + 1) * E)),
        ("local_window", {"window": 1, "global_tokens": 2}, "decode", 4 * (4 * E + 2 * 4 * E)),
        # Tokens 2, 3 and 4 are in the group of token 5; with window 5 it begins one of its own.
        ("shifted_window", {"window": 8, "shift": 2}, "decode", 4 * (4 * E + 2 * (3 + 1) * E)),
        ("shifted_window", {"window": 5}, "decode", 4 * (4 * E + 2 * 1 * E)),
        # A bias of 5 entries for each head.
        ("shifted_window", {"window": 3, "relative_bias": True}, "forward", 4 * (20 * E + 5 * H)),
    ],
)
def test_traffic_of_the_others_by_hand(name, options, pass_, expected):
    pattern = "causal_self" if pass_ == "decode" else "noncausal_self"
    w = Workload(heads=H, head_dim=D, length=5, pattern=pattern, pass_=pass_)
    assert work(name, options, w).traffic_bytes == expected


def test_a_training_step_moves_the_optimizers_state_as_well():
    sizes: dict[str, Any] = {"heads": H, "head_dim": D, "length": 5, "scope": "module"}
    step = work("full", {}, Workload(**sizes, pass_="train_step"))
    both = work("full", {}, Workload(**sizes, pass_="forward_backward"))
    parameters = 4 * E * E + 4 * E
    assert step.flops == both.flops
    assert step.traffic_bytes - both.traffic_bytes == 7 * 4 * parameters


def test_the_cost_of_a_long_sequence_grows_as_the_variant_says():
    def flops(name: str, length: int, **options: Any) -> int:
        w = Workload(heads=H, head_dim=D, length=length)
        found = work(name, options, w).flops
        assert found is not None
        return found

    assert flops("full", 4096) == 4 * flops("full", 2048)
    for name, options in (("local_window", {"window": 64}), ("performer", {}), ("linformer", {})):
        added = flops(name, 4096, **options) - flops(name, 2048, **options)
        assert added == 2 * (flops(name, 2048, **options) - flops(name, 1024, **options))
        assert added == pytest.approx(flops(name, 2048, **options), rel=0.03)


def test_a_compiled_workload_has_no_formula():
    sizes: dict[str, Any] = {"heads": H, "head_dim": D, "length": 5}
    eager, compiled = Workload(**sizes), Workload(**sizes, compile=True)
    subject = build("full", {}, eager).subject
    found = work_of(subject.module, subject.core, compiled)
    assert (found.flops, found.flops_method) == (None, None)
    assert found.traffic_bytes == work("full", {}, eager).traffic_bytes


def test_a_variant_without_formula_is_unknown_and_its_inputs_still_count():
    class Values(AttentionVariant):
        def forward(self, q, k, v, mask, dropout_p=0.0):
            return v.clone()

    core = Values(H, D, None)
    w = Workload(heads=H, head_dim=D, length=5)
    assert work_of(core, core, w) == Work(None, None, 4 * 4 * H * D * 5)
