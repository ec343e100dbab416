"""From object to object within one store: no byte comes here.

CopyObject takes up to 5 GB; larger objects, and ranges, go by UploadPartCopy (AWS, "Copying
objects"). The destination's size is asked for afterwards, and its checksum where there is one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..errors import IntegrityError, SourceChanged, TransferError, UnsupportedCopy
from ..report import CopiedFile
from ..request import CopyRequest, locate
from .answers import copy_source, elements
from .exchange import Order, network
from .parts import ToObject, confirmed
from .response import Head
from .verify import differs, stored_sum

if TYPE_CHECKING:
    from .engine import Engine
    from .schedule import Job

#: One CopyObject of a gigabyte takes seconds: larger objects are quicker, and retried sooner, in parts.
_SINGLE_MOST = 1 << 30
_PART = 256 << 20
#: What one CopyObject takes at most.
_WHOLE_MOST = 5 << 30


class ServerSideCopy(ToObject):
    """One object, of one version."""

    def __init__(self, engine: Engine, request: CopyRequest) -> None:
        super().__init__(engine, request)
        self._source = locate(request.source)
        self._etag = request.etag
        self._total: int | None = request.size
        self._part = _PART
        self._restarted = False
        self._copies_ranges = True

    def begin(self) -> None:
        self.add(self._start)

    async def _start(self) -> None:
        await self._look_at_source()
        if not self._needs_parts():
            self.add(self._copy_whole)
            return
        length = self._expected()
        while -(-length // self._part) > 10_000:
            self._part *= 2
        await self.start_parts(max(1, -(-length // self._part)), self._copy_part, checksum=False)

    def _needs_parts(self) -> bool:
        most = _SINGLE_MOST if self._copies_ranges else _WHOLE_MOST
        return self._total is not None and (self._expected() > most or self._is_range())

    def _is_range(self) -> bool:
        return self.request.offset > 0 or self._expected() != self._total

    def _expected(self) -> int:
        if self.request.length is not None:
            return self.request.length
        return (self._total or 0) - self.request.offset

    async def _look_at_source(self) -> None:
        """Fix the version to copy, and compare it with the request while the destination is still untouched.

        Raises:
            IntegrityError: its size or checksum is not the request's.
        """
        order = Order("HEAD", self._source.bucket, self._source.key)
        order.headers["x-amz-checksum-mode"] = "ENABLED"
        if self._etag:
            order.unsigned["if-match"] = self._etag
        head, _ = await self.engine.client.ask(order)
        size = head.number("content-length")
        if self.request.size is not None and size != self.request.size:
            raise IntegrityError(f"{self.request.source} has {size} bytes instead of {self.request.size}")
        if size is not None and self.request.offset + (self.request.length or 0) > size:
            raise IntegrityError(f"{self.request.source} has {size} bytes: too few for the range that is wanted")
        with network(self.request.source):
            stored = stored_sum(head)
        if stored is not None and self.request.crc64nvme is not None and not self._is_range():
            differs(self.request.source, "CRC64NVME", stored, self.request.crc64nvme, 8)
        self._total = size
        self._etag = self._etag or head.headers.get("etag")

    async def _require_unchanged(self) -> None:
        """Look at the source's version again: some stores (rclone, moto) ignore the condition on it.

        Raises:
            SourceChanged: it is another than was to be copied.
        """
        order = Order("HEAD", self._source.bucket, self._source.key)
        head, _ = await self.engine.client.ask(order)
        etag = head.headers.get("etag")
        if self._etag and etag and etag.strip('"') != self._etag.strip('"'):
            raise SourceChanged(f"{self.request.source} was overwritten while it was copied")

    def _copy_headers(self) -> dict[str, str]:
        headers = {"x-amz-copy-source": copy_source(self._source.bucket, self._source.key)}
        if self._etag:
            headers["x-amz-copy-source-if-match"] = self._etag
        return headers

    async def _copy_whole(self) -> None:
        order = self.order("PUT")
        order.headers.update(self._copy_headers())
        order.headers.update(self.encryption())
        if self.request.crc64nvme is not None and self.engine.transfer.verify:
            order.headers["x-amz-checksum-algorithm"] = "CRC64NVME"
        order.patience = self.engine.patience
        _, body = await self.engine.client.ask(order)
        if self.request.etag:
            try:
                await self._require_unchanged()
            except SourceChanged:
                await self._delete()
                raise
        await self._check(elements(body))

    async def _copy_part(self, index: int) -> None:
        if not self._copies_ranges:
            return
        first = self.request.offset + index * self._part
        end = min(first + self._part, self.request.offset + self._expected())
        order = self.part_order(index)
        order.headers.update(self._copy_headers())
        if end > first:
            order.headers["x-amz-copy-source-range"] = f"bytes={first}-{end - 1}"
        order.patience = self.engine.patience
        try:
            _, body = await self.engine.client.ask(order)
        except TransferError:
            if not self._copies_ranges:
                return  # aborted meanwhile
            raise
        etag = elements(body).get("ETag")
        if not etag:
            await self._give_up_ranges()
            return
        if self._left == 1:
            # The last chance to leave the destination as it was.
            await self._require_unchanged()
        self.part_done(index, etag, None)

    async def _give_up_ranges(self) -> None:
        """Copy the object whole after all: the store (rclone) took a part's copy for an empty upload.

        Raises:
            UnsupportedCopy: it is a range, or too large for that.
        """
        if not self._copies_ranges:
            return
        self._copies_ranges = False
        if self._needs_parts():
            raise UnsupportedCopy(f"{self.request.source}: the store cannot copy ranges by itself")
        await self.abort()
        self.engine.holds_parts(self)
        self.add(self._copy_whole)

    async def completed(self, _head: Head, answer: dict[str, str]) -> None:
        await self._check(answer)

    async def _check(self, answer: dict[str, str]) -> None:
        """Compare the new object with what was promised."""
        order = self.order("HEAD")
        order.headers["x-amz-checksum-mode"] = "ENABLED"
        head, _ = await self.engine.client.ask(order)
        size = head.number("content-length")
        if size != self._expected():
            raise IntegrityError(f"{self.request.destination} has {size} bytes instead of {self._expected()}")
        stored = head.headers.get("x-amz-checksum-crc64nvme") or answer.get("ChecksumCRC64NVME")
        verified = "crc64nvme" if confirmed(self.request.destination, self.request.crc64nvme, stored) else "size"
        self.engine.moved(self.request, self._expected())
        self.ended = True
        self.engine.copied(
            CopiedFile(
                self.request,
                "server-side",
                size or 0,
                time.monotonic() - self._started,
                verified,
                self.request.crc64nvme if verified != "size" else None,
                answer.get("ETag") or head.headers.get("etag"),
            )
        )

    def recover(self, _job: Job, error: TransferError) -> bool:
        """A version that we chose ourselves, and not the caller, is replaced by the newest once."""
        chosen = self._etag is not None and self.request.etag is None
        if not isinstance(error, SourceChanged) or not chosen or self._restarted or self.is_open:
            return False
        self._restarted = True
        self._etag = None
        self.add(self._start)
        return True
