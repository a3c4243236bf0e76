"""The sweep itself is killed, at random moments, and started again until all is measured."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from efficient_attn.bench.store import Store
from fault_campaign.outcome import Outcome
from fault_campaign.scene import Scene, wait_until

CELLS = 20
ASKED = 2 * CELLS
KILLED = "killed"
ARGUMENTS = (
    "attention=[full,local_window]",
    f"workload.length={','.join(str(8 * (cell + 1)) for cell in range(CELLS))}",
)


def kills(scene: Scene, number: int, seed: int) -> Iterator[Outcome]:
    """One row per kill, and one for the sweep that then completes.

    Every other kill comes while the sweep starts, the rest while it measures.
    """
    calm, start_s, measuring_s = _undisturbed(scene)
    yield calm
    store = scene.results("killed")
    moments = random.Random(seed)
    for count in range(number):
        while True:
            what = f"kill -9 of the sweep, {count + 1} of {number}"
            measuring = count % 2 == 0
            missing = 1 - len(store.read()) / ASKED
            moment = moments.uniform(0, missing * measuring_s if measuring else start_s)
            outcome = _killed(scene, store, what, moment, measuring)
            if outcome.status == KILLED or not outcome.ok:
                break
            store = scene.results("killed")  # it had ended before: begin afresh
        yield outcome
    yield _completed(scene, store)


def _undisturbed(scene: Scene) -> tuple[Outcome, float, float]:
    """The sweep in peace: how long until its first record, and from there to its end."""
    store = scene.results("reference")
    start = time.monotonic()
    process = _start(scene, store)
    wait_until(lambda: bool(store.read()) or process.poll() is not None, 120)
    first = time.monotonic()
    code = process.wait()
    end = time.monotonic()
    outcome = Outcome("none: the sweep to be killed", f"exit code {code}")
    outcome.others = f"{len(store.read())} of {ASKED} ok"
    outcome.expect(code == 0, "the sweep fails without a fault")
    return outcome, first - start, end - first


def _start(scene: Scene, store: Store) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        scene.sweep_command(*ARGUMENTS, f"results={store.folder}"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _killed(scene: Scene, store: Store, what: str, moment: float, measuring: bool) -> Outcome:
    """Kill the sweep so many seconds after its start, or after its first new record, and look at
    what it leaves."""
    before = {record.key: record for record in store.read()}
    process = _start(scene, store)
    if measuring:
        wait_until(lambda: len(store.read()) > len(before) or process.poll() is not None, 120)
    time.sleep(moment)
    process.kill()
    status = KILLED if process.wait() < 0 else "had ended before"
    left_over = scene.left_over()
    after = {record.key: record for record in store.read()}
    outcome = Outcome(
        what, status, f"{moment:.1f} s after its {'first record' if measuring else 'start'}"
    )
    outcome.others = f"{len(before)} records before, {len(after)} after"
    lost = sum(after.get(key) != record for key, record in before.items())
    left = [*store.records_folder.glob(".*"), *scene.temporary.glob("pymp-*")]
    left += scene.temporary_files()
    if lost or store.warnings:
        outcome.lost = f"{lost} records, {len(store.warnings)} broken"
    elif left:
        outcome.lost = f"nothing; left: {', '.join(sorted({_kind(path) for path in left}))}"
    outcome.expect(not lost, "records are lost")
    outcome.expect(not store.warnings, "half a record")
    outcome.expect(not left_over, f"{len(left_over)} processes left")
    return outcome


def _kind(path: Path) -> str:
    """What a temporary file or folder is, without the part of its name that is chance."""
    if path.suffix == ".tmp":
        return "a record that was being written"
    return f"{path.name.split('-')[0]}-*{'/' if path.is_dir() else ''}"


def _completed(scene: Scene, store: Store) -> Outcome:
    command = scene.sweep_command(*ARGUMENTS, f"results={store.folder}")
    completed = scene.run(command)
    listed = json.loads(scene.run([*command, "--dry-run", "--json"]).stdout)["measurements"]
    outcome = Outcome("the same command after all kills", f"exit code {completed.returncode}")
    outcome.others = f"{listed['asked'] - listed['missing']} of {listed['asked']} ok"
    if listed["missing"]:
        outcome.lost = f"{listed['missing']} records"
    outcome.expect(completed.returncode == 0, "it does not complete")
    outcome.expect(listed == {"asked": ASKED, "missing": 0}, "records are missing")
    store.read()
    outcome.expect(not store.warnings, "half a record")
    return outcome
