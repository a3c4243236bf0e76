"""What answers ListOps without attention: our expressions beside the published ones.

    python benchmarks/listops_baselines.py

draws expressions of the published sizes and prints how their values are distributed, and how often
three guesses are right that read nothing, the first token, and the first two: tables learnt on one
half of the expressions and scored on the other, then the other way round; with the half-width of a
95 % interval (binomial), beside figures reported for the published data.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from efficient_attn.tasks.listops import CLASSES, table_accuracy
from efficient_attn.tasks.listops_grammar import Grammar

PUBLISHED = Grammar(length=1999, shortest=501, max_depth=10, max_args=10, operator_probability=0.25)
REPORTED = {"majority class": 16.8, "root operator": 34.9, "root operator and next token": 37.1}
"""By how many tokens are read: none, one, two; in per cent."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000, help="of expressions")
    count = parser.parse_args(arguments).count
    tokens, values = PUBLISHED.draw(0, count)
    print(f"{count} expressions of {PUBLISHED.shortest} to {PUBLISHED.length} tokens")
    shares = np.bincount(values, minlength=CLASSES) / count
    print("value      " + "".join(f"{value:7}" for value in range(CLASSES)))
    print("share in % " + "".join(f"{100 * share:7.1f}" for share in shares))
    print(f"\n{'right, in %':30}{'ours':>6}{'± 95 %':>9}{'reported':>11}")
    for read, (name, reported) in enumerate(REPORTED.items()):
        share = np.mean([_scored(tokens, values, read, half) for half in (0, 1)])
        width = 1.96 * np.sqrt(share * (1 - share) / count)
        print(f"{name:30}{100 * share:6.1f}{100 * width:9.1f}{reported:11.1f}")


def _scored(tokens: np.ndarray, values: np.ndarray, read: int, half: int) -> float:
    train, test = ((tokens[part::2], values[part::2]) for part in (half, 1 - half))
    return table_accuracy(train, test, read)


if __name__ == "__main__":
    main()
