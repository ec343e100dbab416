"""Disks that cannot be written: a full one, a read-only one. They need the right to mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")


def _unmount(directory: Path) -> None:
    # Lazily: a test that fails with an open file must not keep the disk.
    subprocess.run(["umount", "-l", str(directory)], check=True, timeout=20)


@contextmanager
def small_disk(directory: Path, size: int) -> Iterator[Path]:
    """A tmpfs of ``size`` bytes at ``directory``, which is made."""
    directory.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory))
    try:
        yield directory
    finally:
        _unmount(directory)


@contextmanager
def read_only_disk(directory: Path) -> Iterator[Path]:
    """A tmpfs at ``directory``, which is made, that nobody can write, with a file ``old`` on it."""
    with small_disk(directory, 1 << 20):
        (directory / "old").write_bytes(b"old")
        _mount("-o", "remount,ro", str(directory))
        yield directory
