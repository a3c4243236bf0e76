"""Faults of what a sweep stands on: a folder that is read-only, a disk that is full, a rival."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from efficient_attn.bench.store import SPACE_NEEDED, Store, unsaved_folder
from fault_campaign.outcome import Outcome
from fault_campaign.scene import Scene

LENGTHS = (16, 32, 48, 64)
ARGUMENTS = (
    "attention=[full,local_window]",
    f"workload.length={','.join(map(str, LENGTHS))}",
)
ASKED = 2 * len(LENGTHS)
DISK_MB = SPACE_NEEDED // 2**20 + 8
WRONG_REQUEST = 2


def infrastructure_faults(scene: Scene) -> Iterator[Outcome]:
    yield _full_disk(scene)
    yield _read_only(scene)
    yield _two_at_once(scene)


def _full_disk(scene: Scene) -> Outcome:
    """The disk fills up in mid-sweep; when there is room again, the same command completes.

    A small disk of its own where the system lets one be mounted, else a limit on the size of files,
    which does not let the record in hand be kept elsewhere.
    """
    store, rescued = scene.results("full"), scene.results("rescued")
    store.folder.mkdir(parents=True)
    command = scene.sweep_command(*ARGUMENTS, f"results={store.folder}")
    mounts = _can_mount(store.folder)
    if mounts:
        how = f"{DISK_MB} MB, filled after the first record"
        fill = (
            f"until ls '{store.records_folder}'/*.json; do sleep 0.01; done;"
            f" dd if=/dev/zero 'of={store.folder}/filler' bs=64k"
        )
        mount = (
            f"mount -t tmpfs -o size={DISK_MB}m tmpfs '{store.folder}'"
            f" && {{ ({fill}) >/dev/null 2>&1 & }}"
        )
        rescue = f"cp -a '{store.records_folder}' '{rescued.folder}'"
        rescued.folder.mkdir(parents=True)
        first = scene.run(_in_namespace(mount, command, rescue))
    else:
        how = "no file above 512 bytes"
        first = scene.run(["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *command])
        shutil.copytree(store.folder, rescued.folder)
    outcome = Outcome(f"full disk: {how}", f"exit code {first.returncode}", first.stderr.strip())
    kept = list(unsaved_folder().glob("*.json"))
    for path in kept:
        shutil.move(path, rescued.records_folder)
    stored = {record.key: record for record in rescued.read()}
    outcome.expect(first.returncode == WRONG_REQUEST, "expected exit code 2")
    outcome.expect("cannot write record" in first.stderr, "no clear message")
    outcome.expect(not rescued.warnings, "half a record")
    outcome.expect(not mounts or bool(kept), "the record in hand is not kept")
    outcome.expect(len(stored) < ASKED, "the disk was not full")
    shutil.rmtree(store.folder)
    shutil.copytree(rescued.folder, store.folder)
    again = scene.run(command)
    outcome.others = (
        f"{len(stored)} records, {len(kept)} of them kept elsewhere; "
        f"{len(store.read())} of {ASKED} afterwards"
    )
    _expect_complete(outcome, store, again)
    outcome.expect(all(store.get(key) == one for key, one in stored.items()), "records changed")
    outcome.expect(not scene.left_over(), "processes left")
    shutil.rmtree(unsaved_folder(), ignore_errors=True)
    return outcome


def _read_only(scene: Scene) -> Outcome:
    store = scene.results("read-only")
    command = scene.sweep_command(*ARGUMENTS, f"results={store.folder}")
    scene.run(scene.sweep_command(ARGUMENTS[0], "workload.length=8", f"results={store.folder}"))
    before = store.read()
    if _can_mount(store.folder):
        mount = (
            f"mount --bind '{store.folder}' '{store.folder}'"
            f" && mount -o remount,ro,bind '{store.folder}'"
        )
        first = scene.run(_in_namespace(mount, command, "true"))
    else:
        folders = [store.folder, store.records_folder]
        for folder in folders:
            folder.chmod(0o555)
        first = scene.run(command)
        for folder in folders:
            folder.chmod(0o755)
    outcome = Outcome("read-only folder", f"exit code {first.returncode}", first.stderr.strip())
    outcome.others = f"{len(before)} records before, {len(store.read())} after"
    outcome.expect(first.returncode == WRONG_REQUEST, "expected exit code 2")
    outcome.expect(str(store.folder) in first.stderr, "no clear message")
    outcome.expect(len(before) == 2 and store.read() == before, "records changed")
    outcome.expect(not scene.left_over(), "processes left")
    return outcome


def _two_at_once(scene: Scene) -> Outcome:
    store = scene.results("rivals")
    command = scene.sweep_command(*ARGUMENTS, f"results={store.folder}")
    rivals = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    codes = [rival.wait() for rival in rivals]
    records = store.read()
    outcome = Outcome("two sweeps at once into one folder", f"exit codes {codes[0]}, {codes[1]}")
    outcome.others = f"{sum(record.ok for record in records)} of {ASKED} ok"
    outcome.expect(codes == [0, 0], "a sweep failed")
    outcome.expect(len(records) == ASKED and not store.warnings, "records are missing or broken")
    outcome.expect(not scene.left_over(), "processes left")
    return outcome


def _expect_complete(
    outcome: Outcome, store: Store, completed: subprocess.CompletedProcess[str]
) -> None:
    outcome.expect(completed.returncode == 0, "it does not complete afterwards")
    complete = len(store.read()) == ASKED and not store.warnings
    if not complete:
        outcome.lost = f"{ASKED - len(store.read())} records"
    outcome.expect(complete, "records are missing afterwards")


def _can_mount(folder: Path) -> bool:
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0


def _in_namespace(mount: str, command: list[str], afterwards: str) -> list[str]:
    """The command with a mount that it alone sees and that ends with it."""
    script = f'{mount} && {{ "$@"; code=$?; {afterwards}; exit $code; }}'
    return ["unshare", "--mount", "sh", "-c", script, "sh", *command]
