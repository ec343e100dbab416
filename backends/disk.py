"""What a local disk says: its errors in the words of the tree, and whether files fit on it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .errors import AccessDenied, DestinationError, IntegrityError, NoSpace, SourceNotFound, TransferError
from .request import CopyRequest, locate

#: Numbers of an ``OSError`` that mean a full disk or quota.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


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
    if error.errno in FULL:
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
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceNotFound(f"no such file: {source}", request=request) from error
    except ValueError as error:
        raise SourceNotFound(f"no such file: {source!r}: {error}", request=request) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise AccessDenied(f"cannot read {source}: {reason}", request=request) from error


def open_regular(path: str, request: CopyRequest) -> int:
    """The descriptor of a regular file, for reading.

    Raises:
        SourceNotFound, AccessDenied: there is none, or it is something else.
        IntegrityError: its file system does not tell its size.
    """
    with reading(path, request):
        # A pipe without a writer would wait for one.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _require_regular(fd, path, request)
        except BaseException:
            os.close(fd)
            raise
    return fd


def _require_regular(fd: int, path: str, request: CopyRequest) -> None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(code, os.strerror(code), path)
    if status.st_size == 0 and os.pread(fd, 1, 0):
        # As files of /proc: copied by its size it would be an empty one, and count as whole.
        raise IntegrityError(f"{path} has bytes, but its file system gives it no size", request=request)


@contextmanager
def opened(path: str, request: CopyRequest) -> Iterator[int]:
    """As `open_regular`, and closed at the end of the block."""
    fd = open_regular(path, request)
    try:
        yield fd
    finally:
        os.close(fd)


def require_space(requests: Iterable[CopyRequest]) -> None:
    """Check that the known sizes of the local destinations fit on their disks.

    Raises:
        NoSpace: they do not; names the largest request; nothing has been written.
        DestinationError: a disk does not answer.
    """
    by_parent: dict[str, _Need] = {}
    for request in requests:
        location = locate(request.destination)
        if location.is_local and request.expected:
            parent = os.path.dirname(location.key)
            by_parent.setdefault(parent, _Need()).add(request.expected, request)
    by_device: dict[int, tuple[str, _Need]] = {}
    for parent, need in by_parent.items():
        existing = _nearest_existing(os.path.abspath(parent))
        with writing(parent, need.largest):
            device = os.stat(existing).st_dev
        by_device.setdefault(device, (existing, _Need()))[1].join(need)
    for existing, need in by_device.values():
        need.check(existing)


@dataclass(slots=True)
class _Need:
    """Bytes that one disk must have room for, and the largest request of them."""

    total: int = 0
    most: int = -1
    largest: CopyRequest | None = None

    def add(self, size: int, request: CopyRequest) -> None:
        self.total += size
        if size > self.most:
            self.most, self.largest = size, request

    def join(self, other: _Need) -> None:
        self.total += other.total
        if other.most > self.most:
            self.most, self.largest = other.most, other.largest

    def check(self, directory: str) -> None:
        with writing(directory, self.largest):
            disk = os.statvfs(directory)
        available = disk.f_bavail * disk.f_frsize
        if self.total > available:
            raise NoSpace(
                f"{self.total} bytes do not fit below {directory}: {available} are free",
                remedy="free space or choose another disk",
                request=self.largest,
            )


def _nearest_existing(path: str) -> str:
    while not os.path.isdir(path):
        parent = os.path.dirname(path)
        if parent == path:
            return path
        path = parent
    return path
