"""ListOps: values, grammar, distribution and files, against definitions written out here."""

import random
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from efficient_attn.tasks import ListOps, ModelConfig, make_task
from efficient_attn.tasks.listops import FILES, table_accuracy
from efficient_attn.tasks.listops_grammar import TOKENS, Grammar, read_tsv, write_tsv

SMALL = ModelConfig(d_model=16, nhead=2, num_layers=1)
APPLY = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(np.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
GRAMMARS = [
    Grammar(128, 30, 6, 5, 0.25),
    Grammar(60, 1, 4, 3, 0.5),
    Grammar(300, 100, 20, 10, 0.25),
    Grammar(12, 4, 2, 10, 0.25),
]


def words(tokens: np.ndarray) -> list[str]:
    return [TOKENS[token] for token in tokens if token]


def parse(rest: list[str]) -> tuple[int, int, int]:
    """Value, depth and most arguments of the expression that `rest` begins with; eats it."""
    word = rest.pop(0)
    if word not in APPLY:
        return int(word), 1, 0
    parts = []
    while rest[0] != "]":
        parts.append(parse(rest))
    rest.pop(0)
    values, depths, args = zip(*parts, strict=True)
    assert len(values) >= 2
    return APPLY[word](list(values)), 1 + max(depths), max(len(values), *args)


def tree(depth: int, grammar: Grammar) -> list[str]:
    """Words of a tree drawn in the most literal way."""
    if depth >= grammar.max_depth or random.random() >= grammar.operator_probability:
        return [str(random.randrange(10))]
    args = [tree(depth + 1, grammar) for _ in range(random.randint(2, grammar.max_args))]
    return [random.choice(list(APPLY)), *chain(*args), "]"]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda g: f"{g.shortest}-{g.length}")
def test_values_and_limits_by_reading_expressions_one_by_one(grammar: Grammar) -> None:
    tokens, values = grammar.draw(1, 300)
    depths, widths, lengths = [], [], []
    for row, value in zip(tokens, values, strict=True):
        length = int((row > 0).sum())
        assert (row[length:] == 0).all()
        rest = words(row)
        parsed, depth, args = parse(rest)
        assert rest == []
        assert parsed == value
        depths.append(depth)
        widths.append(args)
        lengths.append(length)
    assert grammar.shortest <= min(lengths)
    assert max(lengths) <= grammar.length
    assert max(depths) <= grammar.max_depth
    assert max(widths) <= grammar.max_args
    if grammar.max_depth == 2:
        assert (min(lengths), max(lengths)) == (grammar.shortest, grammar.length)
    if grammar.max_depth <= 6:
        assert (max(depths), max(widths)) == (grammar.max_depth, grammar.max_args)


def test_distribution_is_that_of_trees_drawn_one_by_one() -> None:
    grammar = Grammar(64, 8, 5, 4, 0.3)
    random.seed(3)
    wanted = []
    while len(wanted) < 4000:
        expression = tree(1, grammar)
        if grammar.shortest <= len(expression) <= grammar.length:
            wanted.append(expression)
    tokens, _ = grammar.draw(5, 4000)
    found = [words(row) for row in tokens]
    for statistic in (
        lambda expression: expression[0],
        lambda expression: expression[1],
        lambda expression: expression[-2],
        lambda expression: parse(list(expression))[0],
        lambda expression: parse(list(expression))[1],
        lambda expression: parse(list(expression))[2],
        lambda expression: len(expression) // 8,
    ):
        ours, theirs = (Counter(map(statistic, sample)) for sample in (found, wanted))
        for key in ours | theirs:
            # 4.5 standard deviations of the difference of two counts
            assert abs(ours[key] - theirs[key]) < 4.5 * (ours[key] + theirs[key]) ** 0.5 + 1, key


def test_published_sizes_give_the_published_shares() -> None:
    tokens, values = Grammar(1999, 501, 10, 10, 0.25).draw(0, 3000)
    halves = (tokens[::2], values[::2]), (tokens[1::2], values[1::2])
    scores = [table_accuracy(*halves, read) for read in range(3)]
    # Standard deviation of such a share of 1500: about 0.012.
    assert scores == pytest.approx([0.168, 0.358, 0.367], abs=0.05)


def test_baselines_by_counting() -> None:
    task = ListOps(train=600, evaluation=200)
    (train, labels), (test, answers) = (
        (part.numpy(), values.tolist())
        for part, values in (task.samples("train"), task.samples("test"))
    )
    majority = Counter(labels).most_common(1)[0][0]
    expected = {"chance": 0.1, "majority_class": answers.count(majority) / 200}
    for name, read in (("root_operator", 1), ("root_operator_and_next_token", 2)):
        table: dict[tuple, Counter] = {}
        for row, label in zip(train, labels, strict=True):
            table.setdefault(tuple(row[:read]), Counter())[label] += 1
        right = 0
        for row, answer in zip(test, answers, strict=True):
            counts = table.get(tuple(row[:read]), Counter(labels))
            right += answer == max(range(10), key=lambda label: (counts[label], -label))
        expected[name] = right / 200
    assert task.baselines() == pytest.approx(expected)


def test_no_expression_twice_and_fewer_are_the_first_of_more() -> None:
    tokens, values = Grammar(12, 4, 2, 3, 0.25).draw(0, 2000)
    assert len(np.unique(tokens, axis=0)) == 2000
    fewer = Grammar(12, 4, 2, 3, 0.25).draw(0, 100)
    assert np.array_equal(fewer[0], tokens[:100])
    assert np.array_equal(fewer[1], values[:100])


