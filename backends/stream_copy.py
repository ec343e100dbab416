"""One file from a source to a sink, chunk by chunk: counted, checksummed, compared, published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from .checksums import crc32c, crc64nvme
from .errors import ConnectionFailed, IntegrityError
from .request import CopyRequest


class Source(Protocol):
    """An opened source.

    Attributes:
        size: bytes that `chunks` will give, where known.
        crc64nvme: what the store promises of these bytes.
        crc32c: likewise.
    """

    size: int | None
    crc64nvme: int | None
    crc32c: int | None

    def chunks(self) -> AsyncIterator[bytes]:
        """The bytes in order; none of the chunks is empty."""
        ...

    async def check_unchanged(self, *, proven: bool) -> None:
        """Raise `SourceChanged` if the source is another version than the one that was opened.

        Args:
            proven: a checksum of all bytes was right, so that another request may be spared.
        """
        ...

    async def close(self) -> None: ...


class Sink(Protocol):
    """A destination of which nothing is visible before `publish`."""

    async def write(self, chunk: bytes) -> None: ...

    async def publish(self, size: int) -> str | None:
        """Make the file visible with all of its ``size`` bytes; returns its ETag where there is one."""
        ...

    async def discard(self) -> None:
        """Remove whatever was written; harmless after `publish`."""
        ...


class Tally:
    """What has come by so far: bytes and checksums."""

    def __init__(self, request: CopyRequest, source: Source, *, verify: bool) -> None:
        self.bytes = 0
        self.crc64nvme = 0 if verify else None
        self._request = request
        self._source = source
        wants_crc32c = verify and (request.crc32c is not None or source.crc32c is not None)
        self._crc32c = 0 if wants_crc32c else None

    def add(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        if self.crc64nvme is not None:
            self.crc64nvme = crc64nvme(chunk, self.crc64nvme)
        if self._crc32c is not None:
            self._crc32c = crc32c(chunk, self._crc32c)

    def check(self) -> str:
        """Compare with all that was promised; returns the strongest check that was made.

        Raises:
            ConnectionFailed: the source ended early.
            IntegrityError: a size or checksum is not what was promised.
        """
        request, source = self._request, self._source
        if source.size is not None and self.bytes < source.size:
            raise ConnectionFailed(f"{request.source} ended after {self.bytes} of {source.size} bytes", request=request)
        for expected in (request.expected, source.size):
            if expected is not None and self.bytes != expected:
                message = f"{request.source} gave {self.bytes} bytes instead of {expected}"
                raise IntegrityError(message, request=request)
        verified = "size"
        if self._compare("CRC32C", self._crc32c, (request.crc32c, source.crc32c)):
            verified = "crc32c"
        if self._compare("CRC64NVME", self.crc64nvme, (request.crc64nvme, source.crc64nvme)):
            verified = "crc64nvme"
        return verified

    def _compare(self, name: str, found: int | None, promised: tuple[int | None, int | None]) -> bool:
        known = [value for value in promised if value is not None]
        if found is None or not known:
            return False
        for value in known:
            if value != found:
                message = f"{self._request.source}: {name} is {found:x} instead of {value:x}"
                raise IntegrityError(message, request=self._request)
        return True


@dataclass(frozen=True, slots=True)
class Pumped:
    """One file that is published."""

    bytes: int
    verified: str
    crc64nvme: int | None
    etag: str | None


async def pump(tally: Tally, source: Source, sink: Sink, advance: Callable[[int], None]) -> Pumped:
    """Move all chunks, compare, publish.

    Args:
        advance: told how many bytes the sink took; raises to end the copy.
    """
    async for chunk in source.chunks():
        tally.add(chunk)
        await sink.write(chunk)
        advance(len(chunk))
    verified = tally.check()
    await source.check_unchanged(proven=verified != "size")
    etag = await sink.publish(tally.bytes)
    return Pumped(tally.bytes, verified, tally.crc64nvme, etag)


class Pulse:
    """The sign of life of one copy: without a `beat` for ``seconds`` its ``asyncio.timeout`` runs out."""

    def __init__(self, limit: asyncio.Timeout, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()

    def beat(self) -> None:
        if not self._limit.expired():
            self._limit.reschedule(self._loop.time() + self._seconds)
