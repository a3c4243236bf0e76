"""The grammar of ListOps: expressions drawn many at a time, and the published files of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from efficient_attn.tasks.task import generator

PAD = 0
DIGIT = 1
OPERATOR = 11
END = 15
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
TOKENS = ("<pad>", *map(str, range(10)), *OPERATORS, "]")
"""What the token numbers stand for."""
HEADER = b"Source\tTarget"
TREES = 20_000
"""Trees drawn together. Another number is another stream of expressions."""
MOST_TREES = 100_000_000


@dataclass(frozen=True)
class Grammar:
    """Sizes of the expressions: the fields of `ListOps` of the same names."""

    length: int
    shortest: int
    max_depth: int
    max_args: int
    operator_probability: float

    def draw(self, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """`count` different expressions, tokens [count, length] (8 bits), and values [count].

        Fewer are the first of more. ValueError where expressions of these lengths are too rare.
        """
        tokens = np.zeros((count, self.length), np.uint8)
        values = np.zeros(count, np.int64)
        seen: set[bytes] = set()
        draw = generator("listops", seed)
        for _ in range(0, MOST_TREES, TREES):
            for row, value in zip(*self._trees(draw), strict=True):
                known = len(seen)
                seen.add(row.tobytes())
                if len(seen) > known:
                    tokens[known], values[known] = row, value
                if len(seen) == count:
                    return tokens, values
        raise ValueError(
            f"listops: {MOST_TREES} trees hold {len(seen)} different expressions of "
            f"shortest={self.shortest} to length={self.length} tokens, of {count} asked for; "
            "widen these limits, or change max_depth, max_args or operator_probability"
        )

    def _trees(self, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Of `TREES` trees, those whose tokens are neither too few nor too many, in order."""
        levels, sizes = self._grow(draw)
        fits = (self.shortest <= sizes) & (sizes <= self.length)
        levels = [level.of(fits) for level in levels]
        levels = [level for level in levels if len(level.tree)]
        rows = np.cumsum(fits) - 1
        return _written(levels, rows, int(fits.sum()), self.length)

    def _grow(self, draw: np.random.Generator) -> tuple[list[_Level], np.ndarray]:
        """All nodes, level by level from the roots, and the tokens of every tree.

        A tree that has outgrown `length` grows no further: it is too long already.
        """
        tree = np.arange(TREES)
        sizes = np.zeros(TREES, np.int64)
        levels: list[_Level] = []
        while len(tree):
            branches = draw.random(len(tree)) < self.operator_probability
            branches &= len(levels) + 1 < self.max_depth
            sizes += np.bincount(tree, 1 + branches, minlength=TREES).astype(np.int64)
            branches &= sizes[tree] <= self.length
            args = np.where(branches, draw.integers(2, self.max_args + 1, len(tree)), 0)
            symbol = np.where(
                branches, draw.integers(0, 4, len(tree)), draw.integers(0, 10, len(tree))
            )
            levels.append(_Level(tree, symbol, args))
            tree = np.repeat(tree, args)
        return levels, sizes


@dataclass(frozen=True)
class _Level:
    """Nodes of one depth, [nodes] each; arguments stand in the next level in the same order.

    tree: of which tree. symbol: a digit, or which operator. args: 0 for digits.
    """

    tree: np.ndarray
    symbol: np.ndarray
    args: np.ndarray

    def of(self, trees: np.ndarray) -> _Level:
        """The nodes of these trees [TREES, bool]."""
        kept = trees[self.tree]
        return _Level(self.tree[kept], self.symbol[kept], self.args[kept])

    @property
    def first(self) -> np.ndarray:
        """Where in the next level the first argument of each operator stands."""
        args = self.args[self.args > 0]
        return np.cumsum(args) - args


