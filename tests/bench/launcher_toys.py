"""A contestant that takes down the job it is measured in, once, as a lost node would."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import efficient_attn as ea
from efficient_attn.attention import AttentionVariant, Capabilities

ARMED = Path("armed")


@dataclass(frozen=True)
class NoOptions:
    pass


@ea.register_variant("toy_job_killer")
class JobKiller(AttentionVariant):
    """Kills submitit's job when a file of the name `ARMED` is in the working folder."""

    Options = NoOptions
    capabilities = Capabilities()

    def forward(self, q, k, v, mask, dropout_p=0.0):
        if q.shape[-2] == 32 and ARMED.exists():
            ARMED.unlink()
            for pid in job_processes(os.environ["SUBMITIT_LOCAL_JOB_ID"]):
                os.kill(pid, signal.SIGKILL)
        return v.clone()


def job_processes(controller):
    """The process that submitit's controller of this pid has started for the job."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"PPid:\t{controller}\n" in status and b"submitit.core._submit" in words:
            found.append(int(folder.name))
    return found
