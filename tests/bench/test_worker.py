"""Workers: whatever a contestant does ends as a status and a reason, and nothing of it stays."""

import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import bench_toys
import pytest
import torch

from efficient_attn.attention import AttentionMask, make_core
from efficient_attn.bench import processes, worker
from efficient_attn.bench.cell import PRELOAD
from efficient_attn.bench.worker import Limits, Worker, WorkerFailure, worker_context

HERE = Path(__file__).parent
LIMITS = Limits(memory_cap_gb=1, timeout_s=60)
SHORT = Limits(memory_cap_gb=1, timeout_s=1)


class Subject:
    """What workers hold here: one toy and questions about the process."""

    def __init__(self, toy="Sleeper", **options):
        self.core = make_core(f"bench_toys:{toy}", 1, 8, **options)

    def act(self):
        self.core.act()
        return asdict(self.core.options)["megabytes"]

    def call(self):
        tensors = [torch.ones(1, 1, 4, 8)] * 3
        return self.core(*tensors, AttentionMask()).sum().item()

    def options(self):
        return asdict(self.core.options)

    def process(self):
        return os.getpid(), os.getppid()

    def cores(self):
        return sorted(os.sched_getaffinity(0))

    def core_dumps(self):
        import resource

        return resource.getrlimit(resource.RLIMIT_CORE)

    def read_input(self):
        return sys.stdin.read() if sys.stdin else os.read(0, 10)

    def steps(self, report):
        for step in range(3):
            report(step)
        return "done"

    def reports_for_ever(self, report):
        while True:
            report("x")


def raises_when_built():
    raise ValueError("no such thing can be built")


@pytest.fixture
def start():
    """Starts workers, and closes them; what they leave behind is the test's to look for."""
    workers = []

    def start(*arguments, limits=LIMITS, factory=Subject, **options):
        one = Worker(worker_context(PRELOAD), factory, arguments, limits)
        workers.append(one)
        return one

    yield start
    for one in workers:
        one.close()


@pytest.fixture
def family(start):
    """Tells the living processes below the server that workers come from."""
    start().ask("process")
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    return lambda: set(living(processes.descendants(server)))


def living(pids):
    return [pid for pid in pids if lives(pid)]


def lives(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until(what, seconds=10):
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("toy", "status", "reason"),
    [
        ("Segfault", "crashed", "killed by SIGSEGV"),
        ("Exit", "crashed", "exited with code 3; last output: farewell"),
        ("Killed", "crashed", "killed by SIGKILL"),
        ("Faulty", "crashed", "RuntimeError: a deliberate fault (contestants.py:"),
        ("Quitter", "crashed", "SystemExit: 4 (contestants.py:"),
        ("Interrupt", "crashed", "KeyboardInterrupt: (contestants.py:"),
        ("Unspeakable", "crashed", "UnspeakableError, which cannot say more"),
        ("Recursion", "crashed", "RecursionError"),
        ("Hog", "oom", "allocate"),
        ("Grower", "oom", "MemoryError"),
        ("Orphan", "crashed", "killed by SIGKILL"),
        ("Aborted", "oom", "killed by SIGABRT; last output: terminate called"),
        ("Unplugged", "crashed", "closed its connection without an answer"),
        ("Garbage", "crashed", "it sent something that is no message"),
        ("DyingBreeder", "crashed", "killed by SIGSEGV"),
    ],
)
def test_a_fault_has_a_status_and_a_reason(start, family, monkeypatch, toy, status, reason):
    monkeypatch.setattr(worker, "_LAST_BREATH_S", 1.0)
    before = family()
    one = start(toy)
    with pytest.raises(WorkerFailure) as failure:
        one.ask("act")
    assert (failure.value.status, reason in failure.value.reason) == (status, True), failure.value
    assert wait_until(lambda: family() <= before), "a process is left"
    with pytest.raises(WorkerFailure) as again:
        one.ask("act")
    assert again.value.reason == failure.value.reason


