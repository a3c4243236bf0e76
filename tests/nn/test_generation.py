"""Greedy, sampled and beam search, over a recurrent toy and over transformers' GPT-2."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from efficient_attn.attention import OptionError
from efficient_attn.nn import generate
from efficient_attn.nn.generation import Continuation, beam_search
from efficient_attn.nn.sampling import Sampling

V, EOS, PAD = 4, 3, 0


@dataclass
class Hidden:
    h: Tensor

    def select(self, index: Tensor) -> Hidden:
        return Hidden(self.h[index])


class Recurrent(nn.Module):
    """A random recurrent network: what comes next depends on all that came before."""

    def __init__(self, seed: int = 0, vocab: int = V) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = nn.Embedding(vocab, 8)
            self.cell = nn.GRUCell(8, 8)
            self.head = nn.Linear(8, vocab)
            nn.init.constant_(self.head.bias, 0.0)
            self.head.bias.data[EOS] = -0.5  # so that the best sequence is not the shortest
        self.double()
        self.rows: list[int] = []

    def start(self, tokens: Tensor) -> tuple[Tensor, Hidden]:
        h = torch.zeros(len(tokens), 8, dtype=torch.float64)
        for token in tokens.T:
            h = self.cell(self.embed(token), h)
        return 3 * self.head(h), Hidden(h)

    def advance(self, tokens: Tensor, state: Hidden) -> tuple[Tensor, Hidden]:
        self.rows.append(len(tokens))
        h = self.cell(self.embed(tokens), state.h)
        return 3 * self.head(h), Hidden(h)

    def log_probability(self, prompt: list[int], following: tuple[int, ...] | list[int]) -> float:
        h, total = torch.zeros(1, 8, dtype=torch.float64), 0.0
        whole = [*prompt, *following]
        with torch.no_grad():
            for place, token in enumerate(whole[:-1], start=1):
                h = self.cell(self.embed(torch.tensor([token])), h)
                if place >= len(prompt):
                    total += float((3 * self.head(h)).log_softmax(-1)[0, whole[place]])
        return total


def all_endings(limit: int) -> list[tuple[int, ...]]:
    """Every sequence that ends with EOS, or at the limit without."""
    words = [token for token in range(V) if token != EOS]
    ended = [
        (*start, EOS)
        for length in range(limit)
        for start in itertools.product(words, repeat=length)
    ]
    return ended + list(itertools.product(words, repeat=limit))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0, -1.0])
@pytest.mark.parametrize("seed", range(5))
def test_wide_beam_finds_the_best_of_all_sequences(seed: int, alpha: float) -> None:
    model, limit = Recurrent(seed), 4
    prompts = [[1], [2, 3], [3, 3, 1]]
    found = generate(
        model,
        prompts,
        max_new_tokens=limit,
        eos=EOS,
        num_beams=V**limit,
        length_penalty=alpha,
    )
    for prompt, tokens, score in zip(prompts, found.sequences(), found.scores, strict=True):
        rated = {
            ending: model.log_probability(prompt, ending) / ((5 + len(ending)) / 6) ** alpha
            for ending in all_endings(limit)
        }
        best = max(rated, key=rated.__getitem__)
        assert tuple(tokens.tolist()) == best
        assert math.isclose(float(score), model.log_probability(prompt, best))


@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("seed", range(4))
def test_one_beam_is_greedy(seed: int, eos: int | None) -> None:
    model = Recurrent(seed)
    prompts = [[1], [2, 3], [3, 3, 1, 1]]
    greedy = generate(model, prompts, max_new_tokens=6, eos=eos)
    beam = beam_search(model, Continuation.of(prompts, 6, eos), 1, length_penalty=0.0)
    assert torch.equal(greedy.tokens, beam.tokens)
    torch.testing.assert_close(greedy.scores, beam.scores)


ways: list[dict[str, Any]] = [{}, {"num_beams": 3}]


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(
        st.lists(st.integers(0, V - 1), min_size=1, max_size=6), min_size=1, max_size=4
    ),
    way=st.sampled_from(ways),
    eos=st.sampled_from([None, EOS]),
    limit=st.integers(1, 5),
    seed=st.integers(0, 3),
)
def test_a_prompt_among_others_continues_as_alone(
    prompts: list[list[int]], way: dict[str, Any], eos: int | None, limit: int, seed: int
) -> None:
    model = Recurrent(seed)
    together = generate(model, prompts, max_new_tokens=limit, eos=eos, pad=PAD, **way)
    for row, prompt in enumerate(prompts):
        alone = generate(model, [prompt], max_new_tokens=limit, eos=eos, pad=PAD, **way)
        assert together.sequences()[row].tolist() == alone.sequences()[0].tolist()
        torch.testing.assert_close(together.scores[row], alone.scores[0])
        assert (together.tokens[row, together.lengths[row] :] == PAD).all()
        total = model.log_probability(prompt, alone.sequences()[0].tolist())
        assert math.isclose(total, float(alone.scores[0]), abs_tol=1e-9)


def test_greedy_takes_the_likeliest_token_each_time() -> None:
    model, prompt = Recurrent(3), [2, 1]
    made = generate(model, [prompt], max_new_tokens=5).sequences()[0].tolist()
    for n in range(5):
        logits, _ = model.start(torch.tensor([prompt + made[:n]]))
        assert made[n] == int(logits.argmax())


def test_ended_samples_are_dropped_from_the_work_and_padded() -> None:
    class Countdown:
        """Each sample says its number, one less each time, and ends after 1."""

        def __init__(self) -> None:
            self.rows: list[int] = []

        def start(self, tokens: Tensor) -> tuple[Tensor, Hidden]:
            return self.advance(tokens[:, -1], Hidden(tokens))

        def advance(self, tokens: Tensor, state: Hidden) -> tuple[Tensor, Hidden]:
            self.rows.append(len(tokens))
            return nn.functional.one_hot(tokens - 1, 8).double(), state

    model = Countdown()
    made = generate(model, torch.tensor([[3], [1], [5]]), max_new_tokens=9, eos=0, pad=7)
    assert made.tokens.tolist() == [[2, 1, 0, 7, 7], [0, 7, 7, 7, 7], [4, 3, 2, 1, 0]]
    assert made.lengths.tolist() == [3, 1, 5]
    assert model.rows == [3, 2, 2, 1, 1]


def test_an_end_token_in_the_prompt_ends_nothing() -> None:
    made = generate(Recurrent(), [[EOS, EOS, 1], [1]], max_new_tokens=2, eos=EOS)
    alone = generate(Recurrent(), [[EOS, EOS, 1]], max_new_tokens=2, eos=EOS)
    assert made.sequences()[0].tolist() == alone.sequences()[0].tolist()


# --- sampling ----------------------------------------------------------------------------------


def restricted(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None
) -> list[float]:
    """The definition, token by token."""
    weights = [math.exp(x / temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda token: -weights[token])
    if top_k is not None:
        order = order[:top_k]
    total = sum(weights[token] for token in order)
    kept, reached = [], 0.0
    for token in order:
        kept.append(token)
        reached += weights[token] / total
        if top_p is not None and reached >= top_p:
            break
    total = sum(weights[token] for token in kept)
    return [weights[t] / total if t in kept else 0.0 for t in range(len(logits))]


@settings(max_examples=80, deadline=None)
@given(
    logits=st.lists(st.integers(-20, 20).map(lambda n: n / 5), min_size=1, max_size=9, unique=True),
    temperature=st.floats(0.3, 3),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.none() | st.floats(0.05, 0.97),
)
def test_distribution_against_its_definition(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None
) -> None:
    made = Sampling(temperature, top_k, top_p).distribution(torch.tensor(logits).double())
    # Where the sum up to a token is p but for rounding, either answer is right.
    expected = [restricted(logits, temperature, top_k, p) for p in near(top_p)]
    assert any(torch.allclose(made, torch.tensor(e).double(), atol=1e-9) for e in expected)


def near(p: float | None) -> list[float | None]:
    return [None] if p is None else [p, p * (1 - 1e-12), p * (1 + 1e-12)]


def test_samples_follow_the_distribution() -> None:
    logits = torch.tensor([0.3, 1.0, -0.5, 0.1, -2.0])
    how, count = Sampling(0.8, top_k=4, top_p=0.9), 40_000
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(0))
    tokens = how.choose(logits.expand(count, -1), uniform)
    shares = torch.bincount(tokens, minlength=5) / count
    expected = how.distribution(logits).float()
    assert (shares[expected == 0] == 0).all()
    torch.testing.assert_close(shares, expected, atol=0.01, rtol=0)


def test_the_ends_of_the_unit_interval_choose_possible_tokens() -> None:
    logits = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf]]).expand(2, -1)
    uniform = torch.tensor([0.0, 1 - 2**-24])
    assert Sampling(1.0).choose(logits, uniform).tolist() == [1, 2]


def test_sampling_is_decided_by_its_seed() -> None:
    model = Recurrent()

    def draw(seed: Any) -> list[list[int]]:
        made = generate(model, [[1]] * 8, max_new_tokens=8, temperature=1.5, seed=seed)
        return made.tokens.tolist()

    torch.manual_seed(1)
    first = draw(3)
    torch.manual_seed(2)
    assert first == draw(3) == draw(torch.Generator().manual_seed(3))
    assert first != draw(4)


def test_a_cold_sample_is_greedy() -> None:
    model = Recurrent()
    cold = generate(model, [[1], [2, 3]], max_new_tokens=6, temperature=1e-4, seed=0)
    assert torch.equal(cold.tokens, generate(model, [[1], [2, 3]], max_new_tokens=6).tokens)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 1.0, "top_k": 0, "seed": 0}, "top_k"),
        ({"temperature": 1.0, "top_p": 0.0, "seed": 0}, "top_p"),
        ({"temperature": 1.0, "top_p": 1.5, "seed": 0}, "top_p"),
        ({"top_k": 3}, "top_k=3.*temperature"),
        ({"temperature": 1.0}, "seed"),
        ({"temperature": 1.0, "num_beams": 2}, "num_beams=2"),
        ({"num_beams": 0}, "num_beams"),
        ({"num_beams": 2, "length_penalty": math.inf}, "length_penalty"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 2.0}, "max_new_tokens"),
        ({"length_penalty": "long"}, "length_penalty"),
        ({"seed": "luck"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": True}, "seed"),
        ({"eos": -1}, "eos"),
        ({"eos": 3.0}, "eos"),
        ({"eos": True}, "eos"),
        ({"eos": V, "vocab_size": V}, "eos"),
        ({"pad": -1}, "pad"),
        ({"pad": None}, "pad"),
        ({"pad": V, "vocab_size": V}, "pad"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"vocab_size": 1}, "token in prompts=1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        generate(Recurrent(), [[1]], **{"max_new_tokens": 3, **options})


@pytest.mark.parametrize("prompts", [[], [[1], []], torch.zeros(2, 0, dtype=torch.long)])
def test_a_prompt_has_a_token_at_least(prompts: Any) -> None:
    with pytest.raises(ValueError, match="beginning"):
        generate(Recurrent(), prompts, max_new_tokens=3)


@pytest.mark.parametrize(
    "prompts",
    [None, 5, [1, 2], torch.tensor([1, 2]), "one", ["one"], [[0.5]], [[True]], [[1], [2.0]]],
    ids=str,
)
def test_prompts_are_token_numbers(prompts: Any) -> None:
    with pytest.raises(OptionError, match=r"prompts.*allowed are"):
        generate(Recurrent(), prompts, max_new_tokens=3)


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-310, 1e-300, 1e-20])
@pytest.mark.parametrize("restriction", [{}, {"top_k": 2}, {"top_p": 0.9}], ids=str)
def test_the_smallest_temperatures_take_the_likeliest(
    temperature: float, restriction: dict[str, Any]
) -> None:
    logits = torch.tensor([[-3e4, 2.5, 2.4, -math.inf], [3e38, -3e38, 0.0, 1.0]])
    made = Sampling(temperature, **restriction).distribution(logits)
    assert made.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


# --- transformers ------------------------------------------------------------------------------


class WithoutCache:
    """A transformers model that reads all tokens anew at every step."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def start(self, tokens: Tensor) -> tuple[Tensor, Hidden]:
        return self.model(tokens, use_cache=False).logits[:, -1], Hidden(tokens)

    def advance(self, tokens: Tensor, state: Hidden) -> tuple[Tensor, Hidden]:
        return self.start(torch.cat([state.h, tokens[:, None]], 1))


@pytest.fixture(scope="module")
def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=12,
        n_positions=32,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=11,
        initializer_range=0.6,
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).double().eval()


@pytest.mark.parametrize("num_beams", [1, 2, 4])
def test_agrees_with_transformers(gpt2: Any, num_beams: int) -> None:
    prompts = torch.randint(11, (6, 3), generator=torch.Generator().manual_seed(1))
    theirs = gpt2.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=8,
        num_beams=num_beams,
        length_penalty=0.0,  # the formulas differ
        early_stopping="never" if num_beams > 1 else False,
        do_sample=False,
        pad_token_id=10,
        eos_token_id=11,
    )[:, 3:]
    ours = generate(
        WithoutCache(gpt2),
        prompts,
        max_new_tokens=8,
        eos=11,
        pad=10,
        num_beams=num_beams,
        length_penalty=0.0,
    )
    assert theirs.tolist() == ours.tokens.tolist()
    assert ours.lengths.min() < 8, "no sample ended early: the test shows too little"
