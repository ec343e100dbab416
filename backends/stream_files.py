"""Local files as streams: read through a descriptor, written to a staged file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

from .disk import opened, reading, writing
from .errors import IntegrityError, SourceChanged
from .landing import Landing, StagingArea
from .request import CopyRequest, locate

_READ = 1 << 20


class FileSource:
    """The bytes of one local file."""

    crc64nvme: int | None = None
    crc32c: int | None = None

    def __init__(self, request: CopyRequest) -> None:
        self._request = request
        with contextlib.ExitStack() as files:
            self._fd = files.enter_context(opened(locate(request.source).key, request))
            self._opened = os.fstat(self._fd)
            self.size: int | None = self._length(self._opened.st_size)
            self._files = files.pop_all()

    def _length(self, total: int) -> int:
        request = self._request
        if request.size is not None and request.size != total:
            raise IntegrityError(f"{request.source} has {total} bytes instead of {request.size}", request=request)
        end = total if request.length is None else request.offset + request.length
        if not request.offset <= end <= total:
            raise IntegrityError(f"{request.source} has {total} bytes: too few for this range", request=request)
        return end - request.offset

    async def chunks(self) -> AsyncIterator[bytes]:
        offset, left = self._request.offset, self.size or 0
        while left > 0:
            with reading(self._request.source, self._request):
                chunk = os.pread(self._fd, min(left, _READ), offset)
            if not chunk:
                return
            offset += len(chunk)
            left -= len(chunk)
            yield chunk

    async def check_unchanged(self, *, proven: bool) -> None:  # noqa: ARG002  costs nothing here
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != (self._opened.st_size, self._opened.st_mtime_ns):
            raise SourceChanged(f"{self._request.source} was changed while it was read", request=self._request)

    async def close(self) -> None:
        self._files.close()


class FileSink:
    """A local file, staged until it is published."""

    def __init__(self, staging: StagingArea, request: CopyRequest) -> None:
        self._request = request
        self._landing: Landing = staging.land(locate(request.destination).key, request)
        self._offset = 0
        try:
            if request.expected:
                self._landing.preallocate(request.expected)
        except BaseException:
            self._landing.discard()
            raise

    async def write(self, chunk: bytes) -> None:
        with writing(self._landing.destination, self._request):
            written = os.pwrite(self._landing.fd, chunk, self._offset)
            while written < len(chunk):
                written += os.pwrite(self._landing.fd, chunk[written:], self._offset + written)
        self._offset += written

    async def publish(self, size: int) -> None:
        self._landing.publish(size)

    async def discard(self) -> None:
        self._landing.discard()