@pytest.mark.parametrize("toy", ["Endless", "Stopped", "HalfMessage"])
def test_who_does_not_answer_is_ended(start, family, toy):
    before = family()
    with pytest.raises(WorkerFailure) as failure:
        start(toy, limits=SHORT).ask("act")
    assert failure.value.status == "timeout"
    assert "no answer to act within 1 s" in failure.value.reason
    assert wait_until(lambda: family() <= before), "a process is left"


def test_progress_does_not_put_off_the_timeout(start):
    with pytest.raises(WorkerFailure) as failure:
        start(limits=SHORT).ask("reports_for_ever", report=lambda what: None)
    assert failure.value.status == "timeout"


@pytest.mark.parametrize("toy", ["Breeder", "Threaded", "Meddler", "Silent"])
def test_what_does_no_harm_is_answered_and_leaves_nothing(start, family, toy):
    before = family()
    one = start(toy)
    assert one.ask("act") == 16
    assert one.ask("process")[0] == one.pid
    if toy == "Breeder":
        assert len(family() - before) == 5, "supervisor, contestant and three that it left"
    one.close()
    assert not family() - before, "a process is left"


def test_children_that_escape_a_killed_supervisor_are_found_by_the_output_they_hold(start):
    one = start("Breeder")
    one.ask("act")
    pid, supervisor = one.ask("process")
    output = one._output._reader.fileno()
    # Its daemon holds the output for the moment until it has closed what it inherited.
    assert wait_until(lambda: len(processes.writers(output)) == 3), (
        "the contestant, a child, and one in its own session"
    )
    holders = processes.writers(output)
    os.kill(supervisor, signal.SIGKILL)
    with pytest.raises(WorkerFailure) as failure:
        one.ask("act")
    assert "SIGKILL" in failure.value.reason
    assert wait_until(lambda: not living([pid, supervisor, *holders]))


def test_a_fork_of_the_contestant_has_no_say(start, family):
    before = family()
    one = start("Forked")
    assert [one.ask("act") for _ in range(3)] == [16] * 3
    assert one.ask("process")[0] == one.pid
    assert wait_until(lambda: len(family() - before) == 2), "the forks have ended"
    assert one._output.text() == ""


def test_output_is_drained_and_its_end_kept(start):
    one = start("Chatty", 64, factory=chatty)
    assert one.ask("act") == 64
    assert wait_until(lambda: one._output._length == 64 * 2**20 + 32)
    assert len(one._output._kept) == 4000
    assert one._output.text().startswith(f"[{64 * 2**20 + 32 - 4000:,} bytes before] ")


def chatty(toy, megabytes):
    return Subject(toy, megabytes=megabytes)


def test_answers_that_cannot_be_sent_are_failures(start):
    for toy, reason in [("Strange", "not JSON serializable"), ("Bloated", "a message of 134,")]:
        one = start(toy)
        one.ask("act")
        with pytest.raises(WorkerFailure) as failure:
            one.ask("options")
        assert failure.value.status == "crashed"
        assert reason in failure.value.reason


def test_a_subject_that_cannot_be_built_is_a_failure(start):
    with pytest.raises(WorkerFailure) as failure:
        start(factory=raises_when_built).ask("act")
    assert failure.value.status == "crashed"
    assert "no such thing can be built" in failure.value.reason


