"""What is checked before and after s5cmd has copied a file: existence, size, version, checksum.

s5cmd sends no ``If-Match`` and looks at no checksum, so

* a download is one request, hence one version of the object, unless its request carries a checksum
  or the ETag is compared before and after;
* a download whose request carries no checksum is compared with what the store keeps, if it keeps one:
  one HEAD, 0.06 ms of CPU beside the 1.2 ms of the copy;
* an upload's source is checked before, and must be unchanged after; the store is asked for the size,
  and for the checksum, of what arrived. On the way S3 itself checks the MD5 and SHA-256 that s5cmd sends;
* a copy within the store is compared with the source's size and checksum.
"""

from __future__ import annotations

import contextlib
import os
import time

from ..backends.errors import IntegrityError, SourceChanged, SourceNotFound, UnsupportedCopy
from ..backends.landing import reading, writing
from ..backends.report import CopiedFile
from ..backends.s3_access import S3Access
from ..backends.transfer_options import TransferOptions
from ..backends.wire.loop import Loop
from ..backends.wire.verify import Sums, compare, differs
from .command import DOWNLOAD, LARGEST_REMOTE_COPY, REMOTE, UPLOAD
from .items import Item, open_source
from .output import Success
from .store import Facts, Store

_READ = 256 << 10
#: Bytes that are summed before the loop's other tasks have their turn: 10 ms.
_TURN = 32 << 20
#: s5cmd gives every file this mode, whatever the umask.
_MODE_OF_S5CMD = 0o644