def _written(
    levels: list[_Level], rows: np.ndarray, count: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [count, length] and values [count] of trees, tree t in row rows[t]."""
    sizes: list[np.ndarray] = []
    values = np.empty(0, np.int64)
    for level in reversed(levels):
        operators = level.args > 0
        value, size = level.symbol.copy(), np.ones_like(level.symbol)
        if operators.any():
            value[operators] = _applied(level.symbol[operators], values, level.first)
            size[operators] = 2 + np.add.reduceat(sizes[-1], level.first)
        values = value
        sizes.append(size)
    sizes.reverse()

    tokens = np.zeros((count, length), np.uint8)
    start = np.zeros(count, np.int64)
    for depth, level in enumerate(levels):
        operators = level.args > 0
        row = rows[level.tree]
        tokens[row, start] = level.symbol + np.where(operators, OPERATOR, DIGIT)
        tokens[row[operators], (start + sizes[depth] - 1)[operators]] = END
        if operators.any():
            before = np.cumsum(sizes[depth + 1]) - sizes[depth + 1]
            args = level.args[operators]
            offset = start[operators] + 1 - before[level.first]
            start = before + np.repeat(offset, args)
    return tokens, values


def _applied(operator: np.ndarray, arguments: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Values of operators [n] whose arguments are consecutive and begin at first [n]."""
    args = np.diff(first, append=len(arguments))
    ordered = np.sort(10 * np.repeat(np.arange(len(first)), args) + arguments) % 10
    low, high = ordered[first + (args - 1) // 2], ordered[first + args // 2]
    results = (
        ordered[first],
        ordered[first + args - 1],
        (low + high) // 2,
        np.add.reduceat(arguments, first) % 10,
    )
    return np.choose(operator, results)


def write_tsv(path: str | Path, tokens: np.ndarray, values: np.ndarray) -> None:
    """A file in the published form: ``Source<TAB>Target``, every application in parentheses.

    tokens: [count, length] padded with 0. values: [count].
    """
    with Path(path).open("wb") as file:
        file.write(HEADER + b"\r\n")
        for row, value in zip(tokens, values, strict=True):
            source = _in_parentheses(TOKENS[token] for token in row if token != PAD)
            file.write(f"{source}\t{value}\r\n".encode())


def _in_parentheses(words: Iterable[str]) -> str:
    """``[MAX 2 9 ]`` as ``( ( ( [MAX 2 ) 9 ) ] )``."""
    applied: list[str] = []
    for word in words:
        if word in OPERATORS:
            applied.append(word)
            continue
        done = f"( {applied.pop()} {word} )" if word == "]" else word
        if not applied:
            return done
        applied[-1] = f"( {applied[-1]} {done} )"
    raise ValueError("the expression does not end")


def read_tsv(path: str | Path, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [count, length], padded with 0, and values [count] of a file in the published form.

    Parentheses are dropped; the end of an operator is ``]`` or, as Long Range Arena's pipeline
    writes it, ``X``. ValueError with the number of the line for whatever is not an expression and
    its value, or is longer than `length`.
    """
    header, *lines = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if header.rstrip(b"\r") != HEADER:
        raise ValueError(f"{path}:1: expected the header Source<TAB>Target, found {header[:60]!r}")
    rows, values = [], []
    for number, line in enumerate(lines, start=2):
        if line.strip():
            source, tab, target = line.rstrip(b"\r").partition(b"\t")
            if not tab or len(target) != 1 or target not in b"0123456789":
                raise ValueError(
                    f"{path}:{number}: expected an expression, a tab and a digit, "
                    f"found {line[:40]!r} ... {line[-20:]!r}"
                )
            rows.append(_encoded(source, f"{path}:{number}", length))
            values.append(int(target))
    if not rows:
        raise ValueError(f"{path} holds no expressions")
    tokens = np.zeros((len(rows), length), np.uint8)
    for row, encoded in zip(tokens, rows, strict=True):
        row[: len(encoded)] = encoded
    return tokens, np.array(values)


_NUMBERS = {name.encode(): number for number, name in enumerate(TOKENS) if number != PAD}
_NUMBERS[b"X"] = END


def _encoded(source: bytes, place: str, length: int) -> list[int]:
    """Token numbers of an expression."""
    numbers = [_NUMBERS.get(word, PAD) for word in source.translate(None, b"()").split()]
    steps = [(OPERATOR <= number < END) - (number == END) for number in numbers]
    *inside, after = np.cumsum(steps) if numbers else [1]
    if PAD in numbers or after != 0 or min(inside, default=1) < 1:
        raise ValueError(f"{place}: {source[:60]!r} is not an expression of ListOps")
    if len(numbers) > length:
        raise ValueError(f"{place}: {len(numbers)} tokens; raise listops.length={length}")
    return numbers
