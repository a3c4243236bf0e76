"""The process between a sweep and a contestant: it waits, and ends all that the contestant started.

It adopts whatever the contestant leaves behind, daemons included, so that nothing can leave its
tree. When the contestant ends, when the sweep closes the `stop` pipe, or when the sweep dies (which
closes the pipe too), it kills the whole tree and then ends as the contestant did.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import threading
from multiprocessing.connection import Connection
from typing import Any

from efficient_attn.bench.processes import adopt_orphans, end_descendants, kill
from efficient_attn.bench.serve import Job, run_contestant


def supervise(
    stop: Connection[Any, Any], channel: socket.socket, output: Connection[Any, Any], job: Job
) -> None:
    """Main function of the process; it does not return.

    stop: readable once all is to end. channel, output: the contestant's, for answers and print.
    """
    os.setsid()
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    supervisor = os.getpid()
    contestant = os.fork()
    if contestant == 0:
        stop.close()
        run_contestant(supervisor, channel, output, job)
    channel.close()
    output.close()
    signal.signal(signal.SIGTERM, lambda *_: kill(contestant))
    threading.Thread(target=_kill_on_request, args=(stop, contestant), daemon=True).start()
    code = _wait_for(contestant)
    end_descendants()
    _end_with(code)


def _kill_on_request(stop: Connection[Any, Any], contestant: int) -> None:
    stop.poll(None)
    kill(contestant)


def _wait_for(contestant: int) -> int:
    """Its exit code, negative for a signal. Orphans that end earlier are reaped on the way."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == contestant:
            return os.waitstatus_to_exitcode(status)


def _end_with(code: int) -> None:
    """End in the way that gives this process the same exit code."""
    if code < 0:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
