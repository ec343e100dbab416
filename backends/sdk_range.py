"""Byte ranges of an object by single requests: s3transfer's manager knows whole objects only."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from .batch import backoff
from .checksums import crc64nvme
from .closeables import CloseableRegistry
from .errors import IntegrityError
from .landing import Landing
from .request import CopyRequest, locate
from .sdk_client import InterruptibleClient, Seen, bare
from .sdk_files import Advance, StagedFile, s3_object

_READ = 1 << 20


class RangeReader:
    """Ranged GETs into staged files, tried again as s3transfer does it with its own."""

    def __init__(self, client: InterruptibleClient, registry: CloseableRegistry, *, retries: int) -> None:
        self._client = client
        self._registry = registry
        self._retries = retries

    def read(self, request: CopyRequest, landing: Landing, advance: Advance) -> tuple[Seen, int]:
        """What is known of the object, and the CRC64NVME of the range. Raises as botocore does."""
        from s3transfer.utils import S3_RETRYABLE_DOWNLOAD_ERRORS

        attempt = 0
        while True:
            reading = _Attempt(self._client, self._registry, request, landing, advance)
            try:
                return reading.run()
            except S3_RETRYABLE_DOWNLOAD_ERRORS:
                advance(-reading.position)
                if attempt >= self._retries or self._registry.closed:
                    raise
            self._registry.wait(backoff(attempt))
            attempt += 1


class _Attempt:
    """One ranged GET into a staged file."""

    def __init__(
        self,
        client: InterruptibleClient,
        registry: CloseableRegistry,
        request: CopyRequest,
        landing: Landing,
        advance: Advance,
    ) -> None:
        self.position = 0
        self._client = client
        self._request = request
        self._source = locate(request.source)
        self._file = StagedFile(landing, registry, verify=False)
        self._advance = advance

    def run(self) -> tuple[Seen, int]:
        request = self._request
        if request.expected == 0:
            self._client.client.head_object(**s3_object(self._source))
            return self._client.seen[self._source.bucket, self._source.key], 0
        answer = self._client.client.get_object(**s3_object(self._source), **self._conditions())
        with closing(answer["Body"]) as body:
            start = str(answer.get("ContentRange")).removeprefix("bytes ").partition("-")[0]
            if start != str(request.offset):
                message = f"{request.source} answered with {answer.get('ContentRange')}, not from {request.offset}"
                raise IntegrityError(message, request=request)
            seen = self._client.seen[self._source.bucket, self._source.key]
            return Seen(seen.size, seen.etag), self._write(body)

    def _conditions(self) -> dict[str, str]:
        request = self._request
        end = request.offset + request.length - 1 if request.length is not None else ""
        version = {"IfMatch": f'"{bare(request.etag)}"'} if request.etag else {}
        return {"Range": f"bytes={request.offset}-{end}", **version}

    def _write(self, body: Any) -> int:
        value = 0
        while chunk := body.read(_READ):
            value = crc64nvme(chunk, value)
            self._file.write(chunk)
            self.position += len(chunk)
            self._advance(len(chunk))
        return value