def test_parts_share_nothing_and_training_seeds_only_shuffle() -> None:
    task = ListOps(length=12, shortest=4, max_depth=2, max_args=3, train=900, evaluation=50)
    rows = [tuple(row) for name in FILES for row in task.samples(name)[0].tolist()]
    assert len(set(rows)) == len(rows) == 1000
    epochs = [next(task.batches(seed, 900)) for seed in (0, 0, 1)]
    assert torch.equal(epochs[0][0], epochs[1][0])
    assert not torch.equal(epochs[0][0], epochs[2][0])
    assert torch.equal(epochs[0][0].unique(dim=0), epochs[2][0].unique(dim=0))


def test_padding_moves_no_score() -> None:
    task = ListOps(train=10, evaluation=20)
    torch.manual_seed(0)
    model = task.build_model("full", {}, SMALL).eval()
    tokens = task.inputs(task.samples("test")[0])
    together = task.logits(model, tokens)
    for row, logits in zip(tokens, together, strict=True):
        alone = model(row[row > 0].unsqueeze(0))[0]
        assert torch.allclose(alone, logits, atol=1e-5)


def published(folder: Path, **counts: int) -> ListOps:
    """A task that reads files which the generator has written."""
    for seed, name in enumerate(FILES.values()):
        write_tsv(folder / name, *Grammar(128, 30, 6, 5, 0.25).draw(seed, 40))
    return ListOps(folder=str(folder), **counts)


def test_a_written_file_is_read_as_it_was(tmp_path: Path) -> None:
    task = published(tmp_path, train=30, evaluation=40)
    for seed, (split, count) in enumerate((("train", 30), ("validation", 40), ("test", 40))):
        tokens, values = Grammar(128, 30, 6, 5, 0.25).draw(seed, 40)
        read = task.samples(split)
        assert np.array_equal(read[0].numpy(), tokens[:count])
        assert np.array_equal(read[1].numpy(), values[:count])
    first = task.provenance()["sha256"]
    (tmp_path / FILES["test"]).write_bytes(b"Source\tTarget\n[MAX 1 2 ]\t2\n")
    assert task.provenance()["sha256"] != first
    assert ListOps().provenance() == {}


def test_the_published_form(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    tokens = [[12, 3, 14, 10, 5, 15, 1, 15]]  # [MAX 2 [SM 9 4 ] 0 ]
    write_tsv(file, np.array(tokens, np.uint8), np.array([3]))
    assert file.read_bytes() == (
        b"Source\tTarget\r\n( ( ( ( [MAX 2 ) ( ( ( [SM 9 ) 4 ) ] ) ) 0 ) ] )\t3\r\n"
    )
    for text in (
        b"Source\tTarget\n[MAX 2 [SM 9 4 X 0 X\t3\n",
        b"\xef\xbb\xbfSource\tTarget\r\n\r\n[MAX 2 [SM 9 4 ] 0 ]\t3\r\n\r\n",
        b"Source\tTarget\n(((([MAX 2) ((([SM 9) 4) ])) 0) ])\t3",
    ):
        file.write_bytes(text)
        read, values = read_tsv(file, 8)
        assert read.tolist() == tokens
        assert values.tolist() == [3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "1: expected the header"),
        (b"[MAX 1 2 ]\t2\n", "1: expected the header"),
        (b"Source\tTarget\n", "holds no expressions"),
        (b"Source\tTarget\n[MAX 1 2 ]\n", ":2: expected an expression, a tab and a digit"),
        (b"Source\tTarget\n\n[MAX 1 2 ]\t12\n", ":3: expected"),
        (b"Source\tTarget\n[MAX 1 2 ]\t\n", ":2: expected"),
        (b'Source\tTarget\n"[MAX 1 2 ]"\t2\n', ":2: .*not an expression"),
        (b"Source\tTarget\n[MAX 1 12 ]\t2\n", ":2: .*not an expression"),
        (b"Source\tTarget\n[FIRST 1 2 ]\t1\n", ":2: .*not an expression"),
        (b"Source\tTarget\n[MAX 1 2\t2\n", ":2: .*not an expression"),
        (b"Source\tTarget\n[MAX 1 ] 2 ]\t2\n", ":2: .*not an expression"),
        (b"Source\tTarget\n[MAX 1 ] 2\t2\n", ":2: .*not an expression"),
        (b"Source\tTarget\n( )\t2\n", ":2: .*not an expression"),
        (b"Source\tTarget\n[MAX 1 2 3 4 5 6 ]\t6\n", r":2: 8 tokens; raise listops\.length=7"),
    ],
)
def test_odd_files_are_refused_by_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "odd.tsv"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_tsv(file, 7)


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    for field, value, message in (
        ("max_args", 1, r"listops\.max_args=1.*at least 2"),
        ("shortest", 129, r"shortest=129 must be at most length=128"),
        ("operator_probability", 1.0, r"listops\.operator_probability=1\.0"),
        ("train", 0, r"listops\.train=0"),
    ):
        with pytest.raises(ValueError, match=message):
            make_task("listops", **{field: value})
    with pytest.raises(FileNotFoundError, match=r"basic_train\.tsv.*null"):
        ListOps(folder=str(tmp_path)).samples("train")


def test_expressions_that_hardly_ever_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efficient_attn.tasks.listops_grammar.MOST_TREES", 40_000)
    with pytest.raises(ValueError, match=r"40000 trees hold 0 .* of 5 asked for; widen"):
        Grammar(60, 50, 2, 5, 0.25).draw(0, 5)
