"""What s5cmd does not tell: an object's size, version and checksum; and ending uploads that it left.

Asked by the requests of the wire engine, in the loop of the copy: they end at once when it is interrupted.
"""

from __future__ import annotations

import email.utils
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ..backends.batch import backoff
from ..backends.errors import TransferError
from ..backends.request import Location
from ..backends.s3_access import S3Access

if TYPE_CHECKING:
    from ..backends.wire.client import Client
    from ..backends.wire.exchange import Order
    from ..backends.wire.loop import Loop
    from ..backends.wire.pool import Pool
    from ..backends.wire.response import Head

_UPLOAD = re.compile(rb"<Upload>(.*?)</Upload>", re.DOTALL)
#: A store's clock against its own: begin times are cut to the second.
_TOLERANCE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the store says of an object now."""

    size: int | None
    etag: str | None
    crc64nvme: int | None


class Store:
    """Questions to the store, from coroutines of one loop."""

    def __init__(self, loop: Loop, access: S3Access) -> None:
        self._loop = loop
        self._access = access
        self._client: Client | None = None
        self._pool: Pool | None = None

    def _connected(self) -> Client:
        if self._client is None:
            from ..backends.wire.client import Client
            from ..backends.wire.endpoint import Endpoints
            from ..backends.wire.options import WireOptions
            from ..backends.wire.pool import Pool

            options = WireOptions(buffer_size=64 << 10)
            self._pool = Pool(self._access, options)
            self._client = Client(self._loop, self._access, Endpoints(self._access), self._pool, options)
        return self._client

    async def head(self, place: Location) -> Facts:
        """Size, ETag and checksum of an object.

        Raises:
            SourceNotFound: there is none.
            TransferError: of whatever kind the answer or the network calls for, after retries.
        """
        from ..backends.wire.exchange import Order
        from ..backends.wire.verify import stored_sum

        order = Order("HEAD", place.bucket, place.key, headers={"x-amz-checksum-mode": "ENABLED"})
        head, _ = await self._ask(order)
        return Facts(head.number("content-length"), head.headers.get("etag"), stored_sum(head))

    async def _ask(self, order: Order) -> tuple[Head, bytes]:
        for attempt in range(self._access.transfer.retries):
            try:
                return await self._connected().ask(order)
            except TransferError as error:
                if not error.transient:
                    raise
            await self._loop.sleep(backoff(attempt))
        return await self._connected().ask(order)

    async def abort_uploads(self, place: Location, since: datetime) -> int:
        """End the multipart uploads of one key that began at ``since`` or later. Returns how many.

        Begin times are the store's: ``since`` is moved to its clock by the date of its answer.

        Raises:
            TransferError: the store refuses.
        """
        from ..backends.wire.exchange import Order

        asked = datetime.now(UTC)
        head, body = await self._connected().ask(
            Order("GET", place.bucket, "", query={"uploads": "", "prefix": place.key})
        )
        since += _clock_of(head, asked) - asked - _TOLERANCE
        begun = [upload for upload in _uploads(body) if upload.key == place.key and upload.began >= since]
        for upload in begun:
            order = Order("DELETE", place.bucket, place.key, query={"uploadId": upload.upload_id})
            await self._connected().ask(order)
        return len(begun)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.leave(self._loop, keep=False)
            self._pool.close()
        self._client = self._pool = None


@dataclass(frozen=True, slots=True)
class _Upload:
    key: str
    upload_id: str
    began: datetime


def _uploads(body: bytes) -> list[_Upload]:
    """Unfinished uploads of a ListMultipartUploads answer (Amazon S3 API reference)."""
    from ..backends.wire.answers import elements

    found = []
    for block in _UPLOAD.findall(body):
        fields = elements(block)
        try:
            began = datetime.fromisoformat(fields["Initiated"])
        except (KeyError, ValueError):
            continue
        zoned = began if began.tzinfo else began.replace(tzinfo=UTC)
        found.append(_Upload(fields.get("Key", ""), fields.get("UploadId", ""), zoned))
    return found


def _clock_of(head: Head, otherwise: datetime) -> datetime:
    parsed = email.utils.parsedate_tz(head.headers.get("date", ""))
    return datetime.fromtimestamp(email.utils.mktime_tz(parsed), UTC) if parsed else otherwise
