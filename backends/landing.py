"""Durable landing of local files: staged out of sight, checked, then renamed into place.

Staged files lie in a hidden directory ``.statelift-<random>`` beside their destination: on the
same file system, and under a name that no scan for state files matches. The directory is locked
(flock) by the process that made it, so whoever finds one unlocked knows its owner is dead and
removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from .errors import AccessDenied, DestinationError, IntegrityError, NoSpace, SourceNotFound, TransferError
from .request import CopyRequest, locate

STAGING_PREFIX = ".statelift-"
_PREALLOCATE_FROM = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def writing(destination: str, request: CopyRequest | None = None) -> Iterator[None]:
    """Translate an ``OSError`` of this block into the error of a destination that cannot be written."""
    try:
        yield
    except TransferError:
        raise
    except OSError as error:
        raise destination_error(error, destination, request) from error


def destination_error(error: OSError, destination: str, request: CopyRequest | None = None) -> DestinationError:
    """`NoSpace` for a full disk or quota, else `DestinationError`."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return NoSpace(
            f"no space for {destination}: {reason}", remedy="free space or choose another disk", request=request
        )
    return DestinationError(f"cannot write {destination}: {reason}", request=request)


@contextmanager
def reading(source: str, request: CopyRequest | None = None) -> Iterator[None]:
    """Translate an ``OSError`` of this block into the error of a source that cannot be read."""
    try:
        yield
    except TransferError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFound(f"no such file: {source}", request=request) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise AccessDenied(f"cannot read {source}: {reason}", request=request) from error


def require_space(requests: Iterable[CopyRequest]) -> None:
    """Check that the known sizes of the local destinations fit on their disks.

    Raises:
        NoSpace: they do not; nothing has been written.
    """
    needed: dict[str, int] = {}
    for request in requests:
        location = locate(request.destination)
        if location.is_local and request.expected:
            parent = os.path.dirname(os.path.abspath(location.key))
            needed[parent] = needed.get(parent, 0) + request.expected
    devices: dict[int, tuple[int, str]] = {}
    for parent, total in needed.items():
        existing = _nearest_existing(parent)
        device = os.stat(existing).st_dev
        devices[device] = (devices.get(device, (0, ""))[0] + total, existing)
    for total, existing in devices.values():
        disk = os.statvfs(existing)
        available = disk.f_bavail * disk.f_frsize
        if total > available:
            raise NoSpace(
                f"{total} bytes do not fit below {existing}: {available} are free",
                remedy="free space or choose another disk",
            )


def _nearest_existing(path: str) -> str:
    while not os.path.isdir(path):
        parent = os.path.dirname(path)
        if parent == path:
            return path
        path = parent
    return path


class Landing:
    """One staged file. `publish` moves it to its destination, `discard` removes it; the first call counts.

    Attributes:
        path: of the staged file.
        fd: opened on first use, for ``pwrite`` at any offset.
    """

    def __init__(self, path: str, destination: str, request: CopyRequest | None, *, fsync: bool) -> None:
        self.path = path
        self.destination = destination
        self._request = request
        self._fsync = fsync
        self._fd = -1
        self._lock = threading.Lock()

    @property
    def fd(self) -> int:
        with self._lock:
            if self._fd < 0:
                with writing(self.destination, self._request):
                    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                    self._fd = os.open(self.path, flags, 0o666)
            return self._fd

    def preallocate(self, size: int) -> None:
        """Reserve ``size`` bytes, so that a full disk shows before the transfer.

        Raises:
            NoSpace: they cannot be had.
        """
        if size < _PREALLOCATE_FROM or not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self.fd, 0, size)
        except OSError as error:
            if error.errno in _FULL:
                raise destination_error(error, self.destination, self._request) from error

    def publish(self, expected: int | None) -> int:
        """Check the size, flush if asked, rename. Returns the size in bytes.

        Raises:
            IntegrityError: the size is not ``expected``; nothing was published.
            DestinationError: the destination is a directory or cannot be replaced.
        """
        with writing(self.destination, self._request):
            fd = self.fd
            size = os.fstat(fd).st_size
            if expected is not None and size != expected:
                self.discard()
                raise IntegrityError(
                    f"{self.destination} would have {size} bytes instead of {expected}", request=self._request
                )
            if self._fsync:
                os.fsync(fd)
            self._close()
            os.replace(self.path, self.destination)
            if self._fsync:
                _fsync_directory(os.path.dirname(self.destination))
        return size

    def discard(self) -> None:
        self._close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def _fsync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class StagingArea:
    """The staged files of one batch. Leaving the block removes whatever was not published.

    Directories that the batch made and that stay empty are removed too.
    """

    def __init__(self, *, fsync: bool = False) -> None:
        self._fsync = fsync
        self._lock = threading.Lock()
        self._staged: dict[str, tuple[str, int]] = {}
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
        destination = os.path.abspath(destination)
        with writing(destination, request):
            if os.path.isdir(destination):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), destination)
            with self._lock:
                staging = self._staging(os.path.dirname(destination))
                self._count += 1
                path = os.path.join(staging, str(self._count))
        return Landing(path, destination, request, fsync=self._fsync)

    def _staging(self, parent: str) -> str:
        if parent not in self._staged:
            self._make(parent)
            sweep(parent)
            self._staged[parent] = _locked_directory(parent)
        return self._staged[parent][0]

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

    def close(self) -> None:
        with self._lock:
            for path, fd in self._staged.values():
                shutil.rmtree(path, ignore_errors=True)
                os.close(fd)
            self._staged.clear()
            for directory in reversed(self._made):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
            self._made.clear()


def _locked_directory(parent: str) -> tuple[str, int]:
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
    next sweep if this process is killed.
    """
    os.makedirs(parent, exist_ok=True)
    sweep(parent)
    path, fd = _locked_directory(os.fspath(parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


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


def sweep(parent: str | Path) -> int:
    """Remove staging directories in ``parent`` whose process is dead. Returns how many."""
    swept = 0
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(STAGING_PREFIX) and _remove_if_dead(entry.path):
                swept += 1
    return swept


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
