"""S3 objects as streams: s3fs's client on aiobotocore, one GET down, one PUT or multipart upload up.

s3fs's own file objects are left aside: they read block by block without If-Match (2-4 times the
CPU of one stream), retry 5 times over botocore's 5, and complete an upload when they are closed
by an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .errors import ConnectionFailed, IntegrityError, SourceChanged
from .request import CopyRequest, Location, locate
from .s3_errors import checksum_of, translating

_LOG = logging.getLogger(__name__)
#: Bytes asked of the connection at once; it gives what has arrived.
_READ = 1 << 20
#: S3's smallest part but the last, its largest, and how many an upload may have (AWS, "Multipart upload limits").
SMALLEST_PART = 5 << 20
_LARGEST_PART = 5 << 30
_PARTS = 10_000
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")  # RFC 9110, 14.4


@contextmanager
def _asking(uri: str, request: CopyRequest) -> Iterator[None]:
    """As `translating`, with aiohttp's exceptions too."""
    import aiohttp

    with translating(uri, request):
        try:
            yield
        except aiohttp.ClientError as error:
            raise ConnectionFailed(f"{uri}: {error or type(error).__name__}", request=request) from error


def _object(location: Location) -> dict[str, str]:
    return {"Bucket": location.bucket, "Key": location.key}


def _bare(etag: str | None) -> str | None:
    return etag.removeprefix("W/").strip('"') if etag else None


class S3Source:
    """The bytes of one GET: always of one version, on any store that keeps its word."""

    size: int | None = None
    crc64nvme: int | None = None
    crc32c: int | None = None

    def __init__(self, client: Any, request: CopyRequest) -> None:
        self._client = client
        self._request = request
        self._object = _object(locate(request.source))
        self._body: Any = None
        self._etag: str | None = None

    async def open(self) -> S3Source:
        """Send the request and check what the head of the answer says.

        Raises:
            SourceNotFound, AccessDenied, SourceChanged, IntegrityError and all that a store may answer.
        """
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def _open(self) -> None:
        request = self._request
        conditions = {"IfMatch": f'"{_bare(request.etag)}"'} if request.etag else {}
        with _asking(request.source, request):
            if request.is_range and request.expected == 0:
                answer = await self._client.head_object(**self._object, **conditions)
                self._check_total(answer.get("ContentLength"))
                self.size = 0
            else:
                answer = await self._client.get_object(**self._object, **conditions, **self._range())
                self._body = answer["Body"]
                self._read_head(answer)
        self._etag = answer.get("ETag")
        if request.etag and self._etag and _bare(request.etag) != _bare(self._etag):
            raise SourceChanged(f"{request.source} has ETag {self._etag} instead of {request.etag}", request=request)

    def _range(self) -> dict[str, str]:
        request = self._request
        if not request.is_range:
            return {}
        end = request.offset + request.length - 1 if request.length is not None else ""
        return {"Range": f"bytes={request.offset}-{end}"}

    def _read_head(self, answer: dict[str, Any]) -> None:
        if self._request.is_range:
            self._read_content_range(str(answer.get("ContentRange")))
            return
        self.size = answer.get("ContentLength")
        self._check_total(self.size)
        if answer.get("ChecksumType") in {None, "FULL_OBJECT"}:
            self.crc64nvme = checksum_of(answer.get("ChecksumCRC64NVME"), 8)
            self.crc32c = checksum_of(answer.get("ChecksumCRC32C"), 4)

    def _read_content_range(self, text: str) -> None:
        request = self._request
        match = _CONTENT_RANGE.fullmatch(text)
        if match is None or int(match[1]) != request.offset:
            message = f"{request.source} answered with the range {text} instead of one from {request.offset}"
            raise IntegrityError(message, request=request)
        self.size = int(match[2]) - int(match[1]) + 1
        self._check_total(int(match[3]) if match[3] != "*" else None)

    def _check_total(self, total: int | None) -> None:
        request = self._request
        if total is not None and request.size is not None and total != request.size:
            message = f"{request.source} has {total} bytes instead of {request.size}"
            raise IntegrityError(message, request=request)

    async def chunks(self) -> AsyncIterator[bytes]:
        while self._body is not None:
            with _asking(self._request.source, self._request):
                chunk = await self._body.read(_READ)
            if not chunk:
                return
            yield chunk

    async def check_unchanged(self, *, proven: bool) -> None:
        """Ask for the ETag again, where a store that lets files change in mid-read could have mixed versions."""
        if proven or self._etag is None or (self.size or 0) <= _READ:
            return
        with _asking(self._request.source, self._request):
            now = await self._client.head_object(**self._object)
        if now.get("ETag") != self._etag:
            message = f"{self._request.source} was overwritten while it was read"
            raise SourceChanged(message, request=self._request)

    async def close(self) -> None:
        if self._body is not None:
            self._body.close()


