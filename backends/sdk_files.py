"""The local files of the sdk backend: what s3transfer writes to, and how files are checked."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .checksums import crc32c_of_descriptor, crc64nvme, crc64nvme_joined, crc64nvme_of_descriptor
from .closeables import CloseableRegistry
from .disk import opened, reading, writing
from .errors import IntegrityError, SourceChanged
from .landing import Landing
from .request import CopyRequest, Location
from .sdk_client import Ended, Seen

Advance: TypeAlias = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """One copy that is done."""

    method: str
    bytes: int
    verified: str
    crc64nvme: int | None = None
    etag: str | None = None


def s3_object(location: Location) -> dict[str, str]:
    return {"Bucket": location.bucket, "Key": location.key}


class StagedFile:
    """A file object over a landing: seeks and writes of several threads do not disturb each other.

    s3transfer writes all downloads in one thread, because a file has one position. Here every
    thread has its own, so that each writes what it received. The checksum is taken from the
    chunks while they are in the cache.
    """

    def __init__(self, landing: Landing, registry: CloseableRegistry, *, verify: bool) -> None:
        self._landing = landing
        self._registry = registry
        self._verify = verify
        self._own = threading.local()
        self._lock = threading.Lock()
        self._runs: dict[int, tuple[int, int]] = {}

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET:
            raise ValueError("only offsets from the start")
        self._own.position = offset
        return offset

    def write(self, data: bytes) -> int:
        if self._registry.closed:
            raise Ended(self._registry.reason)
        offset: int = getattr(self._own, "position", 0)
        with writing(self._landing.destination):
            written = os.pwrite(self._landing.fd, data, offset)
            while written < len(data):
                written += os.pwrite(self._landing.fd, data[written:], offset + written)
        if self._verify and data:
            self._note(offset, data)
        self._own.position = offset + written
        return written

    def _note(self, offset: int, data: bytes) -> None:
        """Lengthen the run of bytes that ends at ``offset``, or begin one there."""
        with self._lock:
            start, value = self._runs.pop(offset, (offset, 0))
        value = crc64nvme(data, value)
        with self._lock:
            self._runs[offset + len(data)] = (start, value)

    def crc64nvme(self, size: int) -> int:
        """Of all bytes. A part that was written twice leaves runs that overlap: then the file is read."""
        joined, position = 0, 0
        for end, (start, value) in sorted(self._runs.items(), key=lambda run: run[1][0]):
            if start != position:
                return crc64nvme_of_descriptor(self._landing.fd, 0, size)
            joined = crc64nvme_joined(joined, value, end - start)
            position = end
        return joined if position == size else crc64nvme_of_descriptor(self._landing.fd, 0, size)


class UploadedFile:
    """A local file that is checked before it goes up, so that nothing wrong is published, and again after.

    Attributes:
        verified: the strongest of the request's checksums that was compared.

    Raises:
        IntegrityError: its size or checksum is not what the request says.
    """

    def __init__(self, request: CopyRequest, path: str, *, verify: bool) -> None:
        self._request = request
        self._path = path
        self.crc64nvme: int | None = None
        self.verified = "size"
        with opened(path, request) as fd:
            self._opened = os.fstat(fd)
            self.size = self._opened.st_size
            if request.size is not None and request.size != self.size:
                message = f"{request.source} has {self.size} bytes instead of {request.size}"
                raise IntegrityError(message, request=request)
            if verify:
                self.crc64nvme = crc64nvme_of_descriptor(fd)
                self.verified = compare(request, fd, self.crc64nvme, None)

    def require_unchanged(self) -> None:
        """Raise `SourceChanged` if the file is another one now, or was written to."""
        with reading(self._request.source, self._request):
            now = os.stat(self._path)
        then = self._opened
        if (now.st_ino, now.st_size, now.st_mtime_ns) != (then.st_ino, then.st_size, then.st_mtime_ns):
            raise SourceChanged(f"{self._request.source} was changed while it was read", request=self._request)


def compare(request: CopyRequest, fd: int, crc64nvme: int, promised: Seen | None) -> str:
    """Compare a file's checksums with those of the request and the store; returns the strongest one compared.

    Raises:
        IntegrityError: one differs.
    """
    verified = "size"
    wanted32 = {request.crc32c, promised.crc32c if promised else None} - {None}
    if wanted32:
        _require("CRC32C", wanted32, crc32c_of_descriptor(fd), request)
        verified = "crc32c"
    wanted64 = {request.crc64nvme, promised.crc64nvme if promised else None} - {None}
    if wanted64:
        _require("CRC64NVME", wanted64, crc64nvme, request)
        verified = "crc64nvme"
    return verified


def _require(name: str, wanted: set[int | None], found: int, request: CopyRequest) -> None:
    for value in wanted:
        if value != found:
            raise IntegrityError(f"{request.source}: {name} is {found:x} instead of {value:x}", request=request)
