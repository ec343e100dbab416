"""The requests of one batch as s5cmd needs them."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from ..backends.batch import largest_first
from ..backends.errors import AccessDenied, IntegrityError, TransferError, UnsupportedCopy
from ..backends.landing import Landing, reading
from ..backends.request import CopyRequest, Location, locate
from ..backends.s3_options import S3Options
from .command import DOWNLOAD, REMOTE, UPLOAD, kind_of, refusal_of_pair, refusal_of_request
from .store import Facts
from .tuning import WHOLE, Parts

#: Bytes per second that a store is trusted to copy from object to object.
_REMOTE_RATE = 8 << 20


@dataclass(eq=False, slots=True)
class Item:
    """One request on its way.

    Attributes:
        kind: download, upload or remote.
        size: bytes to copy, as far as they are known yet.
        before: what the store said of the source before it was read.
        status: of the local source when it was checked.
        landing: where a download is staged, anew for each attempt.
        arrived: bytes of the staged file when it was last looked at.
        reported: bytes that were given to the caller's progress.
        began: when its first attempt began (``time.monotonic()``).
        renewed: whether it was tried again with fresh credentials.
    """

    request: CopyRequest
    kind: str
    source: Location
    destination: Location
    size: int | None
    parts: Parts = WHOLE
    before: Facts | None = None
    status: os.stat_result | None = None
    landing: Landing | None = None
    arrived: int = 0
    reported: int = 0
    began: float = 0.0
    renewed: bool = False

    @property
    def needs_version(self) -> bool:
        """Whether only the store's ETag can tell that one version of the object was read, and the right one."""
        if self.kind == UPLOAD or self.request.has_checksum:
            return False
        return self.request.etag is not None or (self.kind == DOWNLOAD and not self.parts.is_whole)

    @property
    def allowance(self) -> float:
        """Seconds without a sign of life beyond what any transfer may take: a store copies in silence."""
        return (self.size or 0) / _REMOTE_RATE if self.kind == REMOTE else 0.0

    @property
    def is_multipart_upload(self) -> bool:
        return self.kind == UPLOAD and self.size is not None and self.size > self.parts.mebibytes << 20


def make_items(requests: Sequence[CopyRequest], options: S3Options) -> tuple[list[Item], list[TransferError]]:
    """The requests that s5cmd can copy, the largest first, and an error for each that it cannot."""
    items: list[Item] = []
    errors: list[TransferError] = []
    for request in largest_first(requests):
        try:
            items.append(make_item(request, options))
        except TransferError as error:
            error.request, error.backend = request, "s5cmd"
            errors.append(error)
    return items, errors


def make_item(request: CopyRequest, options: S3Options) -> Item:
    """The item of a request.

    Raises:
        UnsupportedCopy: s5cmd cannot make this copy, or not safely.
    """
    source, destination = locate(request.source), _absolute(locate(request.destination))
    reason = refusal_of_pair(source, destination, options)
    if source.is_local and not reason:
        # s5cmd tells the path that it was told, cleaned: give it one that cannot be cleaned.
        source = Location(source.scheme, "", os.path.realpath(source.key))
        reason = refusal_of_pair(source, destination, options)
    reason = reason or refusal_of_request(request)
    kind = kind_of(source, destination)
    if reason or kind is None:
        raise UnsupportedCopy(f"{request.source} to {request.destination}: {reason}")
    return Item(request, kind, source, destination, request.size)


def _absolute(place: Location) -> Location:
    # A trailing slash names a directory: `StagingArea` refuses it, so it must stay.
    if not place.is_local or place.key.startswith("/"):
        return place
    return Location(place.scheme, "", os.path.join(os.getcwd(), place.key))


def open_source(item: Item) -> int:
    """A descriptor of an upload's source, whose status is remembered. The caller closes it.

    Raises:
        SourceNotFound, AccessDenied: it cannot be read, or is no file.
        IntegrityError: its size is not the request's.
    """
    request = item.request
    with reading(request.source, request):
        fd = os.open(item.source.key, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            item.status = _checked_status(fd, request)
        except BaseException:
            os.close(fd)
            raise
    item.size = item.status.st_size
    return fd


def _checked_status(fd: int, request: CopyRequest) -> os.stat_result:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise AccessDenied(f"{request.source} is not a file", request=request)
    if request.expected is not None and status.st_size != request.expected:
        raise IntegrityError(f"{request.source} has {status.st_size} bytes instead of {request.expected}")
    return status
