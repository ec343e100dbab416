"""s3transfer's classic TransferManager, one batch long, with what hurts its users kept away.

* It cannot be cancelled through ``shutdown(cancel=True)`` (s3transfer #105, #143): futures are
  cancelled one by one, and the sockets they wait on are dropped.
* It runs callbacks under its lock: ours only set an event or count.
* It writes all files in one thread: ours are written by the thread that received the bytes.
* It asks for every object's size first, and leaves temporary files beside the destination.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from .batch import backoff
from .checksums import crc64nvme, crc64nvme_of_descriptor
from .closeables import CloseableRegistry
from .disk import reading
from .errors import CopyCancelled, IntegrityError, SourceChanged, UnsupportedCopy
from .landing import Landing, StagingArea
from .request import CopyRequest, Location, locate
from .s3_access import S3Access
from .s3_errors import translating
from .sdk_client import InterruptibleClient, Seen, bare
from .sdk_files import StagedFile, compare

_READ = 1 << 20
#: Seconds between two looks at a copy that is under way.
_LOOK = 0.2
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """One copy that is done."""

    method: str
    bytes: int
    verified: str
    crc64nvme: int | None = None
    etag: str | None = None


def s3_object(location: Location) -> dict[str, str]:
    return {"Bucket": location.bucket, "Key": location.key}


class ClassicEngine:
    """Copies single files, many at once, through one manager and one client.

    Args:
        requests: requests in flight at once, over all files.
    """

    def __init__(
        self,
        access: S3Access,
        registry: CloseableRegistry,
        staging: StagingArea,
        *,
        part_size: int,
        copy_part_size: int,
        requests: int,
    ) -> None:
        self._access = access
        self._registry = registry
        self._staging = staging
        self._verify = access.transfer.verify
        self._retries = access.transfer.retries
        self._copy_part_size = copy_part_size
        self._client = InterruptibleClient(access, registry, connections=requests)
        self._moving = self._manager(part_size, requests)
        self._copying = self._manager(copy_part_size, requests)

    def _manager(self, part_size: int, requests: int) -> Any:
        from s3transfer.futures import BoundedExecutor, NonThreadedExecutor
        from s3transfer.manager import TransferConfig, TransferManager

        config = TransferConfig(
            multipart_threshold=part_size,
            multipart_chunksize=part_size,
            max_request_concurrency=requests,
            io_chunksize=_READ,
            num_download_attempts=self._retries + 1,
        )
        manager: Any = TransferManager(self._client.client, config)
        manager._io_executor = BoundedExecutor(config.max_io_queue_size, 1, executor_cls=NonThreadedExecutor)
        return manager

    def close(self) -> None:
        """All futures are done: their threads end at once."""
        self._moving.shutdown()
        self._copying.shutdown()
        self._client.close()

    def copy(self, request: CopyRequest, advance: Advance) -> Copied:
        """Copy one file; returns when no thread works on it.

        Raises:
            UnsupportedCopy: a part of a file that would have to go up or across.
        """
        source, destination = locate(request.source), locate(request.destination)
        if not source.is_local and destination.is_local:
            return self._download(request, source, destination.key, advance)
        if request.is_range:
            raise UnsupportedCopy(f"sdk copies ranges only downwards: {request.source}", request=request)
        if source.is_local:
            return self._upload(request, source.key, destination, advance)
        return self._copy_within(request, source, destination, advance)

    # Down

    def _download(self, request: CopyRequest, source: Location, path: str, advance: Advance) -> Copied:
        landing = self._staging.land(path, request)
        try:
            if request.expected:
                landing.preallocate(request.expected)
            if request.is_range:
                seen, crc = self._read_range(request, source, landing, advance)
            else:
                seen, crc = self._get(request, source, landing, advance)
            verified = compare(request, landing.fd, crc, seen) if self._verify else "size"
            size = landing.publish(_expected(request, seen))
        except BaseException:
            landing.discard()
            raise
        return Copied("sdk", size, verified, crc if self._verify else None)

    def _get(self, request: CopyRequest, source: Location, landing: Landing, advance: Advance) -> tuple[Seen, int]:
        file = StagedFile(landing, self._registry, verify=self._verify)
        known = _Known(request.size, request.etag, advance)
        self._finish(request, known, self._moving.download, **_lower(s3_object(source)), fileobj=file)
        # The manager asks for the first bytes; an empty object has none, which some stores answer without a head.
        seen = self._client.seen.get((source.bucket, source.key)) or Seen(0, None)
        size = os.fstat(landing.fd).st_size
        return seen, file.crc64nvme(size) if self._verify else 0

    def _read_range(
        self, request: CopyRequest, source: Location, landing: Landing, advance: Advance
    ) -> tuple[Seen, int]:
        """The manager knows whole objects only; a range is one request of its client."""
        from s3transfer.utils import S3_RETRYABLE_DOWNLOAD_ERRORS

        attempt = 0
        with self._asking(request.source, request):
            while True:
                reader = _Range(self._client, request, source, landing, advance)
                try:
                    return reader.read()
                except S3_RETRYABLE_DOWNLOAD_ERRORS:
                    advance(-reader.position)
                    if attempt >= self._retries or self._registry.closed:
                        raise
                self._registry.wait(backoff(attempt))
                attempt += 1

    # Up

    def _upload(self, request: CopyRequest, path: str, destination: Location, advance: Advance) -> Copied:
        with reading(request.source, request), open(path, "rb") as file:
            before = os.fstat(file.fileno())
            if request.size is not None and request.size != before.st_size:
                message = f"{request.source} has {before.st_size} bytes instead of {request.size}"
                raise IntegrityError(message, request=request)
            crc = crc64nvme_of_descriptor(file.fileno()) if self._verify else 0
            verified = compare(request, file.fileno(), crc, None) if self._verify else "size"
        known = _Known(before.st_size, None, advance)
        self._finish(
            request,
            known,
            self._moving.upload,
            fileobj=path,
            **_lower(s3_object(destination)),
            extra_args=self._access.options.upload_arguments,
        )
        with reading(request.source, request):
            require_unchanged(request, before, os.stat(path))
        seen = self._client.seen.get((destination.bucket, destination.key))
        return Copied("sdk", before.st_size, verified, crc if self._verify else None, seen.etag if seen else None)

    # Across

    def _copy_within(self, request: CopyRequest, source: Location, destination: Location, advance: Advance) -> Copied:
        """CopyObject, or UploadPartCopy for large objects: the store copies, nothing comes by here."""
        found = self._head(request, source)
        verified = self._check_source(request, found)
        size = found.size or 0
        # Size and ETag given spare a request; with more than one part, the manager asks for the metadata to keep.
        known = _Known(size, found.etag, advance) if size < self._copy_part_size else _Known(None, None, advance)
        condition = {"CopySourceIfMatch": found.etag} if found.etag else {}
        self._finish(
            request,
            known,
            self._copying.copy,
            copy_source=s3_object(source),
            **_lower(s3_object(destination)),
            extra_args={**self._access.options.upload_arguments, **condition},
        )
        copied = self._head(request, destination)
        if copied.size != size or _differ(found.crc64nvme, copied.crc64nvme):
            self._client.client.delete_object(**s3_object(destination))
            message = f"{request.destination} would have {copied.size} bytes instead of {size}"
            raise IntegrityError(message, request=request)
        return Copied("server-side", size, verified, found.crc64nvme, copied.etag)

    def _head(self, request: CopyRequest, location: Location) -> Seen:
        uri = f"s3://{location.bucket}/{location.key}"
        with self._asking(uri, request):
            self._client.client.head_object(**s3_object(location), ChecksumMode="ENABLED")
        return self._client.seen[location.bucket, location.key]

    def _check_source(self, request: CopyRequest, found: Seen) -> str:
        if request.etag and found.etag and bare(request.etag) != bare(found.etag):
            raise SourceChanged(f"{request.source} has ETag {found.etag} instead of {request.etag}", request=request)
        if request.size is not None and request.size != found.size:
            raise IntegrityError(f"{request.source} has {found.size} bytes instead of {request.size}", request=request)
        if not (self._verify and request.has_checksum):
            return "size"
        for name in ("crc64nvme", "crc32c"):
            wanted, stored = getattr(request, name), getattr(found, name)
            if wanted is not None and stored is not None:
                if wanted != stored:
                    message = f"{request.source}: {name} is {stored:x} instead of {wanted:x}"
                    raise IntegrityError(message, request=request)
                return name
        # Copied unseen, it could be anything: whoever reads the bytes can check them.
        message = f"the store does not tell the checksum of {request.source}: it must be read to be checked"
        raise UnsupportedCopy(message, request=request)

    # Waiting

    def _finish(self, request: CopyRequest, known: _Known, begin: Callable[..., Any], **arguments: Any) -> None:
        """Begin a transfer and wait for its end; cancelled, it ends too, within a second."""
        self._registry.check()
        future = begin(subscribers=[known.subscriber()], **arguments)
        with self._asking(request.source if begin == self._moving.download else request.destination, request):
            try:
                with self._registry.registered(future.cancel):
                    self._await(known, future)
            except CopyCancelled:
                # The registry was closed just before.
                future.cancel()
                self._await(known, future)
            if known.trouble:
                raise known.trouble
            future.result()

    def _await(self, known: _Known, future: Any) -> None:
        while not known.done.wait(_LOOK):
            self._client.check()
            if known.trouble:
                future.cancel()

    @contextmanager
    def _asking(self, uri: str, request: CopyRequest) -> Iterator[None]:
        """As `translating`; whatever goes wrong once the registry is closed follows from that."""
        try:
            with translating(uri, request):
                yield
        except Exception:
            self._registry.check()
            raise


def _expected(request: CopyRequest, seen: Seen) -> int | None:
    if seen.size is None or request.length is not None:
        return request.expected
    if request.size is not None and request.size != seen.size:
        raise IntegrityError(f"{request.source} has {seen.size} bytes instead of {request.size}", request=request)
    return seen.size - request.offset


def _differ(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one != other


def _lower(names: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in names.items()}


def require_unchanged(request: CopyRequest, before: os.stat_result, after: os.stat_result) -> None:
    if (before.st_ino, before.st_size, before.st_mtime_ns) != (after.st_ino, after.st_size, after.st_mtime_ns):
        raise SourceChanged(f"{request.source} was changed while it was read", request=request)


class _Known:
    """What is known of a transfer beforehand, and when it is over.

    Attributes:
        trouble: an exception of ``advance``.
    """

    def __init__(self, size: int | None, etag: str | None, advance: Advance) -> None:
        self.done = threading.Event()
        self.trouble: Exception | None = None
        self._size = size
        self._etag = etag
        self._advance = advance

    def subscriber(self) -> Any:
        from s3transfer.subscribers import BaseSubscriber

        known = self

        class Subscriber(BaseSubscriber):
            def on_queued(self, future: Any, **_: Any) -> None:
                if known._size is not None:
                    future.meta.provide_transfer_size(known._size)
                if known._etag is not None:
                    future.meta.provide_object_etag(known._etag)

            def on_progress(self, future: Any, bytes_transferred: int, **_: Any) -> None:  # noqa: ARG002
                # An exception would leave s3transfer's files open.
                try:
                    known._advance(bytes_transferred)
                except Exception as error:
                    known.trouble = error

            def on_done(self, future: Any, **_: Any) -> None:  # noqa: ARG002  may be called under s3transfer's lock
                known.done.set()

        return Subscriber()


class _Range:
    """One ranged GET into a staged file."""

    def __init__(
        self, client: InterruptibleClient, request: CopyRequest, source: Location, landing: Landing, advance: Advance
    ) -> None:
        self.position = 0
        self._client = client
        self._request = request
        self._source = source
        self._landing = landing
        self._advance = advance

    def read(self) -> tuple[Seen, int]:
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
        file = StagedFile(self._landing, self._client._registry, verify=False)
        while chunk := body.read(_READ):
            value = crc64nvme(chunk, value)
            file.write(chunk)
            self.position += len(chunk)
            self._advance(len(chunk))
        return value
