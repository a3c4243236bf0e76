"""Is the report page usable with very many records? Times its making and its opening.

    python benchmarks/large_report.py                      # 100,000 records, some minutes
    python benchmarks/large_report.py --records 10000 --from results/demo-cpu

The records are those of a folder, repeated under other seeds, batches and lengths until there are
enough. The page is made by `efficient-attn report` in a process of its own, and opened in Chromium
(where playwright and a Chromium are installed) until its picker has answered; each several times,
the median counts.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from efficient_attn.bench.record import Record
from efficient_attn.bench.store import Store

MAKES, OPENINGS = 3, 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the times; 0 when the page could be made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="results", default="results/reference-cpu")
    parser.add_argument("--records", type=int, default=100_000)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="large-report-") as scratch:
        folder, page = Path(scratch, "results"), Path(scratch, "report.html")
        written = _fill(folder, chosen.results, chosen.records)
        program = [sys.executable, "-m", "efficient_attn.cli"]
        command = [*program, "report", str(folder), "--out", str(page)]
        makes = [
            _seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
            for _ in range(MAKES)
        ]
        print(f"records                {written}")
        print(f"made in                {_told(makes)}")
        print(f"size of the page       {page.stat().st_size / 2**20:.1f} MiB")
        openings = _openings(page)
        print(f"opened in              {_told(openings) if openings else 'no Chromium here'}")
    return 0


def _fill(folder: Path, results: str, count: int) -> int:
    """Stores `count` records; each repetition is of another batch, length and seed."""
    known = [record for record in Store(results).read() if record.measure == "cost"]
    if not known:
        raise SystemExit(f"{results} holds no cost records to repeat")
    store = Store(folder)
    store.require_writable()
    made = itertools.islice(_repeated(known), count)
    for number, record in enumerate(made, start=1):
        store.path(record.key).write_text(record.to_json(), encoding="utf-8")
        if number % 5000 == 0 or number == count:
            print(f"\rwritten {number} of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return count


def _repeated(known: Sequence[Record]) -> Iterator[Record]:
    for turn in itertools.count():
        times = 1 + turn % 4
        longer = 1 + (turn // 4) % 6 / 8
        for one in known:
            asked = {
                **one.request,
                "seed": turn,
                "batch": one.request["batch"] * times,
                "length": round(one.request["length"] * longer),
            }
            result = dict(one.result)
            for name in ("samples_ms", "median_ms", "low_ms", "high_ms"):
                if name in result:
                    result[name] = _scaled(result[name], times * longer)
            yield replace(
                one, key=f"{one.key}{turn}", cell=f"{one.cell}{turn}", request=asked, result=result
            )


def _scaled(value: Any, factor: float) -> Any:
    return [one * factor for one in value] if isinstance(value, list) else value * factor


def _openings(page: Path) -> list[float]:
    """Seconds from the address to the page with its picker's answer; none without a browser."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    browser = next(filter(None, found), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return []
    if browser is None:
        return []
    with sync_playwright() as session:
        chromium = session.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--disable-gpu"]
        )
        seconds = []
        for _ in range(OPENINGS):
            tab = chromium.new_context().new_page()
            tab.set_default_timeout(300_000)
            seconds.append(_seconds(partial(_open, tab, page)))
            tab.context.close()
        chromium.close()
    return seconds


def _open(tab: Any, page: Path) -> None:
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready]")


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _told(seconds: Sequence[float]) -> str:
    middle = statistics.median(seconds)
    return f"{middle:.2f} s (of {len(seconds)}: {min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    sys.exit(main())
