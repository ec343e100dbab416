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
from contextlib import contextmanager
from functools import cache
from typing import Any

from .closeables import CloseableRegistry
from .errors import CopyCancelled, IntegrityError, SourceChanged, UnsupportedCopy
from .landing import Landing, StagingArea
from .request import CopyRequest, Location, locate
from .s3_access import S3Access
from .s3_errors import translating
from .sdk_client import InterruptibleClient, Seen, bare
from .sdk_files import Advance, Copied, StagedFile, UploadedFile, compare, s3_object
from .sdk_range import RangeReader

_READ = 1 << 20
#: Seconds between two looks at a copy that is under way.
_LOOK = 0.2


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
        self._ranges = RangeReader(self._client, registry, retries=self._retries)
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
                with self._asking(request.source, request):
                    seen, crc = self._ranges.read(request, landing, advance)
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

    # Up

    def _upload(self, request: CopyRequest, path: str, destination: Location, advance: Advance) -> Copied:
        file = UploadedFile(request, path, verify=self._verify)
        known = _Known(file.size, None, advance)
        self._finish(
            request,
            known,
            self._moving.upload,
            fileobj=path,
            **_lower(s3_object(destination)),
            extra_args=self._access.options.upload_arguments,
        )
        file.require_unchanged()
        seen = self._client.seen.get((destination.bucket, destination.key))
        return Copied("sdk", file.size, file.verified, file.crc64nvme, seen.etag if seen else None)

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
        try:
            copied = self._check_copy(request, found, source, destination)
        except IntegrityError:
            with self._asking(request.destination, request):
                self._client.client.delete_object(**s3_object(destination))
            raise
        return Copied("server-side", size, verified, found.crc64nvme, copied.etag)

    def _check_copy(self, request: CopyRequest, found: Seen, source: Location, destination: Location) -> Seen:
        """The copy as the store tells of it; and not every store knows a condition on the source of a part."""
        copied = self._head(request, destination)
        if copied.size != found.size or _differ(found.crc64nvme, copied.crc64nvme):
            message = f"{request.destination} has {copied.size} bytes or a checksum other than {request.source}"
            raise IntegrityError(message, request=request)
        if (found.size or 0) >= self._copy_part_size and self._head(request, source).etag != found.etag:
            raise SourceChanged(f"{request.source} was overwritten while it was read", request=request)
        return copied

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


class _Known:
    """What is known of a transfer beforehand, and when it is over.

    Attributes:
        trouble: an exception of ``advance``.
    """

    def __init__(self, size: int | None, etag: str | None, advance: Advance) -> None:
        self.done = threading.Event()
        self.trouble: Exception | None = None
        self.size = size
        self.etag = etag
        self.advance = advance

    def subscriber(self) -> Any:
        return _subscriber_class()(self)


@cache
def _subscriber_class() -> Any:
    """Made once: s3transfer inspects the methods of every new class."""
    from s3transfer.subscribers import BaseSubscriber

    class Subscriber(BaseSubscriber):
        def __init__(self, known: _Known) -> None:
            self._known = known

        def on_queued(self, future: Any, **_: Any) -> None:
            if self._known.size is not None:
                future.meta.provide_transfer_size(self._known.size)
            if self._known.etag is not None:
                future.meta.provide_object_etag(self._known.etag)

        def on_progress(self, future: Any, bytes_transferred: int, **_: Any) -> None:  # noqa: ARG002
            # An exception would leave s3transfer's files open.
            try:
                self._known.advance(bytes_transferred)
            except Exception as error:
                self._known.trouble = error

        def on_done(self, future: Any, **_: Any) -> None:  # noqa: ARG002  may be called under s3transfer's lock
            self._known.done.set()

    return Subscriber
