"""Faults of a contestant: two cells, in each a toy that misbehaves beside full attention."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import forkserver
from typing import Any

from efficient_attn.bench.record import Record, Status
from efficient_attn.commands.sweep import main as sweep
from fault_campaign.outcome import Outcome
from fault_campaign.scene import QUICK, Scene, wait_until

LENGTHS = (32, 64)
SLOWEST = 30.0
"""Times of the contestant beside a fault, relative to a calm sweep, above which it was disturbed.
Wide: its calls take some 50 µs, on a machine that others may use."""


@dataclass(frozen=True)
class Fault:
    """What `toy` does, and what is to be reported of it."""

    what: str
    toy: str
    status: Status
    reason: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0


FAULTS = (
    Fault("segmentation fault", "Segfault", "crashed", "SIGSEGV"),
    Fault("os._exit", "Exit", "crashed", "code 3"),
    Fault("SIGKILL to itself", "Killed", "crashed", "SIGKILL"),
    Fault("abort for want of memory", "Aborted", "oom", "bad_alloc"),
    Fault("SIGKILL to its supervisor", "Orphan", "crashed", "SIGKILL"),
    Fault("endless loop, SIGTERM ignored", "Endless", "timeout", "no answer", timeout_s=3),
    Fault("SIGSTOP to itself", "Stopped", "timeout", "no answer", timeout_s=3),
    Fault("exception", "Faulty", "crashed", "a deliberate fault"),
    Fault("exception in mid-race", "Late", "crashed", "too late"),
    Fault("SystemExit", "Quitter", "crashed", "SystemExit"),
    Fault("KeyboardInterrupt", "Interrupt", "crashed", "KeyboardInterrupt"),
    Fault("exception whose text fails", "Unspeakable", "crashed", "cannot say more"),
    Fault("endless recursion", "Recursion", "crashed", "RecursionError"),
    Fault("a tensor beyond all memory", "Hog", "oom", "allocate"),
    Fault("memory taken piece by piece", "Grower", "oom", "MemoryError"),
    Fault("1.5 GB of output", "Chatty", "ok", options={"megabytes": 1500}),
    Fault("closed output", "Silent", "ok"),
    Fault("closed connection", "Unplugged", "crashed", "connection"),
    Fault("nonsense on the connection", "Garbage", "crashed", "no message"),
    Fault("half a message", "HalfMessage", "timeout", "no answer", timeout_s=3),
    Fault("answer that no record holds", "Strange", "crashed", "not JSON"),
    Fault("answer of 128 MiB", "Bloated", "crashed", "a message of"),
    Fault("NaN", "NaN", "diverged", "finite"),
    Fault("children, setsid, daemon", "Breeder", "ok"),
    Fault("the same, then a crash", "DyingBreeder", "crashed", "SIGSEGV"),
    Fault("fork that comes back", "Forked", "ok"),
    Fault("threads without end", "Threaded", "ok"),
    Fault("signals, limits, folder changed", "Meddler", "ok"),
)


def contestant_faults(scene: Scene) -> Iterator[Outcome]:
    calm, seen = _sweep(scene, Fault("none", "Sleeper", "ok"))
    beside = {r.request["length"]: r.result["median_ms"] for r in seen if r.contestant == "full"}
    yield calm
    for fault in FAULTS:
        yield _judged(scene, fault, beside)
    yield _killed_from_outside(scene, beside)
    yield _server_killed(scene, beside)


def _judged(
    scene: Scene, fault: Fault, calm: dict[int, float], meanwhile: Callable[[], None] | None = None
) -> Outcome:
    """The outcome of a fault, with the times of the contestant beside it held against calm ones."""
    outcome, records = _sweep(scene, fault, meanwhile)
    ratios = [
        record.result["median_ms"] / calm[record.request["length"]]
        for record in records
        if record.contestant == "full" and record.ok
    ]
    if ratios:
        outcome.others += f", {min(ratios):.1f}-{max(ratios):.1f}× calm"
        outcome.expect(max(ratios) < SLOWEST, "the other's times are off")
    return outcome


def _sweep(
    scene: Scene, fault: Fault, meanwhile: Callable[[], None] | None = None
) -> tuple[Outcome, list[Record]]:
    """Run the two cells, `meanwhile` beside them in a thread, and look at what is there then."""
    store = scene.results("contest")
    options = [f"+attention.toy.{name}={value}" for name, value in fault.options.items()]
    if meanwhile is not None:
        threading.Thread(target=meanwhile, daemon=True).start()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = sweep(
            [
                *QUICK,
                "attention=[full]",
                f"+attention.toy.variant=contestants:{fault.toy}",
                *options,
                f"workload.length={','.join(map(str, LENGTHS))}",
                f"measure.timeout_s={fault.timeout_s}",
                f"results={store.folder}",
            ]
        )
    records = store.read()
    toys = [record for record in records if record.contestant == "toy"]
    others = [record for record in records if record.contestant == "full"]
    outcome = Outcome(fault.what)
    outcome.status = ", ".join(sorted({record.status for record in toys}))
    outcome.reason = next((record.reason for record in toys if record.reason), "")
    outcome.others = f"{sum(record.ok for record in others)} of {len(LENGTHS)} ok"
    outcome.expect(outcome.status == fault.status, f"expected {fault.status}")
    outcome.expect(fault.reason in outcome.reason, f"expected {fault.reason!r} as the reason")
    outcome.expect(all(record.ok for record in others), "the other contestant failed")
    outcome.expect(code == (0 if fault.status == "ok" else 1), f"exit code {code}")
    lost = 2 * len(LENGTHS) - len(records)
    if lost or store.warnings:
        outcome.lost = f"{lost} records, {len(store.warnings)} broken"
        outcome.expect(False, "records are missing")
    left = scene.left_over()
    outcome.expect(not left, f"{len(left)} processes left")
    files = ", ".join(path.name for path in scene.temporary_files())
    outcome.expect(not files, f"left in the temporary folder: {files}")
    return outcome, records


def _killed_from_outside(scene: Scene, calm: dict[int, float]) -> Outcome:
    note = scene.folder.parent / "note"

    def kill_each() -> None:
        for _ in LENGTHS:
            if wait_until(note.exists, 60):
                pid = int(note.read_text())
                note.unlink()
                os.kill(pid, signal.SIGKILL)

    fault = Fault(
        "kill -9 of a worker in mid-race", "Announced", "crashed", "SIGKILL", {"note": note}
    )
    return _judged(scene, fault, calm, kill_each)


def _server_killed(scene: Scene, calm: dict[int, float]) -> Outcome:
    """The process that workers are forked from is killed while the first cell runs."""
    note = scene.folder.parent / "note"

    def kill_server() -> None:
        if wait_until(note.exists, 60):
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]

    fault = Fault("kill -9 of the workers' server", "Announced", "ok", "", {"note": note})
    return _judged(scene, fault, calm, kill_server)
