"""Where a measurement was taken, and by which code: what a record must know to be read later."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]

MALLOC_SETTINGS = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")

# What answers a measurement, apart from the variant's own file.
_COST_CODE = (
    "attention/*.py",
    "nn/encoder.py",
    "nn/feedforward.py",
    "bench/clock.py",
    "bench/contention.py",
    "bench/cost.py",
    "bench/flop_counter.py",
    "bench/memory.py",
    "bench/passes.py",
    "bench/work.py",
    "bench/workload.py",
)
_ACCURACY_CODE = (
    "attention/*.py",
    "nn/*.py",
    "tasks/*.py",
    "bench/training.py",
    "bench/causality.py",
    "bench/decoding_state.py",
)
_FIDELITY_CODE = (
    "attention/*.py",
    "attention/variants/full.py",
    "tasks/task.py",
    "bench/fidelity.py",
)
_CODE = {
    "cost": _COST_CODE,
    "accuracy": _ACCURACY_CODE,
    "fidelity": _FIDELITY_CODE,
    "swap": (*_ACCURACY_CODE, *_FIDELITY_CODE, "bench/swap.py"),
    "model": (*_COST_CODE, "bench/model.py", "integrations/*.py", "integrations/transformers/*.py"),
}


def package_version(name: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def machine() -> dict[str, Any]:
    """Facts that stay the same while the process runs."""
    return {
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "numpy": package_version("numpy"),
        "efficient_attn": package_version("efficient-attn"),
        "git_revision": _git_revision(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gb": _memory_gb(),
        "platform": platform.platform(),
        "malloc": {name: os.environ[name] for name in MALLOC_SETTINGS if name in os.environ},
    }


def device_name(device: str) -> str | None:
    """The accelerator's name; the CPU's model for ``cpu``."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    return machine()["cpu"]


def load_average() -> float | None:
    """Runnable processes over the last minute, None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def available_memory() -> int | None:
    """Bytes that new processes can use, None where the system does not tell."""
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def scratch_folder() -> Path:
    """Where this user's measurements on this machine keep what is the machine's: core locks, its
    peak, records that found no room."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"efficient-attn-{user}"


@cache
def code_hash(measure: str, variant: str) -> str:
    """Hash of the sources that answer `measure` for `variant`; other variants do not count.

    Of a variant that stands for somebody's `distribution`, the installed version counts too.
    """
    from efficient_attn.attention import variant_class

    sources = {path for pattern in _CODE[measure] for path in PACKAGE.glob(pattern)}
    answering = variant_class(variant)
    own = getattr(sys.modules[answering.__module__], "__file__", None)
    if own:
        sources.add(Path(own))
    hashed = hashlib.sha256()
    for path in sorted(sources):
        hashed.update(path.name.encode() + b"\0" + path.read_bytes())
    if distribution := getattr(answering, "distribution", None):
        hashed.update(f"{distribution} {package_version(distribution)}".encode())
    return hashed.hexdigest()[:16]


def _git_revision() -> str | None:
    """Revision of the checkout that the package runs from, marked when it has changes."""
    if not (PACKAGE.parent / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=PACKAGE,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None


def _cpu_model() -> str | None:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or None


def _memory_gb() -> float | None:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) / 2**20, 1)
    return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
