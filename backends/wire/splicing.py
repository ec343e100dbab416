"""From a plain socket to a file within the kernel, where nothing verifies the bytes (splice(2), Linux)."""

from __future__ import annotations

import fcntl
import os
import sys

_PIPE = 1 << 20
SUPPORTED = sys.platform == "linux" and hasattr(os, "splice")


class Pipe:
    """What splice needs between a socket and a file. Empty between two calls, so one serves all connections."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        fcntl.fcntl(self._write, fcntl.F_SETPIPE_SZ, _PIPE)

    def move(self, source: int, target: int, offset: int, count: int) -> int:
        """Move what has come, at most ``count`` bytes, to ``offset`` of the file. Returns how many; 0 at the end.

        Raises:
            BlockingIOError: nothing has come.
            SpliceError: the file cannot be written.
        """
        flags = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
        taken = os.splice(source, self._write, min(count, _PIPE), flags=flags)
        left = taken
        try:
            while left:
                moved = os.splice(self._read, target, left, offset_dst=offset)
                left, offset = left - moved, offset + moved
        except OSError as error:
            raise SpliceError(error) from error
        return taken

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class SpliceError(Exception):
    """Wraps the ``OSError`` of the file, which is not the network's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error