class _Body(io.BytesIO):
    """An upload's body that tells when the connection takes some of it."""

    def __init__(self, data: bytes, beat: Callable[[], None]) -> None:
        super().__init__(data)
        self._beat = beat

    def read(self, size: int | None = -1) -> bytes:
        self._beat()
        return super().read(size)


class S3Sink:
    """One PUT, or a multipart upload as soon as there is more than one part; one part is held in memory.

    Args:
        arguments: of the request that makes the object: encryption.
        part_size: bytes per part; larger ones are taken where S3's limit of 10,000 parts asks for it.
        grace: seconds that aborting an upload may take.
        sever: drops the connections, and with them the part that is on its way.
    """

    def __init__(
        self,
        client: Any,
        request: CopyRequest,
        *,
        arguments: dict[str, str],
        part_size: int,
        beat: Callable[[], None],
        grace: Callable[[], float],
        sever: Callable[[], object],
    ) -> None:
        self._client = client
        self._request = request
        self._object = _object(locate(request.destination))
        self._arguments = arguments
        self._part_size = max(SMALLEST_PART, part_size, -(-(request.expected or 0) // _PARTS))
        self._beat = beat
        self._grace = grace
        self._sever = sever
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._creation: asyncio.Task[Any] | None = None
        self._parts: list[dict[str, Any]] = []

    async def write(self, chunk: bytes) -> None:
        self._held.append(chunk)
        self._held_bytes += len(chunk)
        while self._held_bytes >= self._next_part:
            await self._send_part(self._next_part)

    @property
    def _next_part(self) -> int:
        # Parts of an upload of unknown size double every 900, which reaches S3's largest object.
        unknown = self._request.expected is None
        return min(_LARGEST_PART, self._part_size << (len(self._parts) // 900 if unknown else 0))

    async def _send_part(self, size: int) -> None:
        data = b"".join(self._held)
        data, rest = (data, b"") if len(data) == size else (data[:size], data[size:])
        self._held, self._held_bytes = [rest] if rest else [], len(rest)
        number = len(self._parts) + 1
        upload = await self._upload()
        with _asking(self._request.destination, self._request):
            answer = await self._client.upload_part(**upload, PartNumber=number, Body=_Body(data, self._beat))
        self._beat()
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})

    async def _upload(self) -> dict[str, str]:
        """Bucket, key and id of the multipart upload, which is begun with its first part."""
        if self._creation is None:
            creating = self._client.create_multipart_upload(**self._object, **self._arguments)
            self._creation = asyncio.ensure_future(creating)
        with _asking(self._request.destination, self._request):
            # Shielded: an upload that is begun after a cancel could not be aborted without its id.
            answer = await asyncio.shield(self._creation)
        return {**self._object, "UploadId": answer["UploadId"]}

    async def publish(self, size: int) -> str | None:  # noqa: ARG002
        if self._creation is None:
            answer = await self._put()
        else:
            if self._held:
                await self._send_part(self._held_bytes)
            answer = await self._complete()
        self._creation = None
        etag: str | None = answer.get("ETag")
        return etag

    async def _put(self) -> Any:
        body = _Body(b"".join(self._held), self._beat)
        with _asking(self._request.destination, self._request):
            return await self._client.put_object(**self._object, **self._arguments, Body=body)

    async def _complete(self) -> Any:
        upload = await self._upload()
        with _asking(self._request.destination, self._request):
            return await self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": self._parts})

    async def discard(self) -> None:
        """Abort the upload, if one was begun."""
        self._held.clear()
        creation, self._creation = self._creation, None
        if creation is None:
            return
        if creation.done():
            self._sever()
        try:
            async with asyncio.timeout(self._grace()):
                upload_id = (await creation)["UploadId"]
                await self._client.abort_multipart_upload(**self._object, UploadId=upload_id)
        except BaseException as error:
            creation.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await creation
            _LOG.warning("a multipart upload of %s may be left: %r", self._request.destination, error)
            if not isinstance(error, Exception):
                raise
