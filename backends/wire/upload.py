"""From a local file, or a range of one, to an object: one PUT, or parts, by size.

The payload is unsigned in SigV4's sense: no SHA-256 over the body. CRC64NVME protects it; it is
computed from the page cache just before the bytes are sent from there, by ``sendfile`` where the
connection is plain.

Whether the store has what was sent:

- The sum goes with the bytes. A store that checks sums refuses other bytes (BadDigest); the part is
  sent once more, and after that the copy has failed.
- A store that tells the sum it computed must tell ours. If it does not, and not the second time
  either, the object is deleted: no wrong one stays.
- A store that ignores sums (rclone, moto) tells nothing. It took as many bytes as were announced,
  and that is all that is known without reading them back, which would cost as much as the upload.
  TLS guards the way to such a store; ``wire.sign-payload`` has those that check signatures check
  the bytes too; and the recorded sum finds damage at the latest when the object is read.

So ``verified`` in the report says ``crc64nvme`` where the store told the same sum, or where the
request carried one and the file had it while it was sent.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ..checksums import crc32c_of_descriptor, crc64nvme_joined, crc64nvme_of_descriptor, to_base64
from ..disk import open_regular, reading
from ..errors import IntegrityError, SourceChanged, TransferError
from ..report import CopiedFile
from ..request import CopyRequest, locate
from .exchange import FileBody, Order
from .parts import ToObject, confirmed
from .response import Head
from .verify import differs

if TYPE_CHECKING:
    from .engine import Engine
    from .schedule import Job

_SINGLE_FACTOR = 2


class DamagedOnTheWay(IntegrityError):
    """The file was right; what the store has of it is not."""


class Upload(ToObject):
    """One file. Its descriptor is open from the first job to the end."""

    def __init__(self, engine: Engine, request: CopyRequest) -> None:
        super().__init__(engine, request)
        self._path = locate(request.source).key
        self._fd = -1
        self._length = 0
        self._part = 0
        self._state: tuple[int, int] = (0, 0)
        self._sums: list[int | None] = []
        self._verifies = engine.transfer.verify
        self._was_damaged = False

    def begin(self) -> None:
        self.add(self._start)

    async def _start(self) -> None:
        """Choose one PUT or parts. Called again after a failure."""
        if self._fd < 0:
            self._open()
        if self._length <= self.engine.options.part_size * _SINGLE_FACTOR:
            await self._put()
        else:
            await self.start_parts(len(self._sums), self._put_part, checksum=self._verifies)

    def _open(self) -> None:
        """Open the file.

        Raises:
            SourceNotFound, AccessDenied: it cannot be read.
            IntegrityError: its size or checksum is not the request's.
        """
        self._fd = open_regular(self._path, self.request)
        self.engine.opened(self)
        self._state = self._look()
        self._length = self._measure(self._state[0])
        self.weight = self._length
        self._compare_crc32c()
        self._part = self.engine.options.part_size_for(self._length)
        is_single = self._length <= self.engine.options.part_size * _SINGLE_FACTOR
        self._sums = [None] if is_single else [None] * -(-self._length // self._part)

    def _look(self) -> tuple[int, int]:
        state = os.fstat(self._fd)
        return state.st_size, state.st_mtime_ns

    def _measure(self, size: int) -> int:
        request = self.request
        if request.size is not None and size != request.size:
            raise IntegrityError(f"{request.source} has {size} bytes instead of {request.size}")
        if request.offset + (request.length or 0) > size:
            raise IntegrityError(f"{request.source} has {size} bytes: too few for the range that is wanted")
        return request.length if request.length is not None else size - request.offset

    def _compare_crc32c(self) -> None:
        if self._verifies and self.request.crc32c is not None:
            with reading(self.request.source, self.request):
                found = crc32c_of_descriptor(self._fd, self.request.offset, self._length)
            differs(self.request.source, "CRC32C", found, self.request.crc32c, 4)

    def _sum(self, offset: int, length: int) -> int | None:
        if not self._verifies:
            return None
        with reading(self.request.source, self.request):
            return crc64nvme_of_descriptor(self._fd, self.request.offset + offset, length)

    def _require_unchanged(self) -> None:
        if self._look() != self._state:
            raise SourceChanged(f"{self.request.source} was changed while it was read")

    def _body(self, offset: int, length: int) -> tuple[FileBody, list[int]]:
        """A body, and where it counts what has left: a repeated part takes its progress back."""
        counted = [0]

        def sent(count: int) -> None:
            counted[0] += count
            self.engine.moved(self.request, count)

        pace = self.engine.pace.take if self.engine.pace else None
        return FileBody(self._fd, self.request.offset + offset, length, sent, pace), counted

    # One request.

    async def _put(self) -> None:
        total = self._sums[0] if self._sums[0] is not None else self._sum(0, self._length)
        self._sums[0] = total
        self._compare(total)
        order = self.order("PUT")
        order.headers.update(self.encryption())
        if total is not None:
            order.headers["x-amz-checksum-crc64nvme"] = to_base64(total)
        head = await self._send(order, 0, self._length)
        self._require_unchanged()
        stored = head.headers.get("x-amz-checksum-crc64nvme")
        try:
            self._confirm(total, stored, self._length)
        except DamagedOnTheWay:
            if self._was_damaged:
                await self._delete()
            raise
        self._published(total, stored, head.headers.get("etag"))

    async def _send(self, order: Order, offset: int, length: int) -> Head:
        """Send a range of the file as the body of ``order``.

        Raises:
            DamagedOnTheWay: the store refused the bytes that came.
        """
        order.body, counted = self._body(offset, length)
        try:
            head, _ = await self.engine.client.ask(order)
        except BaseException as error:
            self.engine.moved(self.request, -counted[0])
            if isinstance(error, IntegrityError) and not isinstance(error, SourceChanged):
                self._require_unchanged()
                raise DamagedOnTheWay(str(error)) from error
            raise
        return head

    def _confirm(self, total: int | None, stored: str | None, length: int) -> None:
        try:
            confirmed(self.request.destination, total, stored)
        except IntegrityError as error:
            self.engine.moved(self.request, -length)
            raise DamagedOnTheWay(str(error)) from error

    def _compare(self, total: int | None) -> None:
        if total is not None and self.request.crc64nvme is not None:
            differs(self.request.source, "CRC64NVME", total, self.request.crc64nvme, 8)

    # Parts.

    async def _put_part(self, index: int) -> None:
        offset = index * self._part
        length = min(self._part, self._length - offset)
        if self._sums[index] is None:
            self._sums[index] = self._sum(offset, length)
        found = self._sums[index]
        checksum = None if found is None else to_base64(found)
        order = self.part_order(index)
        if checksum:
            order.headers["x-amz-checksum-crc64nvme"] = checksum
        head = await self._send(order, offset, length)
        self._confirm(found, head.headers.get("x-amz-checksum-crc64nvme"), length)
        if self._left == 1:
            # The last chance to leave the destination as it was.
            self._require_unchanged()
            self._sums_joined()
        self.part_done(index, head.headers.get("etag", ""), checksum)

    def _sums_joined(self) -> int | None:
        total: int | None = 0
        for index, found in enumerate(self._sums):
            if found is None or total is None:
                return None
            total = crc64nvme_joined(total, found, min(self._part, self._length - index * self._part))
        self._compare(total)
        return total

    def whole_checksum(self) -> str | None:
        total = self._sums_joined()
        return None if total is None else to_base64(total)

    async def completed(self, _head: Head, answer: dict[str, str]) -> None:
        stored = answer.get("ChecksumCRC64NVME") or _head.headers.get("x-amz-checksum-crc64nvme")
        total = self._sums_joined()
        try:
            self._confirm(total, stored, self._length)
        except DamagedOnTheWay:
            # Each part was confirmed: this is not the way, and no reason to send all of them again.
            self._was_damaged = True
            await self._delete()
            raise
        self._published(total, stored, answer.get("ETag"))

    def _published(self, total: int | None, stored: str | None, etag: str | None) -> None:
        is_confirmed = confirmed(self.request.destination, total, stored)
        is_promised = total is not None and self.request.crc64nvme is not None
        verified = "crc64nvme" if is_confirmed or is_promised else "size"
        if verified == "size" and self._verifies and self.request.crc32c is not None:
            verified = "crc32c"
        self.ended = True
        self.close()
        seconds = time.monotonic() - self._started
        self.engine.copied(CopiedFile(self.request, "wire", self._length, seconds, verified, total, etag))

    def recover(self, job: Job, error: TransferError) -> bool:
        """Send once more what was damaged on its way."""
        if not isinstance(error, DamagedOnTheWay) or self._was_damaged or self.engine.transfer.retries == 0:
            return False
        self._was_damaged = True
        self.engine.schedule.add(job)
        return True

    def close(self) -> None:
        """Close the file; a job that is still sending it must have ended before."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.engine.closed(self)
