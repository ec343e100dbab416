"""What the light server serves: files of a directory, few of them open at once."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import OrderedDict
from pathlib import Path
from urllib.parse import unquote

#: Files that stay open; a benchmark may have a hundred thousand of them.
OPEN_AT_MOST = 256


class Stored:
    """One open file; it is closed when the last request that sends it is done.

    Args:
        mapped: for TLS, which needs the bytes and not only a descriptor.
    """

    def __init__(self, path: Path, *, mapped: bool) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        state = os.fstat(self.fd)
        self.size = state.st_size if path.is_file() else 0
        self.etag = f'"{state.st_ino:x}-{state.st_mtime_ns:x}"'
        self.data = mmap.mmap(self.fd, self.size, prot=mmap.PROT_READ) if mapped and self.size else None

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.fd)


class Store:
    """Files below a directory, by the paths that clients ask for. Uploads leave only their size."""

    def __init__(self, root: Path, *, mapped: bool) -> None:
        self._root = root
        self._mapped = mapped
        self._open: OrderedDict[str, Stored] = OrderedDict()
        self._uploaded: dict[str, int] = {}

    def find(self, path: str) -> Stored | None:
        found = self._open.get(path)
        if found is not None:
            self._open.move_to_end(path)
            return found
        try:
            found = Stored(self._root / unquote(path).lstrip("/"), mapped=self._mapped)
        except (FileNotFoundError, NotADirectoryError):
            return None
        self._open[path] = found
        if len(self._open) > OPEN_AT_MOST:
            self._open.popitem(last=False)
        return found

    def is_there(self, path: str) -> bool:
        return (self._root / unquote(path).strip("/").partition("/")[0]).is_dir()

    def uploaded(self, path: str, size: int) -> None:
        self._uploaded[path] = size

    def uploaded_size(self, path: str) -> int | None:
        return self._uploaded.get(path)
