"""Hidden directories that belong to a living process: locked (flock), and swept once it is dead.

Whoever finds one unlocked knows that its owner is dead and removes it. Where a file system has
no locks nothing is swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: No scan for state files matches a name that begins like this.
STAGING_PREFIX = ".statelift-"


def locked_directory(parent: str) -> tuple[str, int]:
    """A new staging directory and the descriptor that holds its lock."""
    while True:
        path = os.path.join(parent, STAGING_PREFIX + secrets.token_hex(6))
        os.mkdir(path, 0o700)
        fd = _lock_if_free(path)
        # A sweeper may have taken the directory before it was locked: then another one.
        if fd is not None:
            if os.path.isdir(path):
                return path, fd
            os.close(fd)


@contextmanager
def attempt_directory(parent: str | Path) -> Iterator[str]:
    """A directory for one attempt at something, below ``parent``; what dead attempts left there is swept first.

    What shall stay is renamed out of it before the block ends; the rest is removed then, or by the
    next sweep if this process is killed. Ancestors that were made and stay empty are removed too.
    """
    missing = _missing(os.path.abspath(parent))
    path, fd = _made_below(os.fspath(parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)
        for directory in missing:
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def _missing(directory: str) -> list[str]:
    """The directory and its ancestors as far as they do not exist, innermost first."""
    missing = []
    while not os.path.lexists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    return missing


def _made_below(parent: str) -> tuple[str, int]:
    while True:
        os.makedirs(parent, exist_ok=True)
        sweep(parent)
        # Another attempt that failed may have removed the parent, empty as it was.
        with contextlib.suppress(FileNotFoundError):
            return locked_directory(parent)


def sweep(parent: str | Path) -> int:
    """Remove staging directories in ``parent`` whose process is dead. Returns how many."""
    swept = 0
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(STAGING_PREFIX) and _remove_if_dead(entry.path):
                swept += 1
    return swept


def _lock_if_free(path: str) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        # A file system without locks: keep the directory, never sweep.
        return fd
    return fd


def _remove_if_dead(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)
