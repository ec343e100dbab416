"""A range of a file that reads like a file of its own."""

from __future__ import annotations

import io
from typing import Any


class SegmentFile(io.RawIOBase):
    """Bytes ``offset`` to ``offset + size`` of an open, seekable file, which it closes with itself."""

    def __init__(self, file: Any, offset: int, size: int) -> None:
        self._file = file
        self._offset = offset
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), max(0, self._size - self._position))
        if wanted == 0:
            return 0
        self._file.seek(self._offset + self._position)
        data = self._file.read(wanted)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
