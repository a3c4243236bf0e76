"""Encoder and decoder step by step against their parallel, causal form."""

from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shipped import SHIPPED, shipped
from torch import Tensor, nn

from efficient_attn import UnsupportedAttention
from efficient_attn.attention import variant_class
from efficient_attn.nn import (
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

B, D, H, FF = 3, 16, 2, 24
MEMORY_LEN = 7
DECODING = shipped(decode=True)
CROSSING = [
    name for name in shipped(cross=True) if not variant_class(name).capabilities.equal_lengths
]
# Small windows, so that short sequences leave them.
OPTIONS: dict[str, dict[str, Any]] = {
    "local_window": {"window": 3},
    "shifted_window": {"window": 4},
    "performer": {"num_features": 8},
    "linformer": {"k": 4},
}
QUICK = settings(max_examples=8, deadline=None, derandomize=True)
EXACT = {"rtol": 1e-8, "atol": 1e-9}

cuts = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def carried(variant: str) -> list[str | None]:
    """The positions that the variant takes into attention."""
    able = variant_class(variant).capabilities
    return [None, *(kind for kind in ("rotary", "alibi") if getattr(able, kind))]


VARIANT_AND_POSITIONS = [
    pytest.param(variant, positions, id=f"{variant}-{positions or 'none'}")
    for variant in DECODING
    for positions in carried(variant)
]


def drawn(stack: nn.Module) -> nn.Module:
    """In eval, with weights that let every part of the layer matter."""
    generator = torch.Generator().manual_seed(3)
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)
    return stack.eval()


def encoder(variant: Any, **arguments: Any) -> Any:
    options = OPTIONS.get(variant) if isinstance(variant, str) else {"window": 3}
    layer = TransformerEncoderLayer(
        D, H, FF, variant=variant, variant_options=options, dtype=torch.float64, **arguments
    )
    return drawn(TransformerEncoder(layer, 2, nn.LayerNorm(D, dtype=torch.float64)))


def decoder(variant: str, cross_variant: str = "full", **arguments: Any) -> Any:
    layer = TransformerDecoderLayer(
        D,
        H,
        FF,
        variant=variant,
        variant_options=OPTIONS.get(variant),
        cross_variant=cross_variant,
        cross_variant_options=OPTIONS.get(cross_variant),
        memory_max_len=MEMORY_LEN,
        dtype=torch.float64,
        **arguments,
    )
    return drawn(TransformerDecoder(layer, 2, nn.LayerNorm(D, dtype=torch.float64)))


def tokens(N: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, N, D, generator=generator, dtype=torch.float64)


def stepwise(stack: Any, x: Tensor, sizes: list[int], state: Any) -> tuple[Tensor, Any]:
    outputs = []
    for piece in x.split(sizes, 1):
        out, state = stack.step(piece, state)
        outputs.append(out)
    return torch.cat(outputs, 1), state


def memory_and_padding() -> tuple[Tensor, Tensor]:
    padding = torch.arange(MEMORY_LEN) >= torch.tensor([[MEMORY_LEN], [2], [5]])
    return tokens(MEMORY_LEN, seed=9), padding


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize(("variant", "positions"), VARIANT_AND_POSITIONS)
@QUICK
@given(sizes=cuts)
def test_encoder_steps_equal_the_parallel_form(
    variant: str, positions: str | None, norm_first: bool, sizes: list[int]
) -> None:
    stack = encoder(variant, positions=positions, norm_first=norm_first, short_conv=3)
    x = tokens(sum(sizes))
    got, state = stepwise(stack, x, sizes, stack.init_state(B))
    torch.testing.assert_close(got, stack(x, is_causal=True), **EXACT)
    assert state.position == sum(sizes)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize(("variant", "positions"), VARIANT_AND_POSITIONS)
@QUICK
@given(sizes=cuts)
def test_decoder_steps_equal_the_parallel_form(
    variant: str, positions: str | None, norm_first: bool, sizes: list[int]
) -> None:
    stack = decoder(variant, positions=positions, norm_first=norm_first)
    x, (memory, padding) = tokens(sum(sizes)), memory_and_padding()
    got, state = stepwise(stack, x, sizes, stack.init_state(memory, padding))
    want = stack(x, memory, memory_key_padding_mask=padding, tgt_is_causal=True)
    torch.testing.assert_close(got, want, **EXACT)
    assert state.position == sum(sizes)


@pytest.mark.parametrize("cross_variant", CROSSING)
def test_every_cross_variant_reads_a_memory_projected_once(cross_variant: str) -> None:
    stack = decoder("full", cross_variant)
    x, (memory, padding) = tokens(6), memory_and_padding()
    state = stack.init_state(memory, padding)
    calls: list[int] = []
    for layer in stack.layers:
        layer.multihead_attn.project_memory = calls.append
    got, _ = stepwise(stack, x, [1, 2, 3], state)
    want = stack(x, memory, memory_key_padding_mask=padding, tgt_is_causal=True)
    torch.testing.assert_close(got, want, **EXACT)
    assert not calls


@pytest.mark.parametrize("rows", [[2, 0], [1, 1, 1, 0]], ids=str)
@pytest.mark.parametrize("variant", DECODING)
def test_selected_samples_go_on_alone(variant: str, rows: list[int]) -> None:
    index = torch.tensor(rows)
    x, (memory, padding) = tokens(9), memory_and_padding()
    for stack, state in (
        (plain := encoder(variant, short_conv=3), plain.init_state(B)),
        (crossing := decoder(variant), crossing.init_state(memory, padding)),
    ):
        _, state = stack.step(x[:, :5], state)
        want, _ = stack.step(x[:, 5:], state)
        selected = state.select(index)
        assert selected.position == 5
        assert selected.nbytes * B == state.nbytes * len(rows)
        got, _ = stack.step(x[index, 5:], selected)
        torch.testing.assert_close(got, want[index], **EXACT)


def test_layers_of_different_variants_keep_their_own_states() -> None:
    stack = encoder(["local_window", "performer"])
    x = tokens(12)
    got, state = stepwise(stack, x, [1] * 12, stack.init_state(B))
    torch.testing.assert_close(got, stack(x, is_causal=True), **EXACT)
    assert state.nbytes == sum(part.nbytes for part in state.parts) > 0


@pytest.mark.parametrize("variant", [name for name in DECODING if name != "full"])
def test_state_stops_growing(variant: str) -> None:
    stack = encoder(variant, short_conv=3)
    _, state = stack.step(tokens(20), stack.init_state(B))
    sizes = []
    for start, stop in pairwise(accumulate([0] + [4] * 5)):
        _, state = stack.step(tokens(20, seed=1)[:, start:stop], state)
        sizes.append(state.nbytes)
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("variant", [name for name in SHIPPED if name not in DECODING])
def test_variants_that_cannot_decode_refuse(variant: str) -> None:
    layer = TransformerEncoderLayer(D, H, FF, variant=variant, max_len=8)
    with pytest.raises(UnsupportedAttention, match=r"step-by-step decoding.*full"):
        TransformerEncoder(layer, 2).init_state(B)


def test_a_cross_variant_of_equal_lengths_refuses_to_decode() -> None:
    stack = decoder("full", "local_window")
    with pytest.raises(UnsupportedAttention, match=r"step by step.*full"):
        stack.init_state(tokens(1))
