"""Copies by s3transfer's manager on the AWS Common Runtime: native threads, native file writes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from .checksums import crc64nvme_of_descriptor, to_base64
from .closeables import CloseableRegistry
from .crt_client import CrtClient
from .crt_transfer import CrtTransfer, Life
from .errors import IntegrityError, SourceChanged, UnsupportedCopy
from .landing import Landing, StagingArea
from .request import CopyRequest, Location, locate
from .s3_access import S3Access
from .s3_errors import checksum_of, translating
from .sdk_client import Seen, bare
from .sdk_files import Advance, Copied, UploadedFile, compare, s3_object


class CrtEngine:
    """Copies single files of one batch, up and down."""

    def __init__(self, client: CrtClient, access: S3Access, registry: CloseableRegistry, staging: StagingArea) -> None:
        self._client = client
        self._access = access
        self._registry = registry
        self._staging = staging
        self._verify = access.transfer.verify
        self._life = Life(client.port, access.transfer.stall_timeout)

    def close(self) -> None:
        """Nothing works on: every copy waits for its own end."""

    def copy(self, request: CopyRequest, advance: Advance) -> Copied:
        self._access.credentials()  # raises what the CRT would swallow
        source, destination = locate(request.source), locate(request.destination)
        if destination.is_local:
            return self._download(request, source, destination.key, advance)
        if request.is_range:
            raise UnsupportedCopy(f"sdk copies ranges only downwards: {request.source}", request=request)
        return self._upload(request, source.key, destination, advance)

    def _download(self, request: CopyRequest, source: Location, path: str, advance: Advance) -> Copied:
        landing = self._staging.land(path, request)
        try:
            seen = self._get(request, source, landing, advance)
            size = os.fstat(landing.fd).st_size
            _check_size(request, seen, size)
            crc = crc64nvme_of_descriptor(landing.fd) if self._verify else 0
            verified = compare(request, landing.fd, crc, seen) if self._verify else "size"
            if verified == "size" and size > self._client.part_size:
                self._require_version(request, source, seen)
            landing.publish(size)
        except BaseException:
            landing.discard()
            raise
        return Copied("sdk", size, verified, crc if self._verify else None)

    def _get(self, request: CopyRequest, source: Location, landing: Landing, advance: Advance) -> Seen:
        extra = {}
        if request.etag:
            extra["IfMatch"] = f'"{bare(request.etag)}"'
        if request.is_range:
            if request.expected == 0:
                return self._head(source, request)
            end = request.offset + request.length - 1 if request.length is not None else ""
            extra["Range"] = f"bytes={request.offset}-{end}"
        # A checksum of ours spares the CRT's search for the store's, which is a request more. It is
        # also how the CRT finds out that an object is empty: without it, it asks for a range and fails.
        known = request.has_checksum and bool(request.expected)
        transfer = self._transfer(request, advance, validate=self._verify and not known)
        headers = transfer.run("download", s3_object(source), landing.path, extra)
        return _seen(headers, request)

    def _transfer(self, request: CopyRequest, advance: Advance, *, validate: bool) -> CrtTransfer:
        return CrtTransfer(self._client, self._life, self._registry, request, advance, validate=validate)

    def _head(self, location: Location, request: CopyRequest) -> Seen:
        with translating(request.source, request):
            answer: Any = self._access.client().head_object(**s3_object(location))  # type: ignore[attr-defined]
        return Seen(answer.get("ContentLength"), answer.get("ETag"))

    def _require_version(self, request: CopyRequest, source: Location, seen: Seen) -> None:
        """Not every store knows the If-Match that the CRT sends with each part."""
        now = self._head(source, request)
        if seen.etag and now.etag and bare(seen.etag) != bare(now.etag):
            raise SourceChanged(f"{request.source} was overwritten while it was read", request=request)

    def _upload(self, request: CopyRequest, path: str, destination: Location, advance: Advance) -> Copied:
        file = UploadedFile(request, path, verify=self._verify)
        # The CRT leaves the payload unsigned: its checksum is what the store can check it by.
        extra = {**self._access.options.upload_arguments}
        if file.crc64nvme is not None:
            extra["ChecksumCRC64NVME"] = to_base64(file.crc64nvme)
        transfer = self._transfer(request, advance, validate=False)
        try:
            headers = transfer.run("upload", s3_object(destination), path, extra)
        except UnsupportedCopy:
            self._abort_upload(destination)
            raise
        file.require_unchanged()
        return Copied("sdk", file.size, file.verified, file.crc64nvme, headers.get("etag"))

    def _abort_upload(self, destination: Location) -> None:
        """The CRT did not understand the answer that begins an upload: then it has begun, and its id is to be found."""
        client: Any = self._access.client()
        with suppress(Exception):
            found = client.list_multipart_uploads(Bucket=destination.bucket, Prefix=destination.key).get("Uploads", [])
            ours = [each for each in found if each["Key"] == destination.key]
            if len(ours) == 1:
                client.abort_multipart_upload(**s3_object(destination), UploadId=ours[0]["UploadId"])


def _seen(headers: dict[str, str], request: CopyRequest) -> Seen:
    content_range = headers.get("content-range")
    total = (
        content_range.rpartition("/")[2] if content_range and request.is_range else headers.get("content-length", "")
    )
    size = int(total) if total.isdecimal() else None
    if request.is_range:
        start = (content_range or "").removeprefix("bytes ").partition("-")[0]
        if start != str(request.offset):
            raise IntegrityError(f"{request.source} answered with {content_range}", request=request)
        return Seen(size, headers.get("etag"))
    if headers.get("x-amz-checksum-type") not in {None, "FULL_OBJECT"}:
        return Seen(size, headers.get("etag"))
    return Seen(
        size,
        headers.get("etag"),
        checksum_of(headers.get("x-amz-checksum-crc64nvme"), 8),
        checksum_of(headers.get("x-amz-checksum-crc32c"), 4),
    )


def _check_size(request: CopyRequest, seen: Seen, size: int) -> None:
    """What landed must be what was promised, by the request and by the store."""
    if request.size is not None and seen.size is not None and request.size != seen.size:
        raise IntegrityError(f"{request.source} has {seen.size} bytes instead of {request.size}", request=request)
    of_store = seen.size - request.offset if seen.size is not None and request.length is None else None
    for expected in (request.expected, of_store):
        if expected is not None and size != expected:
            raise IntegrityError(f"{request.source} gave {size} bytes instead of {expected}", request=request)
