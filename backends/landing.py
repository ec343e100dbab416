"""Durable landing of local files: staged out of sight, checked, then renamed into place.

Staged files lie in a hidden directory beside their destination (`locked_directories`): on the
same file system, and removed by the next batch if their process dies.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from .disk import FULL, destination_error, reading, require_space, writing
from .errors import DestinationError, IntegrityError
from .locked_directories import STAGING_PREFIX, attempt_directory, locked_directory, sweep
from .request import CopyRequest

__all__ = [
    "STAGING_PREFIX",
    "Landing",
    "StagingArea",
    "attempt_directory",
    "destination_error",
    "reading",
    "require_space",
    "sweep",
    "writing",
]

_PREALLOCATE_FROM = 1 << 20
_FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h
#: Staging directories, each with an open descriptor, that a batch keeps for further files.
_IDLE_DIRECTORIES = 32
#: How often a parent directory is made again that another batch removed as empty.
_MAKE_ATTEMPTS = 10


@functools.cache
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _fallocate(fd: int, size: int) -> int:
    """Reserve disk space behind a file's end by fallocate(2), which `os` lacks; returns the errno."""
    import ctypes

    try:
        call = _libc().fallocate64
    except AttributeError:
        return errno.ENOSYS
    done = call(ctypes.c_int(fd), ctypes.c_int(_FALLOC_FL_KEEP_SIZE), ctypes.c_int64(0), ctypes.c_int64(size))
    return 0 if done == 0 else ctypes.get_errno()


class Landing:
    """One staged file. `publish` moves it to its destination, `discard` removes it; the first call counts.

    Both are for whoever writes the file: a descriptor that another thread closes in mid-write
    may be another file's by then.

    Attributes:
        path: of the staged file; a file that something else made there may be published too.
        fd: opened on first use, for ``pwrite`` at any offset.
    """

    def __init__(
        self,
        path: str,
        destination: str,
        request: CopyRequest | None,
        *,
        fsync: bool,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self.destination = destination
        self._request = request
        self._fsync = fsync
        self._ended: Callable[[], None] | None = ended
        self._fd = -1
        self._lock = threading.Lock()

    @property
    def fd(self) -> int:
        with self._lock:
            if self._fd < 0:
                if self._ended is None:
                    raise ValueError(f"{self.destination} has landed or was discarded")
                with writing(self.destination, self._request):
                    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                    self._fd = os.open(self.path, flags, 0o666)
            return self._fd

    def preallocate(self, size: int) -> None:
        """Reserve ``size`` bytes, so that a full disk shows before the transfer.

        The file's size stays what was written to it: `publish` must be able to tell a short file.

        Raises:
            NoSpace: they cannot be had.
        """
        if size < _PREALLOCATE_FROM:
            return
        number = _fallocate(self.fd, size)
        # Any other answer means that this file system reserves nothing beforehand.
        if number in FULL:
            raise destination_error(OSError(number, os.strerror(number)), self.destination, self._request)

    def publish(self, expected: int | None) -> int:
        """Check the size, flush if asked, rename. Returns the size in bytes.

        Raises:
            IntegrityError: the size is not ``expected``; nothing was published.
            DestinationError: the destination is a directory or cannot be replaced.
        """
        with writing(self.destination, self._request):
            size = self._written()
            if expected is not None and size != expected:
                self.discard()
                raise IntegrityError(
                    f"{self.destination} would have {size} bytes instead of {expected}", request=self._request
                )
            if self._fsync:
                _fsync_path(self.path)
            self._close()
            os.replace(self.path, self.destination)
            if self._fsync:
                _fsync_path(os.path.dirname(self.destination))
        self._end()
        return size

    def _written(self) -> int:
        if self._fd < 0 and os.path.exists(self.path):
            # Made by a link or by another process: it may forbid to be opened for writing.
            return os.stat(self.path).st_size
        return os.fstat(self.fd).st_size

    def discard(self) -> None:
        self._close()
        if self._ended is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            self._end()

    def _close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended:
            ended()


def _refuse_special(path: str, request: CopyRequest | None) -> None:
    """Renaming over a device, pipe or socket would remove it for everybody."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISREG(mode := os.lstat(path).st_mode) and not stat.S_ISLNK(mode):
            raise DestinationError(
                f"cannot write {path}: it is a device, pipe or socket",
                remedy="choose a regular file",
                request=request,
            )


def _fsync_path(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@dataclass(slots=True)
class _Staging:
    """A staging directory, the descriptor that holds its lock, and how many landings use it."""

    path: str
    fd: int
    users: int = 0

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.fd)


class StagingArea:
    """The staged files of one batch. Leaving the block removes whatever was not published.

    Directories that the batch made and that stay empty are removed too.
    """

    def __init__(self, *, fsync: bool = False) -> None:
        self._fsync = fsync
        self._lock = threading.Lock()
        self._staged: dict[str, _Staging] = {}
        self._made: list[str] = []
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def land(self, destination: str, request: CopyRequest | None = None) -> Landing:
        """A staged file for this local destination, whose parent directories are made.

        Raises:
            DestinationError: the destination is a directory, or its parent cannot be made or written.
        """
        path = os.path.abspath(destination)
        with writing(path, request):
            if "\0" in path:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            if os.path.isdir(path) or destination.endswith("/"):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            _refuse_special(path, request)
            with self._lock:
                staging = self._staging(os.path.dirname(path))
                self._count += 1
                staging.users += 1
                staged = os.path.join(staging.path, str(self._count))
        return Landing(staged, path, request, fsync=self._fsync, ended=lambda: self._ended(staging))

    def _ended(self, staging: _Staging) -> None:
        with self._lock:
            staging.users -= 1

    def _staging(self, parent: str) -> _Staging:
        if parent not in self._staged:
            self._remove_idle()
            self._staged[parent] = self._new_staging(parent)
        return self._staged[parent]

    def _remove_idle(self) -> None:
        """Keep descriptors few, however many directories a batch fills."""
        idle = [parent for parent, each in self._staged.items() if each.users == 0]
        for parent in idle[: max(0, len(self._staged) - _IDLE_DIRECTORIES)]:
            self._staged.pop(parent).remove()

    def _new_staging(self, parent: str) -> _Staging:
        for _ in range(_MAKE_ATTEMPTS - 1):
            # Another batch, which had made the parent, may end and remove it as empty.
            with contextlib.suppress(FileNotFoundError):
                return self._try_staging(parent)
        return self._try_staging(parent)

    def _try_staging(self, parent: str) -> _Staging:
        self._make(parent)
        sweep(parent)
        return _Staging(*locked_directory(parent))

    def _make(self, directory: str) -> None:
        missing = []
        while not os.path.isdir(directory):
            missing.append(directory)
            if os.path.lexists(directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
            directory = os.path.dirname(directory)
        for each in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(each)
                self._made.append(each)
                if self._fsync:
                    _fsync_path(os.path.dirname(each))

    def close(self) -> None:
        with self._lock:
            for staging in self._staged.values():
                staging.remove()
            self._staged.clear()
            for directory in reversed(self._made):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
            self._made.clear()
