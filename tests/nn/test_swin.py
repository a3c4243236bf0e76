"""The hierarchy: shapes at any size, its windows by a definition of its own, sizes as published."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shipped import SHIPPED
from torch import nn

from efficient_attn.attention import OptionError
from efficient_attn.nn import SwinTransformer
from efficient_attn.nn.swin import PatchEmbedding, PatchMerging, SwinBlock

SMALL = {"embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "patch_size": 2}
SIDE = st.integers(1, 23)


def model(**settings) -> SwinTransformer:
    made = SwinTransformer(3, **{**SMALL, "variant_options": {"window": 3}, **settings})
    for name, weight in made.named_parameters():
        if name.endswith("relative_bias"):
            nn.init.normal_(weight)
    return made.eval()


@given(
    height=SIDE,
    width=SIDE,
    window=st.one_of(st.integers(1, 5), st.tuples(st.integers(1, 5), st.integers(1, 5))),
    as_published=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_image_and_any_window(height, width, window, as_published):
    made = model(variant_options={"window": window}, as_published=as_published)
    rows, columns = ((side + 1) // 2 for side in (height, width))
    with torch.no_grad():
        images = torch.randn(2, 3, height, width)
        features = made.features(images)
        assert features.shape == (2, (rows + 1) // 2, (columns + 1) // 2, 16)
        assert features.isfinite().all()
        torch.testing.assert_close(made(images)[:1], made(images[:1]))


@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    shifted=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_block_sees_exactly_the_group_of_a_token(height, width, window, shifted):
    """By gradients: token a reaches token b if the definition puts both into one group."""
    torch.manual_seed(height * 10 + width)
    block = SwinBlock(
        4, 1, 8, grid=(6, 6), depth=int(shifted), variant_options={"window": window}
    ).double()
    x = torch.randn(1, height, width, 4, dtype=torch.float64, requires_grad=True)
    out = block(x)

    def group(place: int, length: int, size: int) -> int:
        shift = size // 2 if shifted and length > size else 0
        return (place - shift) // size

    def groups(row: int, column: int) -> tuple[int, int]:
        return group(row, height, window[0]), group(column, width, window[1])

    row, column = height // 2, width // 3
    (reach,) = torch.autograd.grad(out[0, row, column].sin().sum(), x)
    for r in range(height):
        for c in range(width):
            together = groups(r, c) == groups(row, column)
            assert bool(reach[0, r, c].abs().sum() > 0) == together, (r, c)


def test_blocks_alternate_in_every_stage():
    made = model(depths=(3, 2))
    shifts = [[block.self_attn.core.options.shift for block in stage] for stage in made.stages]
    assert shifts == [[(0, 0), (1, 1), (0, 0)], [(0, 0), (1, 1)]]


@pytest.mark.parametrize("size", [(22, 24), (6, 24)], ids=["partial windows", "one window high"])
def test_where_published_code_differs(size):
    """Windows that are not whole, and grids that are one window high; nowhere else."""
    ours, published = model(), model(as_published=True)
    published.load_state_dict(ours.state_dict())
    same = torch.randn(1, 3, 24, 24)
    torch.testing.assert_close(ours(same), published(same))
    other = torch.randn(1, 3, *size)
    assert not torch.allclose(ours(other), published(other), atol=1e-6)


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("variant", [*SHIPPED, ["full", "shifted_window"]], ids=str)
def test_every_variant_trains(variant, as_published):
    options = {"window": 3} if variant == "shifted_window" else None
    made = model(
        variant=variant,
        variant_options=options,
        image_size=(18, 14),
        as_published=as_published,
        drop_path=0.1,
        dropout=0.1,
    ).train()
    made(torch.randn(4, 3, 18, 14)).square().sum().backward()
    for name, weight in made.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name


@pytest.mark.parametrize(
    ("name", "count"),
    [("tiny", 28_288_354), ("small", 49_606_258), ("base", 87_768_224), ("large", 196_532_476)],
)
def test_published_sizes(name, count):
    """Of the released ImageNet-1K models."""
    with torch.device("meta"):
        made = SwinTransformer.preset(name, 1000)
    assert sum(weight.numel() for weight in made.parameters()) == count


def test_presets_take_settings():
    with torch.device("meta"):
        made = SwinTransformer.preset(
            "tiny", None, variant_options={"window": (7, 5)}, in_channels=1
        )
    assert made.stages[0][0].self_attn.core.options.window == (7, 5)
    assert isinstance(made.head, nn.Identity)


def test_merging_halves_a_map():
    """The order of the four is that of published weights: down first, then right."""
    merge = PatchMerging(1)
    merge.norm = merge.reduction = nn.Identity()
    out = merge(torch.arange(1.0, 7).view(1, 2, 3, 1))
    assert out.tolist() == [[[[1, 4, 2, 5], [3, 6, 0, 0]]]]


def test_patches_are_completed_by_zeros():
    embed = PatchEmbedding(1, 4, (2, 3))
    x = torch.randn(1, 1, 3, 4)
    whole = torch.zeros(1, 1, 4, 6)
    whole[..., :3, :4] = x
    torch.testing.assert_close(embed(x), embed(whole))


def test_one_image_leaves_no_trace_in_the_next():
    made, x = model(as_published=True), torch.randn(1, 3, 24, 24)
    before = made(x)
    made(torch.randn(1, 3, 4, 30))
    assert torch.equal(made(x), before)


def test_state_does_not_depend_on_the_image():
    small, large = model(image_size=(8, 8)), model(image_size=(224, 100))
    large.load_state_dict(small.state_dict())
    x = torch.randn(1, 3, 17, 12)
    assert torch.equal(small(x), large(x))


def test_compiled_in_one_piece():
    made = model(depths=(1,), num_heads=(2,))
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    x = torch.randn(2, 3, 17, 10)
    torch.testing.assert_close(compiled(x), made(x), atol=1e-5, rtol=1e-5)


def test_absolute_positions_belong_to_one_size():
    made = model(variant="full", variant_options=None, positions="learned", image_size=(8, 12))
    assert made(torch.randn(1, 3, 8, 12)).shape == (1, 3)
    with pytest.raises(ValueError, match=r"4×6 patches.*has 6×4"):
        made(torch.randn(1, 3, 12, 8))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"depths": (2,)}, "one number of each per stage"),
        ({"depths": (2, 0)}, r"depths\[1\]=0"),
        ({"num_heads": (2, 2.0)}, r"num_heads\[1\]=2.0"),
        ({"embed_dim": 0}, "embed_dim=0"),
        ({"embed_dim": 9}, "no multiple of num_heads"),
        ({"patch_size": 0}, "patch_size=0"),
        ({"drop_path": 1.0}, "drop_path=1.0"),
        ({"mlp_ratio": 0.0}, "mlp_ratio=0.0"),
        ({"as_published": 1}, "as_published=1"),
        ({"positions": "rotary"}, "positions='rotary'"),
        ({"variant_options": {"windows": 3}}, "window"),
    ],
    ids=str,
)
def test_wrong_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        model(**setting)


def test_unknown_preset():
    with pytest.raises(OptionError, match=r"name='huge'.*'tiny', 'small', 'base', 'large'"):
        SwinTransformer.preset("huge", 10)


def test_wrong_images():
    with pytest.raises(ValueError, match=r"expected \[batch, 3, height, width\]"):
        model()(torch.randn(1, 1, 8, 8))
