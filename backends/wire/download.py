"""From an object, or a range of one, to a local file: ranges of one version, each at its offset."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..errors import IntegrityError, SourceChanged, TransferError
from ..landing import Landing
from ..report import CopiedFile
from ..request import CopyRequest, locate
from .ranges import Range, RangeIgnored
from .response import Head
from .verify import Sums, compare, differs, stored_sum, wanted

if TYPE_CHECKING:
    from .engine import Engine
    from .schedule import Job

_SPLIT_FACTOR = 2


class Download:
    """One file. Its version is fixed by the first answer, or by the request's ETag."""

    def __init__(self, engine: Engine, request: CopyRequest) -> None:
        self.engine = engine
        self.request = request
        self.source = locate(request.source)
        self.number = engine.number()
        self.generation = 0
        self.etag = request.etag
        self.total = request.size
        self.landing: Landing | None = None
        self._target = locate(request.destination).key
        self._ranges: list[Range] = []
        self._untouched: dict[int, Range] = {}
        self._left = 0
        self._restarts = 0
        self._one_stream = False
        self._stored: int | None = None
        self._started = 0.0

    def begin(self) -> None:
        """Plan the ranges as far as the size is known, and schedule them."""
        self._left, self._ranges, self._untouched, self._stored = 0, [], {}, None
        expected = self.request.expected
        if expected is None and self.total is not None:
            expected = self.total - self.request.offset
        if expected is not None and self.splits(expected):
            self.split(self.request.offset, expected)
        else:
            self._add(self.request.offset, expected)

    @property
    def is_split(self) -> bool:
        """Whether other ranges than the one that asks are still to come."""
        return self._left > 1

    def splits(self, length: int) -> bool:
        """Whether so many bytes are worth several requests."""
        return not self._one_stream and length > self.engine.options.part_size * _SPLIT_FACTOR

    def split(self, start: int, length: int) -> None:
        """Schedule ranges of part size. Ends of an object's ranges lie on part boundaries, as AWS advises."""
        part, end = self.engine.options.part_size, start + length
        while start < end:
            stop = min(end, (start // part + 1) * part)
            if end - stop < part // 4:
                stop = end
            self._add(start, stop - start)
            start = stop

    def _add(self, start: int, length: int | None) -> None:
        job = Range(self, start, length)
        self._ranges.append(job)
        self._untouched[start] = job
        self._left += 1
        self.engine.schedule.add(job)

    def enlarge(self, job: Range) -> None:
        """Let a range that begins take over those behind it, up to the size that suits the store."""
        if self._untouched.pop(job.start, None) is None:
            return
        while job.length is not None and job.length < self.engine.range_size.bytes:
            follower = self._untouched.pop(job.start + job.length, None)
            if follower is None:
                return
            job.length = None if follower.length is None else job.length + follower.length
            follower.is_merged = True
            self._ranges.remove(follower)
            self._left -= 1

    def staged(self) -> Landing:
        """The staged file, made when the first range starts."""
        if self.landing is None:
            self._started = time.monotonic()
            self.landing = self.engine.staging.land(self._target, self.request)
            expected = self.request.expected
            if expected is not None and len(self._ranges) > 1:
                self.landing.preallocate(expected)
        return self.landing

    # What an answer tells of the object.

    def learn(self, head: Head, total: int | None) -> None:
        """Check an answer against what is known of the object's version, and remember what was not.

        Raises:
            SourceChanged: it is another version.
            IntegrityError: its size is not the request's.
        """
        etag = head.headers.get("etag")
        if self.etag is not None and etag is not None and _tag(etag) != _tag(self.etag):
            raise SourceChanged(f"{self.request.source} was overwritten while it was read")
        self.etag = self.etag or etag
        if total is None:
            return
        if self.request.size is not None and total != self.request.size:
            raise IntegrityError(f"{self.request.source} has {total} bytes instead of {self.request.size}")
        if self.total is not None and total != self.total:
            raise SourceChanged(f"{self.request.source} was overwritten while it was read")
        if self.request.offset + (self.request.length or 0) > total:
            raise IntegrityError(f"{self.request.source} has {total} bytes: too few for the range that is wanted")
        self.total = total

    def learn_sum(self, head: Head, job: Range) -> None:
        """Remember the store's checksum; one of a range alone is checked when that range is complete."""
        job.stored = stored_sum(head) if self.engine.transfer.verify else None

    # The end of a range, and of the file.

    def finished(self, job: Range) -> None:
        self._left -= 1
        if self._left == 0 and job.generation == self.generation:
            self._publish()

    def _publish(self) -> None:
        sums = wanted(self.request, verify=self.engine.transfer.verify)
        for job in sorted(self._ranges, key=lambda each: each.start):
            sums.join(job.sums)
        verified = compare(self.request, sums)
        if self._compare_stored(sums):
            verified = "crc64nvme"
        landing = self.staged()
        size = landing.publish(self._expected())
        self.generation += 1
        seconds = time.monotonic() - self._started
        self.engine.copied(CopiedFile(self.request, "wire", size, seconds, verified, sums.crc64nvme))

    def _expected(self) -> int | None:
        if self.request.expected is not None:
            return self.request.expected
        return None if self.total is None else self.total - self.request.offset

    def _compare_stored(self, sums: Sums) -> bool:
        """Compare with what the store returned: a sum of the object, or of the range that it came with.

        Stores differ in which they send with a range (AWS: the sum of a part, where the range is one).
        """
        whole = sums.length == self.total
        found = False
        for job in self._ranges:
            if job.stored is None or sums.crc64nvme is None or job.sums.crc64nvme is None:
                continue
            if job.stored == job.sums.crc64nvme:
                found = found or len(self._ranges) == 1
            elif whole:
                differs(self.request.source, "CRC64NVME", sums.crc64nvme, job.stored, 8)
                found = True
        return found or self._all_ranges_checked()

    def _all_ranges_checked(self) -> bool:
        return all(job.stored is not None and job.stored == job.sums.crc64nvme for job in self._ranges)

    # Failures.

    def recover(self, _job: Job, error: TransferError) -> bool:
        """Begin anew, once, from the version that is there now or after damage; or as one stream."""
        if isinstance(error, RangeIgnored):
            self._restart(one_stream=True)
            return True
        mended = isinstance(error, IntegrityError) and self._restarts == 0 and self.engine.transfer.retries > 0
        pinned = isinstance(error, SourceChanged) and self.request.etag is not None
        if not mended or pinned:
            return False
        self._restarts += 1
        self._restart(one_stream=self._one_stream)
        return True

    def _restart(self, *, one_stream: bool) -> None:
        self._withdraw()
        self._one_stream = one_stream
        self.etag, self.total = self.request.etag, self.request.size
        self.begin()

    def _withdraw(self) -> None:
        self.generation += 1
        arrived = sum(job.arrived for job in self._ranges)
        if arrived:
            self.engine.moved(self.request, -arrived)
        if self.landing is not None:
            self.landing.discard()
            self.landing = None

    def fail(self, error: TransferError) -> None:
        self._withdraw()
        self.engine.failed(self.request, error)


def _tag(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')
