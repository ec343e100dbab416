"""Signs of life of a copy: of a download its staged file, of anything else the process's own counters.

s5cmd has no timeout for a server that stops in mid-body, and cannot be asked how far it is.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

_BLOCK = 512  # stat(2): st_blocks


class StagedFiles:
    """The files of staging directories as they are now, each directory listed once.

    s5cmd writes ``<name><digits>`` and renames it to ``<name>``.
    """

    def __init__(self) -> None:
        self._listed: dict[str, dict[str, os.stat_result]] = {}

    def mark(self, path: str) -> object:
        """Changes whenever bytes were written, at any offset."""
        return [(found.st_ino, found.st_size, found.st_mtime_ns) for found in self._of(path)]

    def bytes(self, path: str) -> int:
        """Bytes that have arrived; parts that are still missing before the last are not counted."""
        return sum(min(found.st_size, found.st_blocks * _BLOCK) for found in self._of(path))

    def _of(self, path: str) -> list[os.stat_result]:
        directory, name = os.path.split(path)
        if directory not in self._listed:
            self._listed[directory] = _list(directory)
        files = self._listed[directory]
        return [found for each, found in files.items() if each.startswith(name) and _is_suffix(each[len(name) :])]


def _is_suffix(text: str) -> bool:
    return not text or text.isdecimal()


def _list(directory: str) -> dict[str, os.stat_result]:
    found = {}
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            # s5cmd may rename it meanwhile.
            with contextlib.suppress(OSError):
                found[entry.name] = entry.stat(follow_symlinks=False)
    return found


def bytes_counted(pid: int) -> Any:
    """Bytes that the kernel counted of a process's reads and writes, sockets included; None where it does not."""
    import psutil

    with contextlib.suppress(psutil.Error, AttributeError):
        counted = psutil.Process(pid).io_counters()
        return counted.read_chars, counted.write_chars
    return None
