"""From an object, or a range of one, to a local file: ranges of one version, each at its offset."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from ..errors import (
    BackendError,
    ConnectionFailed,
    IntegrityError,
    SourceChanged,
    TransferError,
)
from ..landing import Landing, destination_error
from ..report import CopiedFile
from ..request import CopyRequest, locate
from .client import Exchange, Order, network
from .response import Head
from .splicing import Pipe, SpliceError
from .verify import Sums, compare, differs, stored_sum, wanted
from .watch import SlowTransfer

if TYPE_CHECKING:
    from .engine import Engine
    from .schedule import Job

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_SPLIT_FACTOR = 2
#: How often a part goes to another connection only because others are much faster.
_HURRIES = 2


class Superseded(TransferError):
    """The transfer failed or began anew while this job was running: nobody needs its result."""


class Download:
    """One file. Its version is fixed by the first answer, or by the request's ETag."""

    def __init__(self, engine: Engine, request: CopyRequest) -> None:
        self.engine = engine
        self.request = request
        self.source = locate(request.source)
        self.number = engine.number()
        self.generation = 0
        self.etag = request.etag
        self.total = request.size
        self.landing: Landing | None = None
        self._target = locate(request.destination).key
        self._ranges: list[Range] = []
        self._left = 0
        self._restarts = 0
        self._one_stream = False
        self._stored: int | None = None
        self._started = 0.0

    def begin(self) -> None:
        """Plan the ranges as far as the size is known, and schedule them."""
        self._left, self._ranges, self._stored = 0, [], None
        expected = self.request.expected
        if expected is None and self.total is not None:
            expected = self.total - self.request.offset
        part = self.engine.options.part_size
        if expected is None or self._one_stream or expected <= part * _SPLIT_FACTOR:
            self._add(self.request.offset, expected)
        else:
            self.split(self.request.offset, expected)

    def split(self, start: int, length: int) -> None:
        """Schedule ranges of part size. Ends of an object's ranges lie on part boundaries, as AWS advises."""
        part, end = self.engine.options.part_size, start + length
        while start < end:
            stop = min(end, (start // part + 1) * part)
            if end - stop < part // 4:
                stop = end
            self._add(start, stop - start)
            start = stop

    def _add(self, start: int, length: int | None) -> None:
        job = Range(self, start, length)
        self._ranges.append(job)
        self._left += 1
        self.engine.schedule.add(job)

    def staged(self) -> Landing:
        """The staged file, made when the first range starts."""
        if self.landing is None:
            self._started = time.monotonic()
            self.landing = self.engine.staging.land(self._target, self.request)
            expected = self.request.expected
            if expected is not None and len(self._ranges) > 1:
                self.landing.preallocate(expected)
        return self.landing

    # What an answer tells of the object.

    def learn(self, head: Head, total: int | None) -> None:
        """Check an answer against what is known of the object's version, and remember what was not.

        Raises:
            SourceChanged: it is another version.
            IntegrityError: its size is not the request's.
        """
        etag = head.headers.get("etag")
        if self.etag is not None and etag is not None and _tag(etag) != _tag(self.etag):
            raise SourceChanged(f"{self.request.source} was overwritten while it was read")
        self.etag = self.etag or etag
        if total is None:
            return
        if self.request.size is not None and total != self.request.size:
            raise IntegrityError(f"{self.request.source} has {total} bytes instead of {self.request.size}")
        if self.total is not None and total != self.total:
            raise SourceChanged(f"{self.request.source} was overwritten while it was read")
        if self.request.offset + (self.request.length or 0) > total:
            raise IntegrityError(f"{self.request.source} has {total} bytes: too few for the range that is wanted")
        self.total = total

    def learn_sum(self, head: Head, job: Range) -> None:
        """Remember the store's checksum; one of a range alone is checked when that range is complete."""
        job.stored = stored_sum(head) if self.engine.transfer.verify else None

    # The end of a range, and of the file.

    def finished(self, job: Range) -> None:
        self._left -= 1
        if self._left == 0 and job.generation == self.generation:
            self._publish()

    def _publish(self) -> None:
        sums = wanted(self.request, verify=self.engine.transfer.verify)
        for job in sorted(self._ranges, key=lambda each: each.start):
            sums.join(job.sums)
        verified = compare(self.request, sums)
        if self._compare_stored(sums):
            verified = "crc64nvme"
        landing = self.staged()
        size = landing.publish(self._expected())
        self.generation += 1
        seconds = time.monotonic() - self._started
        self.engine.copied(CopiedFile(self.request, "wire", size, seconds, verified, sums.crc64nvme))

    def _expected(self) -> int | None:
        if self.request.expected is not None:
            return self.request.expected
        return None if self.total is None else self.total - self.request.offset

    def _compare_stored(self, sums: Sums) -> bool:
        """Compare with what the store returned: a sum of the object, or of the range that it came with.

        Stores differ in which they send with a range (AWS: the sum of a part, where the range is one).
        """
        whole = sums.length == self.total
        found = False
        for job in self._ranges:
            if job.stored is None or sums.crc64nvme is None or job.sums.crc64nvme is None:
                continue
            if job.stored == job.sums.crc64nvme:
                found = found or len(self._ranges) == 1
            elif whole:
                differs(self.request.source, "CRC64NVME", sums.crc64nvme, job.stored, 8)
                found = True
        return found or self._all_ranges_checked()

    def _all_ranges_checked(self) -> bool:
        return all(job.stored is not None and job.stored == job.sums.crc64nvme for job in self._ranges)

    # Failures.

    def recover(self, _job: Job, error: TransferError) -> bool:
        """Begin anew, once, from the version that is there now or after damage; or as one stream."""
        if isinstance(error, _RangeIgnored):
            self._restart(one_stream=True)
            return True
        mended = isinstance(error, IntegrityError) and self._restarts == 0 and self.engine.transfer.retries > 0
        pinned = isinstance(error, SourceChanged) and self.request.etag is not None
        if not mended or pinned:
            return False
        self._restarts += 1
        self._restart(one_stream=self._one_stream)
        return True

    def _restart(self, *, one_stream: bool) -> None:
        self._withdraw()
        self._one_stream = one_stream
        self.etag, self.total = self.request.etag, self.request.size
        self.begin()

    def _withdraw(self) -> None:
        self.generation += 1
        arrived = sum(job.arrived for job in self._ranges)
        if arrived:
            self.engine.moved(self.request, -arrived)
        if self.landing is not None:
            self.landing.discard()
            self.landing = None

    def fail(self, error: TransferError) -> None:
        self._withdraw()
        self.engine.failed(self.request, error)


class _RangeIgnored(TransferError):
    """The store answers every request with the whole object."""


class Range:
    """A part of a download. Keeps what arrived when its connection fails, and goes on from there.

    Attributes:
        start: offset in the object.
        length: None: to the object's end, wherever that is.
        arrived: bytes that are written.
    """

    def __init__(self, download: Download, start: int, length: int | None) -> None:
        self._download = download
        self.start = start
        self.length = length
        self.arrived = 0
        self.generation = download.generation
        self.weight = length if length is not None else 1 << 62
        if download.request.expected is not None:
            self.weight = download.request.expected
        self.order = download.number
        self.budget = download.engine.budget()
        self.sums = wanted(download.request, verify=download.engine.transfer.verify)
        self.stored: int | None = None
        self._skip = 0
        self._stops_early = False
        self._hurries = _HURRIES

    @property
    def transfer(self) -> Download:
        return self._download

    @property
    def stale(self) -> bool:
        return self.generation != self._download.generation

    @property
    def left(self) -> int | None:
        return None if self.length is None else self.length - self.arrived

    async def run(self) -> None:
        """Fetch what is missing.

        Raises:
            TransferError: it failed; what arrived is kept.
        """
        download = self._download
        download.staged()
        if self.length == 0 and self.start > 0:
            download.finished(self)
            return
        exchange = await download.engine.client.open(self._order())
        try:
            with network(download.request.source):
                self._accept(exchange.head)
                await self._receive(exchange)
        except BaseException:
            exchange.abort()
            raise
        exchange.finish()
        download.finished(self)

    def _order(self) -> Order:
        download = self._download
        order = Order("GET", download.source.bucket, download.source.key)
        if download.engine.transfer.verify:
            order.headers["x-amz-checksum-mode"] = "ENABLED"
        first = self.start + self.arrived
        if first or (self.length is not None and self.length != download.total):
            last = "" if self.length is None else str(self.start + self.length - 1)
            order.unsigned["range"] = f"bytes={first}-{last}"
        if download.etag is not None:
            order.unsigned["if-match"] = _quoted(download.etag)
        order.unsigned["accept-encoding"] = "identity"
        return order

    def _accept(self, head: Head) -> None:
        if self.stale:
            raise Superseded("superseded")
        self._skip, self._stops_early = 0, False
        # rclone sends ranges with status 200: the header tells, not the number.
        if head.status == 206 or "content-range" in head.headers:
            self._accept_part(head)
        elif head.status == 200:
            self._accept_whole(head)
        else:
            raise BackendError(f"{self._download.request.source}: unexpected status {head.status}")
        self._download.learn_sum(head, self)

    def _accept_part(self, head: Head) -> None:
        download = self._download
        text = head.headers.get("content-range", "")
        match = _CONTENT_RANGE.fullmatch(text)
        first = self.start + self.arrived
        if match is None:
            raise BackendError(f"{download.request.source}: bad Content-Range {text[:60]!r}", transient=True)
        begin, end = int(match[1]), int(match[2]) + 1
        total = None if match[3] == "*" else int(match[3])
        download.learn(head, total)
        wanted_end = self.start + self.length if self.length is not None else total
        length = head.number("content-length")
        if begin != first or (wanted_end is not None and end > wanted_end) or (length or end - begin) != end - begin:
            raise BackendError(
                f"{download.request.source}: asked for bytes from {first} to {wanted_end}, got {text[:60]!r}",
                transient=True,
            )
        if self.length is None:
            self.length = end - self.start

    def _accept_whole(self, head: Head) -> None:
        download = self._download
        total = head.number("content-length") if "transfer-encoding" not in head.headers else None
        download.learn(head, total)
        first = self.start + self.arrived
        if download._left > 1:
            raise _RangeIgnored(f"{download.request.source}: the store ignores ranges")
        self._skip = first
        if self.length is None and total is not None:
            self._settle(total - self.start)
        if total is not None and self.start + (self.length or 0) < total:
            self._stops_early = True

    def _settle(self, length: int) -> None:
        """The length is known now: a large rest goes to other connections, which this one cannot be told."""
        download = self._download
        part = download.engine.options.part_size
        self.length = length
        self.weight = length
        if length > part * _SPLIT_FACTOR and download.etag is not None and not download._one_stream:
            self.length, self._stops_early = part, True
            download.split(self.start + part, length - part)

    async def _receive(self, exchange: Exchange) -> None:
        download, reader, connection = self._download, exchange.reader, exchange.connection
        engine, fd = download.engine, download.staged().fd
        watch = engine.watch(hurries=self._hurries)
        while not exchange.ended and not (self.left == 0 and self._stops_early):
            connection.expect(reader.left if self.left is None else min(reader.left, self.left))
            if engine.pipe is not None and exchange.is_plain and not self._skip and not self._stops_early:
                count = await self._splice(engine.pipe, exchange, fd)
            else:
                pieces = await exchange.more()
                if self.stale:
                    raise Superseded("superseded")
                count = 0
                for piece in pieces:
                    count += self._write(fd, piece)
            try:
                watch.moved(count)
            except SlowTransfer:
                self._hurries -= 1
                raise
            if count:
                self.budget.progressed(count)
                engine.moved(download.request, count)
                if engine.pace is not None and (pause := engine.pace.take(count)) > 0:
                    await engine.loop.sleep(pause)
                    watch.restart()
        watch.ended()
        self._end(exchange)

    async def _splice(self, pipe: Pipe, exchange: Exchange, fd: int) -> int:
        await exchange.ready()
        if self.stale:
            raise Superseded("superseded")
        connection, left = exchange.connection, exchange.reader.left
        offset = self.start - self._download.request.offset + self.arrived
        try:
            count = pipe.move(connection.fd, fd, offset, left)
        except BlockingIOError:
            connection.drained = True
            return 0
        except SpliceError as error:
            request = self._download.request
            raise destination_error(error.error, request.destination, request) from error
        if count == 0:
            exchange.reader.end()
        connection.drained = False
        exchange.reader.passed(count)
        self.arrived += count
        return count

    def _write(self, fd: int, piece: memoryview) -> int:
        if self._skip:
            dropped = min(self._skip, len(piece))
            self._skip -= dropped
            piece = piece[dropped:]
        left = self.left
        if left is not None and len(piece) > left:
            if not self._stops_early:
                raise IntegrityError(f"{self._download.request.source}: the body is longer than {self.length} bytes")
            piece = piece[:left]
        count = len(piece)
        if count == 0:
            return 0
        self.sums.update(piece)
        offset = self.start - self._download.request.offset + self.arrived
        try:
            written = os.pwrite(fd, piece, offset)
            while written < count:
                written += os.pwrite(fd, piece[written:], offset + written)
        except OSError as error:
            request = self._download.request
            raise destination_error(error, request.destination, request) from error
        self.arrived += count
        return count

    def _end(self, exchange: Exchange) -> None:
        if self.left is None:
            self.length = self.arrived
            if self._download.total is None:
                self._download.total = self.start + self.arrived
        if self.left:
            source = self._download.request.source
            if exchange.head.keep_alive:
                raise IntegrityError(f"{source}: the body ended {self.left} bytes early")
            raise ConnectionFailed(f"{source}: the body ended {self.left} bytes early")
        if exchange.reader.excess and not self._stops_early:
            # The bytes that were promised are complete; what follows them is not the file's.
            exchange.head.keep_alive = False


def _tag(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


def _quoted(etag: str) -> str:
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'
