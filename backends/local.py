"""Copies between local paths: hard link, reflink, ``copy_file_range``, ``sendfile``, read and write.

In this order, as far as the pair of files allows; each way goes on where the one before stopped.
"""

from __future__ import annotations

import fcntl
import fnmatch
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from .batch import BatchPolicy, run_batch
from .checksums import crc32c_of_descriptor, crc64nvme_of_descriptor
from .closeables import CloseableRegistry
from .disk import FULL, opened, reading, writing
from .errors import IntegrityError, SourceChanged, TransferError, UnsupportedCopy, UsageError
from .landing import Landing, StagingArea
from .options import Configuration, OptionGroup, option
from .report import CopiedFile, CopyReport, Progress
from .request import CopyRequest, locate
from .transfer_options import TransferOptions

# Long enough that system calls cost nothing, short enough that cancelling is noticed at once.
_CHUNK = 8 << 20
_BUFFER = 1 << 20
_FICLONE = 0x40049409  # linux/fs.h

_COPIED = "local"


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(pattern for each in text.split(",") if (pattern := each.strip()) and pattern != "none")


@dataclass(frozen=True, kw_only=True)
class LocalOptions(OptionGroup):
    """Options ``local.*``."""

    link: tuple[str, ...] = option(
        "local.link",
        ("*.sst",),
        parse=_patterns,
        shown="*.sst",
        help="Names of files that are hard-linked, as they never change once written; none for no file.",
    )


class LocalFileSystem:
    """Local paths to local paths.

    A hard link shares its bytes with the source: right only for files that nobody changes in
    place, such as RocksDB's SST files. So only whole files are linked whose name matches
    ``local.link`` at both ends. All other files get bytes of their own, or share them copy on write.
    """

    name = "local"

    def __init__(self, configuration: Configuration) -> None:
        self._transfer = configuration.of(TransferOptions)
        self._options = configuration.of(LocalOptions)

    def can_copy_paths(self, source: str, destination: str) -> bool:
        return locate(source).is_local and locate(destination).is_local

    def copy_files(
        self,
        requests: Sequence[CopyRequest],
        closeables: CloseableRegistry,
        *,
        progress: Progress | None = None,
        deadline: float | None = None,
        fail_fast: bool = True,
    ) -> CopyReport:
        policy = BatchPolicy(
            backend=self.name,
            workers=self._transfer.threads,
            deadline=deadline,
            fail_fast=fail_fast,
            # Links and reflinks need no room; what is copied reserves its own.
            check_space=False,
        )
        with StagingArea(fsync=self._transfer.fsync) as staging:

            def copy_one(request: CopyRequest, registry: CloseableRegistry) -> CopiedFile:
                return self._copy(request, staging, _Counter(request, registry, progress))

            return run_batch(requests, copy_one, policy, closeables)

    def close(self) -> None:
        """There is nothing to release."""

    def _copy(self, request: CopyRequest, staging: StagingArea, counter: _Counter) -> CopiedFile:
        started = time.monotonic()
        source, destination = self._paths(request)
        with opened(source, request) as fd:
            before = os.fstat(fd)
            length = _length(request, before.st_size)
            landing = staging.land(destination, request)
            try:
                method = self._fill(landing, fd, length, request, counter)
                verified, crc64nvme = self._verify(landing.path, request)
                _require_unchanged(before, os.fstat(fd), request)
                landing.publish(length)
            except BaseException:
                landing.discard()
                raise
        seconds = time.monotonic() - started
        return CopiedFile(request, method, length, seconds, verified=verified, crc64nvme=crc64nvme)

    def _paths(self, request: CopyRequest) -> tuple[str, str]:
        source, destination = locate(request.source), locate(request.destination)
        if not (source.is_local and destination.is_local):
            raise UnsupportedCopy(f"local copies no {request.source} to {request.destination}", request=request)
        if os.path.realpath(source.key) == os.path.realpath(destination.key):
            raise UsageError(f"{request.source} would be copied onto itself", request=request)
        return source.key, destination.key

    def _fill(self, landing: Landing, fd: int, length: int, request: CopyRequest, counter: _Counter) -> str:
        if not request.is_range:
            if self._may_link(request) and _link(fd, landing.path):
                counter.add(length)
                return "hard-link"
            if length and _reflink(fd, landing.fd):
                counter.add(length)
                return "reflink"
        landing.preallocate(length)
        _Bytes(fd, landing.fd, length, landing.destination, counter).copy()
        return _COPIED

    def _may_link(self, request: CopyRequest) -> bool:
        names = (os.path.basename(request.source), os.path.basename(request.destination))
        return all(any(fnmatch.fnmatchcase(name, each) for each in self._options.link) for name in names)

    def _verify(self, path: str, request: CopyRequest) -> tuple[str, int | None]:
        """Compare the request's checksums with those of the staged file: (what was compared, CRC64NVME)."""
        if not (self._transfer.verify and request.has_checksum):
            return "size", None
        verified, crc64nvme = "size", None
        with opened(path, request) as fd:
            if request.crc32c is not None:
                _require_equal("CRC32C", request.crc32c, crc32c_of_descriptor(fd), request)
                verified = "crc32c"
            if request.crc64nvme is not None:
                crc64nvme = crc64nvme_of_descriptor(fd)
                _require_equal("CRC64NVME", request.crc64nvme, crc64nvme, request)
                verified = "crc64nvme"
        return verified, crc64nvme


