"""Break each kind of fault on purpose, one at a time in a scratch copy, and see who notices.

    python tests/attention/mutations.py [--only SUBSTRING] [--jobs N]

prints a Markdown table of mutations and the tests that failed; exit code 1 when one survives or
no longer applies. A survivor is a missing test.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attention.mutants import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("efficient_attn", "tests", "conf", "pyproject.toml", "README.md")
# The tests asked of each kind: first those that are quick and likely to know, then the whole.
ATTENTION = ("tests/attention",)
MEASURING = ("tests/bench", "tests/test_cli.py", "tests/attention/test_memory.py")
_QUICK = ("faults", "masks", "oracles", "state", "decoding", "performer", "survivors")
LIKELY = {
    ATTENTION: tuple(f"tests/attention/test_{name}.py" for name in _QUICK),
    MEASURING: ("tests/bench/test_measuring.py", "tests/bench/test_cells.py", *MEASURING[2:]),
}
FAILURES = 5
TIMEOUT_S = 1800

# Loaded by pytest in the scratch copy: what the tests import must be the copy.
PLUGIN = """
from pathlib import Path

import efficient_attn


def pytest_configure():
    here = Path(__file__).resolve().parent
    found = Path(efficient_attn.__file__).resolve()
    assert found.is_relative_to(here), f"tests would run against {found}, not {here}"
"""


@dataclass(frozen=True)
class Outcome:
    """verdict: caught, survived, or why there is none; failed: tests, in the order they failed."""

    mutation: Mutation
    verdict: str
    failed: list[str]

    @property
    def row(self) -> str:
        m = self.mutation
        names = list(
            dict.fromkeys(re.sub(r"\[.*", "", test.split("::")[-1]) for test in self.failed)
        )
        shown = ", ".join(f"`{name}`" for name in names[:3]) + (", …" if len(names) > 3 else "")
        count = f"{len(self.failed)}{'+' if len(self.failed) >= FAILURES else ''}"
        tests = f"{shown} ({count})" if self.failed else "none"
        return f"| {m.kind} | {m.variant or 'all'}: {m.what} | {tests} | {self.verdict} |"


class Unfit(Exception):  # noqa: N818  (an outcome of the table, not an error here)
    """The mutation cannot be judged; the message says why."""


def occurrences(mutation: Mutation, root: Path = ROOT) -> int:
    """How often the passage to replace stands in its file; a true list says 1 throughout."""
    path = root / mutation.file
    return path.read_text().count(mutation.old) if path.exists() else 0


def folders(mutation: Mutation) -> Sequence[str]:
    """Which tests are asked: those of measuring for kinds 13 and 14, else those of attention."""
    return MEASURING if mutation.kind >= 13 else ATTENTION


def judge(mutation: Mutation, snapshot: Path, known: dict[Sequence[str], list[str]]) -> Outcome:
    """Run the tests against a copy of `snapshot` with the mutation in it.

    known: tests of each folder that fail without any mutation; they are no witnesses.
    """
    places = folders(mutation)
    try:
        with scratch(snapshot) as copy:
            apply(mutation, copy)
            named = ("-k", mutation.variant) if mutation.variant and mutation.kind < 13 else ()
            failed = run_tests(copy, LIKELY[places], known[places], *named)
            failed = failed or run_tests(copy, places, known[places])
    except Unfit as reason:
        return Outcome(mutation, f"**{reason}**", [])
    return Outcome(mutation, "yes" if failed else "**no**", failed)


@contextmanager
def scratch(source: Path) -> Iterator[Path]:
    """A copy of what the tests need, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = Path(folder).resolve()
        for name in COPIED:
            if (source / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "test_mutations_apply.py")
                shutil.copytree(source / name, copy / name, ignore=ignored, symlinks=True)
            else:
                shutil.copy(source / name, copy / name)
        inside = copy / "efficient_attn" / "conf"
        if not inside.exists():
            inside.symlink_to("../conf")
        (copy / "imports_the_copy.py").write_text(PLUGIN)
        yield copy


def apply(mutation: Mutation, root: Path) -> None:
    """Make the change; `Unfit` when the passage is not there exactly once."""
    found = occurrences(mutation, root)
    if found != 1:
        raise Unfit(f"does not apply: {found} places in {mutation.file}")
    path = root / mutation.file
    path.write_text(path.read_text().replace(mutation.old, mutation.new))


def run_tests(
    copy: Path, places: Sequence[str], known: list[str], *arguments: str, failures: int = FAILURES
) -> list[str]:
    """Names of the tests that failed, at most `failures` (0 = all). `Unfit` when none could run."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-rf", "--tb=no", f"--maxfail={failures}"),
        *("-p", "no:cacheprovider", "-p", "imports_the_copy", *arguments, *places),
        *(word for test in known for word in ("--deselect", test)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise Unfit(f"no end within {TIMEOUT_S} s") from None
    failed = re.findall(r"^FAILED (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    passed = done.returncode == 0 or (done.returncode == 5 and bool(arguments))
    if not passed and not (done.returncode == 1 and failed):
        said = (done.stdout + done.stderr).strip().splitlines()
        raise Unfit(f"tests do not run: {said[-1] if said else done.returncode}")
    return failed


def find_known(snapshot: Path, mutations: list[Mutation]) -> dict[Sequence[str], list[str]]:
    """Tests that fail as things stand, by folder."""
    with scratch(snapshot) as copy:
        return {
            places: run_tests(copy, places, [], failures=0)
            for places in dict.fromkeys(map(folders, mutations))
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="mutations whose description contains this")
    parser.add_argument("--jobs", type=int, default=1, help="mutations tried at a time")
    parser.add_argument(
        "--trust", action="store_true", help="do not first look for tests that fail anyway"
    )
    arguments = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if arguments.only in str(mutation)]
    if not chosen:
        print(f"no mutation contains {arguments.only!r}", file=sys.stderr)
        return 1

    with scratch(ROOT) as snapshot, ThreadPoolExecutor(arguments.jobs) as pool:
        known: dict[Sequence[str], list[str]] = {ATTENTION: [], MEASURING: []}
        if not arguments.trust:
            known.update(find_known(snapshot, chosen))
        for test in (test for tests in known.values() for test in tests):
            print(f"fails without any mutation: {test}", file=sys.stderr)
        print("| kind | mutation | tests that failed | caught |\n|---|---|---|---|", flush=True)
        caught = 0
        for outcome in pool.map(lambda one: judge(one, snapshot, known), chosen):
            caught += outcome.verdict == "yes"
            print(outcome.row, flush=True)
    print(f"\n{caught} of {len(chosen)} mutations caught")
    return 0 if caught == len(chosen) and not any(known.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
