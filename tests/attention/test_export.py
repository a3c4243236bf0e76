"""`torch.export` with batch and length left open: one program, right at every length."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.testing import assert_close

import efficient_attn as ea

from .conftest import CASES, ONE_EACH, Case, direction, kept, select_directions

E, HEADS, LONGEST = 16, 2, 4096
TRACED = 20
# Around the blocks, chunks and windows of every variant, and the shortest that is promised.
LENGTHS = (2, 3, 5, 63, 64, 66, 129, 300, 700)
SAME = {"rtol": 1e-5, "atol": 1e-5}


def by_path(case: Case) -> tuple[Any, ...]:
    """What parts the code that a case runs: which options it gives, and the choices among words."""
    words = [value for value in case.options.values() if isinstance(value, str)]
    return (case.variant, *case.options, *words)


# One case for each path through the code: tracing costs seconds, and sizes alone change nothing.
PATHS = list({by_path(case): case for case in reversed(CASES)}.values())[::-1]


def make(case: Case, **kwargs: Any) -> nn.Module:
    """In eval, with every parameter away from zero (bias tables start there)."""
    module: nn.Module = ea.MultiHeadAttention(E, HEADS, case.variant, **kwargs, **case.options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


def lengths_of(case: Case) -> list[int]:
    """The lengths to run at: those that `max_len` allows and that itself, or the grid's own."""
    longest = case.options.get("max_len", LONGEST)
    if case.length is not None:
        return [case.length]
    return [*(N for N in LENGTHS if N < longest), *([longest] if longest < LONGEST else [])]


def padding(batch: int, N: int) -> Tensor:
    """Ragged rows in torch.nn's meaning, the last of them padded throughout."""
    return ~kept([N - (b % 2) * (N // 2) for b in range(batch - 1)] + [0], N)


def export(case: Case, module: nn.Module, N: int, causal: bool, padded: bool) -> ExportedProgram:
    """The program traced at [3, N, E] with batch and, off a grid, length open."""
    batch = Dim("batch", min=2, max=64)
    length = Dim("length", min=2, max=case.options.get("max_len", LONGEST))
    axes = {0: batch} if case.length is not None else {0: batch, 1: length}
    shapes: dict[str, Any] = {"query": axes, "is_causal": None}
    kwargs: dict[str, Any] = {"is_causal": causal}
    if padded:
        kwargs["key_padding_mask"] = padding(3, N)
        shapes["key_padding_mask"] = axes
    with torch.no_grad():
        return torch.export.export(module, (torch.randn(3, N, E),), kwargs, dynamic_shapes=shapes)


def check(
    program: ExportedProgram, module: nn.Module, case: Case, causal: bool, padded: bool
) -> None:
    """The program gives what the module gives, at every length and at other batch sizes."""
    run = program.module()
    for step, N in enumerate(lengths_of(case)):
        batch = (7, 2, 4)[step % 3]  # more rows than tokens, and fewer
        x = torch.randn(batch, N, E)
        kwargs: dict[str, Any] = {"is_causal": causal}
        if padded:
            kwargs["key_padding_mask"] = padding(batch, N)
        with torch.no_grad():
            assert_close(
                run(x, **kwargs)[0], module(x, **kwargs)[0], **SAME, msg=lambda m, N=N: f"{N}: {m}"
            )


@select_directions(cases=ONE_EACH)
def test_batch_and_length_stay_open(case: Case, causal: bool) -> None:
    module = make(case)
    program = export(case, module, case.length or TRACED, causal, padded=False)
    check(program, module, case, causal, padded=False)


@pytest.mark.parametrize("case", [c for c in PATHS if c not in ONE_EACH], ids=str)
def test_every_path_through_the_options_stays_open(case: Case) -> None:
    module, causal = make(case), case.can("causal_self")
    program = export(case, module, case.length or TRACED, causal, padded=False)
    check(program, module, case, causal, padded=False)


@select_directions(cases=[c for c in ONE_EACH if c.can("key_padding")])
def test_key_padding_is_an_input_of_the_program(case: Case, causal: bool) -> None:
    module = make(case)
    program = export(case, module, case.length or TRACED, causal, padded=True)
    check(program, module, case, causal, padded=True)


@pytest.mark.parametrize("case", [c for c in ONE_EACH if "max_len" not in c.options], ids=str)
def test_a_program_traced_long_is_right_at_short_lengths(case: Case) -> None:
    """Which branch was taken when tracing must not decide what other lengths get."""
    module, causal = make(case), case.can("causal_self")
    check(export(case, module, 500, causal, padded=False), module, case, causal, padded=False)


@pytest.mark.parametrize("kind", ["rotary", "alibi"])
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_positions_follow_the_length(case: Case, kind: str) -> None:
    if not case.can(kind):
        pytest.skip(f"{case.variant} has no capability {kind}")
    module, causal = make(case, positions=kind), case.can("causal_self")
    program = export(case, module, TRACED, causal, padded=False)
    check(program, module, case, causal, padded=False)


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_a_saved_program_is_the_same(case: Case) -> None:
    module = make(case)
    causal = direction(case)
    file = io.BytesIO()
    torch.export.save(export(case, module, case.length or TRACED, causal, padded=False), file)
    file.seek(0)
    check(torch.export.load(file), module, case, causal, padded=False)