def test_a_factory_that_cannot_be_imported_there_is_a_failure(start, monkeypatch):
    module = type(sys)("only_here")
    exec("def build(): pass\nbuild.__module__ = 'only_here'", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(WorkerFailure) as failure:
        start(factory=module.build).ask("act")
    assert failure.value.status == "crashed"
    assert "No module named 'only_here'" in failure.value.reason


def test_a_process_that_cannot_be_started_is_a_failure(start, monkeypatch):
    def fail(self):
        raise OSError("Resource temporarily unavailable")

    context = worker_context(PRELOAD)
    monkeypatch.setattr(context.Process, "start", fail)
    with pytest.raises(WorkerFailure) as failure:
        start().ask("act")
    assert failure.value.status == "crashed"
    assert "temporarily unavailable" in failure.value.reason


def test_who_dies_between_two_questions_has_died(start):
    one = start()
    pid, _ = one.ask("process")
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not lives(pid))
    with pytest.raises(WorkerFailure) as failure:
        one.ask("process")
    assert failure.value.status == "crashed"
    assert "SIGKILL" in failure.value.reason


def test_who_is_killed_while_it_works_has_died(start):
    one = start("Endless")
    pid, _ = one.ask("process")
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(WorkerFailure) as failure:
        one.ask("act")
    assert failure.value.status == "crashed"
    assert "by a person, another program" in failure.value.reason


def test_the_out_of_memory_killer_is_told_from_other_kills(start, monkeypatch):
    kills = iter([3, 4])
    monkeypatch.setattr(worker, "out_of_memory_kills", lambda: next(kills))
    with pytest.raises(WorkerFailure) as failure:
        start("Killed").ask("act")
    assert failure.value.status == "oom"
    assert "out-of-memory killer" in failure.value.reason


def test_a_worker_runs_on_the_cores_of_who_started_it(start):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core only")
    assert start().ask("cores") == cores
    os.sched_setaffinity(0, cores[1:])
    try:
        assert start().ask("cores") == cores[1:]
    finally:
        os.sched_setaffinity(0, cores)


def test_a_worker_dumps_no_core_and_reads_no_input(start):
    assert start().ask("core_dumps") == [0, 0]
    assert not start().ask("read_input")


def test_progress_is_handed_on(start):
    seen = []
    assert start().ask("steps", report=seen.append) == "done"
    assert seen == [0, 1, 2]


def test_everything_ends_with_a_parent_that_is_killed(tmp_path):
    mark = f"MARK_{os.getpid()}"
    script = f"""
import sys, threading, time
sys.path.insert(0, {str(HERE)!r})
from test_worker import LIMITS, PRELOAD, Subject, Worker, worker_context
if __name__ == "__main__":
    workers = []
    for toy in ("Breeder", "Endless", "Stopped"):
        one = Worker(worker_context(PRELOAD), Subject, (toy,), LIMITS)
        workers.append(one)
        one.ask("process")
        threading.Thread(target=one.ask, args=("act",)).start()
    time.sleep(0.5)
    print("ready", flush=True)
    time.sleep(60)
"""
    path = tmp_path / "parent.py"
    path.write_text(script)
    parent = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, mark: "1", "TMPDIR": str(tmp_path)},
    )
    assert parent.stdout.readline() == "ready\n"
    here = len(marked(mark))
    parent.kill()
    parent.communicate()
    assert here == 12, "parent, server, tracker, three workers and supervisors, three children"
    assert wait_until(lambda: not marked(mark)), marked(mark)


def test_a_temporary_folder_too_deep_for_sockets_is_no_obstacle(tmp_path):
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    script = f"""
import sys, tempfile
sys.path.insert(0, {str(HERE)!r})
from test_worker import LIMITS, PRELOAD, Subject, Worker, worker_context
if __name__ == "__main__":
    one = Worker(worker_context(PRELOAD), Subject, ("Sleeper",), LIMITS)
    print(len(one.ask("process")), tempfile.gettempdir())
    one.close()
"""
    path = tmp_path / "parent.py"
    path.write_text(script)
    environment = {**os.environ, "TMPDIR": str(deep)}
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout == f"2 {deep}\n", done.stderr


def marked(name):
    """Processes that inherited this environment variable, or descend from one who did."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{name}=".encode() in path.read_bytes() and lives(int(path.parent.name)):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_the_toys_are_one_source():
    assert bench_toys.Sleeper.__module__ == "contestants"