@dataclass(slots=True)
class _Counter:
    """Where copied bytes are told to, and where the copy learns that it shall end."""

    request: CopyRequest
    registry: CloseableRegistry
    progress: Progress | None

    def add(self, count: int) -> None:
        if self.progress and count:
            self.progress(self.request, count)
        self.registry.check()


def _length(request: CopyRequest, size: int) -> int:
    """Bytes to copy of a source that has ``size``."""
    if request.size is not None and request.size != size:
        raise IntegrityError(f"{request.source} has {size} bytes instead of {request.size}", request=request)
    end = size if request.length is None else request.offset + request.length
    if not request.offset <= end <= size:
        raise IntegrityError(f"{request.source} has {size} bytes: too few for this range", request=request)
    return end - request.offset


def _require_equal(name: str, wanted: int, found: int, request: CopyRequest) -> None:
    if found != wanted:
        raise IntegrityError(f"{request.source}: {name} is {found:x} instead of {wanted:x}", request=request)


def _require_unchanged(before: os.stat_result, after: os.stat_result, request: CopyRequest) -> None:
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise SourceChanged(f"{request.source} was changed while it was read", request=request)


def _link(fd: int, path: str) -> bool:
    """Give an open file another name, if its file system and the kernel's rules allow it."""
    with suppress(OSError):
        # Through the descriptor: the name may belong to another file by now. `os.link` follows
        # links only where it calls linkat(2), which it does for a directory's descriptor; an absolute path ignores it.
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
        return True
    return False


def _reflink(source: int, destination: int) -> bool:
    """Share blocks copy on write: ioctl_ficlone(2), on Btrfs, XFS and others."""
    with suppress(OSError):
        fcntl.ioctl(destination, _FICLONE, source)
        return True
    return False


@dataclass(slots=True)
class _Bytes:
    """Copies ``length`` bytes to the start of a destination; leaves it short where the source ends early."""

    source: int
    destination: int
    length: int
    path: str
    counter: _Counter
    position: int = 0

    def copy(self) -> None:
        """Copy by the first way that works, and go on by the next one where it stops working.

        Raises:
            NoSpace: the disk is full.
            DestinationError: it cannot be written.
            AccessDenied: the source cannot be read.
        """
        for way in (self._by_copy_file_range, self._by_sendfile, self._by_read_and_write):
            # 0 also means, of copy_file_range, a file system that does not know its files' sizes.
            while self.position < self.length and (count := self._attempt(way)):
                self.position += count
                self.counter.add(count)

    def _attempt(self, way: Callable[[int], int]) -> int:
        request = self.counter.request
        with writing(self.path, request):
            try:
                return way(min(_CHUNK, self.length - self.position))
            except TransferError:
                raise
            except OSError as error:
                # Whether reading or writing failed, the last way tells.
                if error.errno in FULL or way == self._by_read_and_write:
                    raise
                return 0

    @property
    def _offset(self) -> int:
        return self.counter.request.offset + self.position

    def _by_copy_file_range(self, count: int) -> int:
        return os.copy_file_range(self.source, self.destination, count, self._offset, self.position)

    def _by_sendfile(self, count: int) -> int:
        os.lseek(self.destination, self.position, os.SEEK_SET)
        return os.sendfile(self.destination, self.source, self._offset, count)

    def _by_read_and_write(self, count: int) -> int:
        request = self.counter.request
        with reading(request.source, request):
            data = os.pread(self.source, min(count, _BUFFER), self._offset)
        return os.pwrite(self.destination, data, self.position)
