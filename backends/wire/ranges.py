"""One range of a download: asked for, checked against what was asked, written at its offset as it comes."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from ..errors import BackendError, ConnectionFailed, IntegrityError, TransferError
from ..landing import destination_error
from .exchange import Exchange, Order, network
from .response import Head
from .splicing import Pipe, SpliceError
from .verify import wanted
from .watch import SlowTransfer

if TYPE_CHECKING:
    from .download import Download

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
#: How often a part goes to another connection only because others are much faster.
_HURRIES = 2


class Superseded(TransferError):
    """The transfer failed or began anew while this job was running: nobody needs its result."""


class RangeIgnored(TransferError):
    """The store answers every request with the whole object."""


class Range:
    """A part of a download. Keeps what arrived when its connection fails, and goes on from there.

    Attributes:
        start: offset in the object.
        length: None: to the object's end, wherever that is.
        arrived: bytes that are written.
        is_merged: another range has taken it over.
    """

    def __init__(self, download: Download, start: int, length: int | None) -> None:
        self._download = download
        self.start = start
        self.length = length
        self.arrived = 0
        self.is_merged = False
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
        return self.is_merged or self.generation != self._download.generation

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
        download.enlarge(self)
        order, before = self._order(), self.arrived
        exchange = await download.engine.client.open(order)
        began = time.monotonic()
        try:
            with network(download.request.source):
                self._accept(exchange.head)
                await self._receive(exchange)
        except BaseException:
            exchange.abort()
            raise
        exchange.finish()
        download.engine.range_size.answered(self.arrived - before, order.waited, time.monotonic() - began)
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
        if download.is_split:
            raise RangeIgnored(f"{download.request.source}: the store ignores ranges")
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
        if download.etag is not None and download.splits(length):
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


def _quoted(etag: str) -> str:
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'
