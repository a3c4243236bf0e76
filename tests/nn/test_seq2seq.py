"""Encoder-decoder models: steps equal teacher forcing, padding changes nothing, beam search."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shipped import shipped
from torch import Tensor

import efficient_attn as ea
from efficient_attn.nn import MaskPredict, Seq2Seq, Transformer
from efficient_attn.nn.seq2seq import BOS, EOS, MASK, PAD, SPECIALS, teacher_forcing

V, M, N = 8, 9, 7
OPTIONS = {
    "linformer": {"k": 4},
    "local_window": {"window": 3},
    "performer": {"num_features": 16},
    "shifted_window": {"window": 4},
}
DECODING = shipped(decode=True, causal=True)


def build(kind: type = Seq2Seq, variant="full", **keywords):
    """A tiny model in float64, its weights large enough that its choices are far from ties."""
    torch.manual_seed(0)
    sizes = {"max_len": M, "max_target_len": N, "d_model": 16, "nhead": 2, "dim_feedforward": 32}
    options = OPTIONS.get(variant) if isinstance(variant, str) else None
    model = kind(V, variant=variant, variant_options=options, **{**sizes, **keywords})
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(4.0)
    return model.double().eval()


def sources(*lengths: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(SPECIALS, V, (len(lengths), max(lengths)), generator=draw)
    for row, length in zip(rows, lengths, strict=True):
        row[length:] = PAD
    return rows


def targets(batch: int) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    said = torch.randint(SPECIALS, V, (batch, N - 1), generator=draw)
    return torch.cat([torch.full((batch, 1), BOS), said], 1)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("variant", DECODING)
@settings(max_examples=5, deadline=None)
@given(cuts=st.sets(st.integers(1, N - 1)))
def test_steps_equal_teacher_forcing_however_cut(variant, positions, cuts) -> None:
    model, source = build(variant=variant, positions=positions), sources(9, 4)
    target, state, parts = targets(2), model.init_state(source), []
    for start, stop in itertools.pairwise([0, *sorted(cuts), N]):
        logits, state = model.step(target[:, start:stop], state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), model(source, target))
    assert state.position == N


@pytest.mark.parametrize("variant", [*DECODING, ["full", "local_window"]], ids=str)
def test_greedy_with_cache_is_greedy_without(variant) -> None:
    model, lengths = build(variant=variant), (9, 5, 1)
    source = sources(*lengths)
    got = model.generate(source).sequences()
    assert len({tuple(row.tolist()) for row in got}) > 1, "a model that reads its source"
    for row, length, tokens in zip(source, lengths, got, strict=True):
        assert tokens.tolist() == greedy(model, row[:length])


def greedy(model: Seq2Seq, source: Tensor) -> list[int]:
    said: list[int] = []
    while len(said) < N and said[-1:] != [EOS]:
        logits = model(source[None], torch.tensor([[BOS, *said]]))
        said.append(int(logits[0, -1].argmax()))
    return said


@pytest.mark.parametrize("length_penalty", [0.0, 1.5])
def test_beam_search_is_exhaustive_where_it_keeps_everything(length_penalty: float) -> None:
    longest, lengths = 3, (5, 3)
    model, source = build(), sources(*lengths)
    got = model.generate(
        source, max_new_tokens=longest, num_beams=V**2, length_penalty=length_penalty
    )
    for row, length, tokens, score in zip(
        source, lengths, got.sequences(), got.scores, strict=True
    ):
        every = endings(longest)
        found = log_probabilities(model, row[:length], every)
        sizes = torch.tensor([len(said) for said in every])
        best = int((found / ((5 + sizes) / 6) ** length_penalty).argmax())
        assert tokens.tolist() == every[best]
        torch.testing.assert_close(score, found[best])


def endings(longest: int) -> list[list[int]]:
    """Every sequence that ends with EOS or by its length."""
    others = [token for token in range(V) if token != EOS]
    by_token = [
        [*said, EOS] for n in range(longest) for said in itertools.product(others, repeat=n)
    ]
    return by_token + [list(said) for said in itertools.product(others, repeat=longest)]


def log_probabilities(model: Seq2Seq, source: Tensor, every: list[list[int]]) -> Tensor:
    wanted = torch.zeros(len(every), max(map(len, every)), dtype=torch.long)
    for row, said in zip(wanted, every, strict=True):
        row[: len(said)] = torch.tensor(said)
    real = torch.arange(wanted.shape[1]) < torch.tensor([[len(said)] for said in every])
    begin = torch.full((len(every), 1), BOS)
    logits = model(source.expand(len(every), -1), torch.cat([begin, wanted[:, :-1]], 1))
    chosen = logits.log_softmax(-1).gather(2, wanted.unsqueeze(2)).squeeze(2)
    return chosen.masked_fill(~real, 0.0).sum(1)


@pytest.mark.parametrize("kind", [Seq2Seq, MaskPredict])
@pytest.mark.parametrize("variant", DECODING)
def test_padding_of_the_source_changes_nothing(variant, kind) -> None:
    model, lengths = build(kind, variant), (9, 4, 1)
    source, target = sources(*lengths), targets(3)
    together = model.decode(target, *model.encode(source))
    for index, length in enumerate(lengths):
        alone = model.decode(target[[index]], *model.encode(source[[index], :length]))
        torch.testing.assert_close(together[[index]], alone)


@pytest.mark.parametrize("cross", [name for name in shipped(cross=True) if name != "local_window"])
def test_cross_attention_of_each_variant(cross) -> None:
    model = build(cross_variant=cross, cross_variant_options=OPTIONS.get(cross))
    source, target = sources(9, 4), targets(2)
    logits, _ = model.step(target, model.init_state(source))
    torch.testing.assert_close(logits, model(source, target))
    alone = model(source[1:, :4], target[1:])
    torch.testing.assert_close(logits[1:], alone)
    moved = model(sources(9, 5), target)
    assert not torch.allclose(moved[1], logits[1])
    assert model.decoder.layers[0].multihead_attn.variant == cross


def test_an_encoder_may_differ_from_its_decoder() -> None:
    model = build(variant="linformer", decoder_variant="full")
    source, target = sources(9, 4), targets(2)
    torch.testing.assert_close(
        model.step(target, model.init_state(source))[0], model(source, target)
    )
    with pytest.raises(ea.UnsupportedAttention, match="linformer"):
        build(variant="linformer")
    build(MaskPredict, "linformer")


@pytest.mark.parametrize("kind", [Seq2Seq, Transformer], ids=lambda kind: kind.__name__)
def test_options_of_the_decoder_alone_are_obeyed(kind: type) -> None:
    """They were dropped where decoder_variant was left out."""
    sizes = {Seq2Seq: {"vocab_size": V, "max_len": M, "d_model": 16, "nhead": 2}}
    model = kind(
        **sizes.get(kind, {"d_model": 16, "nhead": 2, "num_encoder_layers": 1}),
        variant="local_window",
        variant_options={"window": 3},
        decoder_variant_options={"window": 5},
    )
    encoder = model.trunk.encoder if kind is Seq2Seq else model.encoder
    windows = [part.layers[0].self_attn.core.options.window for part in (encoder, model.decoder)]
    assert windows == [3, 5]


def test_embeddings_are_shared_or_apart() -> None:
    shared = build()
    assert shared.source_embed is shared.target_embed
    assert shared.head.weight is shared.source_embed.weight
    apart = build(shared_embeddings=False, target_vocab_size=V + 3)
    assert apart(sources(3), targets(1)).shape == (1, N, V + 3)
    assert len({id(w) for w in (apart.source_embed.weight, apart.target_embed.weight)}) == 2
    with pytest.raises(ValueError, match="shared_embeddings=False"):
        build(target_vocab_size=V + 3)


def test_teacher_forcing_by_hand() -> None:
    target_in, labels = teacher_forcing(torch.tensor([[5, 6, 7], [7, PAD, PAD]]))
    assert target_in.tolist() == [[BOS, 5, 6, 7], [BOS, 7, PAD, PAD]]
    assert labels.tolist() == [[5, 6, 7, EOS], [7, EOS, PAD, PAD]]


def test_loss_ignores_padding_of_the_target() -> None:
    model, source = build(), sources(5, 5)
    short = teacher_forcing(torch.tensor([[5, 6]]))
    loss = model.loss(source[:1], *short)
    longer = teacher_forcing(torch.tensor([[5, 6, PAD, PAD]]))
    torch.testing.assert_close(model.loss(source[:1], *longer), loss)


def test_more_tokens_than_the_model_was_built_for() -> None:
    with pytest.raises(ValueError, match=f"max_target_len={N}"):
        build().generate(sources(3), max_new_tokens=N + 1)


def test_special_numbers_are_distinct() -> None:
    assert sorted((PAD, BOS, EOS, MASK)) == list(range(SPECIALS))