class Checks:
    """Checks of one batch, in its loop."""

    def __init__(self, loop: Loop, access: S3Access) -> None:
        self._loop = loop
        self._transfer: TransferOptions = access.transfer
        self._buffer = memoryview(bytearray(0))
        self._mode = 0o666 & ~current_umask()
        self.store = Store(loop, access)

    # Before.

    async def before(self, item: Item) -> None:
        """Learn what must be known before the copy, and refuse what cannot succeed.

        Raises:
            SourceNotFound, AccessDenied: the source cannot be read.
            IntegrityError: its size or checksum is not the request's.
            SourceChanged: it is not the version that the request names.
            UnsupportedCopy: it is larger than s5cmd can copy within a store.
        """
        if item.kind == UPLOAD:
            await self._before_upload(item)
        elif item.kind == REMOTE or item.needs_version:
            await self._before_reading(item)

    async def _before_upload(self, item: Item) -> None:
        fd = open_source(item)
        try:
            wanted = self._wanted(item, None)
            if wanted is not None:
                with reading(item.request.source, item.request):
                    compare(item.request, await self._sum(fd, wanted))
        finally:
            os.close(fd)

    async def _before_reading(self, item: Item) -> None:
        request = item.request
        facts = item.before = await self.store.head(item.source)
        if request.etag is not None and _tag(facts.etag) != _tag(request.etag):
            raise SourceChanged(f"{request.source} is not the version {request.etag}: it was overwritten")
        if request.expected is not None and facts.size is not None and facts.size != request.expected:
            raise IntegrityError(f"{request.source} has {facts.size} bytes instead of {request.expected}")
        if facts.crc64nvme is not None and request.crc64nvme is not None and self._transfer.verify:
            differs(request.source, "CRC64NVME", facts.crc64nvme, request.crc64nvme, 8)
        item.size = facts.size if item.size is None else item.size
        if item.kind == REMOTE and (item.size or 0) > LARGEST_REMOTE_COPY:
            raise UnsupportedCopy(f"{request.source} has {item.size} bytes: s5cmd copies at most 5 GiB within a store")

    # After.

    async def after(self, item: Item, success: Success) -> CopiedFile:
        """Check what s5cmd says it has copied, and publish it.

        Raises:
            IntegrityError: it is not what was asked for; nothing was published locally.
            SourceChanged: the source was overwritten meanwhile.
        """
        if item.kind == DOWNLOAD:
            return await self._after_download(item, success)
        if item.kind == UPLOAD:
            return await self._after_upload(item)
        return await self._after_remote(item)

    async def _after_download(self, item: Item, success: Success) -> CopiedFile:
        request, landing = item.request, item.landing
        assert landing is not None  # noqa: S101  told to mypy
        try:
            fd = os.open(landing.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise IntegrityError(f"s5cmd says it has copied {request.source}, but there is no file") from error
        try:
            size = os.fstat(fd).st_size
            expected = request.expected if request.expected is not None else success.size
            if expected is not None and size != expected:
                raise IntegrityError(f"{request.source} arrived with {size} bytes instead of {expected}")
            facts = await self._facts_of_source(item)
            verified, sums = await self._compare(fd, item, facts)
            if self._mode != _MODE_OF_S5CMD:
                with writing(landing.destination, request):
                    os.fchmod(fd, self._mode)
        finally:
            os.close(fd)
        landing.publish(size)
        return self._copied(item, size, verified, sums.crc64nvme, facts)

    async def _facts_of_source(self, item: Item) -> Facts | None:
        """The store's word on a download whose request proves nothing.

        Raises:
            SourceChanged: another version is there than before the download.
        """
        if item.request.has_checksum and self._transfer.verify:
            return None
        if not self._transfer.verify and not item.needs_version:
            return None
        facts = await self.store.head(item.source)
        if item.before is not None and _tag(facts.etag) != _tag(item.before.etag):
            raise SourceChanged(f"{item.request.source} was overwritten while it was read")
        return facts

    async def _compare(self, fd: int, item: Item, facts: Facts | None) -> tuple[str, Sums]:
        """Compare a file with its request's checksums and the store's; tells the strongest check made."""
        stored = facts.crc64nvme if facts is not None else None
        wanted = self._wanted(item, stored)
        if wanted is None:
            return "size", Sums()
        sums = await self._sum(fd, wanted)
        try:
            verified = compare(item.request, sums)
            if stored is not None and sums.crc64nvme is not None:
                differs(item.request.source, "CRC64NVME", sums.crc64nvme, stored, 8)
                verified = "crc64nvme"
        except IntegrityError as error:
            await self._tell_change(item, error)
            raise
        return verified, sums

    async def _tell_change(self, item: Item, error: IntegrityError) -> None:
        """Wrong bytes of a version that the request does not name are no damage.

        Raises:
            SourceChanged: that is the case.
        """
        if item.kind == DOWNLOAD and item.request.etag is not None:
            facts = await self.store.head(item.source)
            if _tag(facts.etag) != _tag(item.request.etag):
                raise SourceChanged(f"{item.request.source} was overwritten") from error

    async def _after_upload(self, item: Item) -> CopiedFile:
        request, before = item.request, item.status
        assert before is not None  # noqa: S101  told to mypy
        facts = await self._facts_of_destination(item)
        fd = open_source(item)
        try:
            now = item.status
            if now is None or _version(now) != _version(before):
                raise SourceChanged(f"{request.source} was changed while it was read")
            self._compare_size(request.destination, facts, before.st_size)
            verified, sums = "size", Sums()
            if facts.crc64nvme is not None and self._transfer.verify:
                verified, sums = await self._compare(fd, item, facts)
        finally:
            os.close(fd)
        if self._transfer.verify and verified == "size":
            # Compared before; on the way the store compared what s5cmd sends: MD5 and SHA-256.
            verified = _promised(item)
        return self._copied(item, before.st_size, verified, sums.crc64nvme or request.crc64nvme, facts)

    async def _after_remote(self, item: Item) -> CopiedFile:
        request, before = item.request, item.before
        assert before is not None  # noqa: S101  told to mypy
        facts = await self._facts_of_destination(item)
        if request.etag is not None:
            now = await self.store.head(item.source)
            if _tag(now.etag) != _tag(before.etag):
                raise SourceChanged(f"{request.source} was overwritten while it was copied")
        self._compare_size(request.destination, facts, before.size)
        verified = "size"
        promised = request.crc64nvme if request.crc64nvme is not None else before.crc64nvme
        if self._transfer.verify and facts.crc64nvme is not None and promised is not None:
            differs(request.destination, "CRC64NVME", facts.crc64nvme, promised, 8)
            verified = "crc64nvme"
        return self._copied(item, facts.size or 0, verified, facts.crc64nvme, facts)

    async def _facts_of_destination(self, item: Item) -> Facts:
        """What arrived in the store.

        Raises:
            IntegrityError: nothing did; another way of copying may do better.
        """
        try:
            return await self.store.head(item.destination)
        except SourceNotFound as error:
            request = item.request
            raise IntegrityError(
                f"s5cmd says it has copied {request.source}, but there is no {request.destination}"
            ) from error

    @staticmethod
    def _compare_size(uri: str, facts: Facts, expected: int | None) -> None:
        if facts.size is not None and expected is not None and facts.size != expected:
            raise IntegrityError(f"{uri} has {facts.size} bytes instead of {expected}: it was replaced meanwhile")

    def _copied(self, item: Item, size: int, verified: str, crc64nvme: int | None, facts: Facts | None) -> CopiedFile:
        method = "server-side" if item.kind == REMOTE else "s5cmd"
        etag = facts.etag if facts is not None and item.kind != DOWNLOAD else None
        return CopiedFile(item.request, method, size, time.monotonic() - item.began, verified, crc64nvme, etag)

    # Sums.

    def _wanted(self, item: Item, stored: int | None) -> Sums | None:
        """The sums to compute; None where there is nothing to compare them with."""
        request = item.request
        if not self._transfer.verify or (stored is None and not request.has_checksum):
            return None
        crc64nvme = 0 if stored is not None or request.crc64nvme is not None else None
        return Sums(crc64nvme, 0 if request.crc32c is not None else None)

    async def _sum(self, fd: int, sums: Sums) -> Sums:
        if not self._buffer:
            self._buffer = memoryview(bytearray(_READ))
        size, next_turn = os.fstat(fd).st_size, _TURN
        while sums.length < size and (count := os.preadv(fd, [self._buffer], sums.length)):
            sums.update(self._buffer[:count])
            if sums.length >= next_turn:
                next_turn += _TURN
                await self._loop.turn()
        return sums


def _promised(item: Item) -> str:
    if item.request.crc64nvme is not None:
        return "crc64nvme"
    return "crc32c" if item.request.crc32c is not None else "size"


def _tag(etag: str | None) -> str:
    return (etag or "").strip('"')


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def current_umask() -> int:
    """This process's umask, read without changing it where the kernel tells it (proc(5))."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
