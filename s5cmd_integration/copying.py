"""One batch: every request a coroutine, all in the thread that called, one result.

The thread that starts the processes is the one that waits for them, so their parent-death signal
can only come when this process dies.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..backends.batch import as_error_of, backoff
from ..backends.closeables import CloseableRegistry
from ..backends.errors import (
    CopyCancelled,
    CopyFailed,
    DeadlineExceeded,
    NoSpace,
    Throttled,
    TransferError,
)
from ..backends.landing import StagingArea
from ..backends.report import CopiedFile, CopyReport, Progress
from ..backends.request import CopyRequest
from ..backends.s3_access import S3Access
from ..backends.transfer_options import cpus
from ..backends.wire.loop import Loop, Task
from .checks import Checks
from .command import DOWNLOAD, REMOTE, UPLOAD, Launch, flags_of, make_line, uri_of
from .failures import error_of, not_found_though_there, says_expired
from .fleet import Fleet
from .items import Item, make_items
from .leftovers import Leftovers
from .output import Success
from .runs import CommandFailed
from .tuning import connections_for, descriptor_limit, download_parts, upload_parts, workers_for

NAME = "s5cmd"
#: Coroutines per line in flight: while some check what has arrived, others keep s5cmd busy.
_COPIERS_PER_SLOT = 2
_DRAIN_TIME = 2.0
_CLEANING_TIME = 5.0
_CLEANING_TIME_CANCELLED = 0.5
_TICK_MOST, _TICK_LEAST, _TICK_PROGRESS = 1.0, 0.05, 0.25
_NAP = 0.25


class _Finished(BaseException):
    """Ends the loop early: what remains is not to be copied."""


class _Late(_Finished):
    """The deadline passed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What `copy_batch` was asked for."""

    requests: Sequence[CopyRequest]
    progress: Progress | None
    deadline: float | None
    fail_fast: bool


def copy_batch(batch: Batch, launch: Launch, access: S3Access, closeables: CloseableRegistry) -> CopyReport:
    """Copy everything.

    Raises:
        CopyFailed: at least one request failed.
        CopyCancelled: the registry was closed.
    """
    started = time.monotonic()
    copying = Copying(batch, launch, access)
    try:
        with closeables.registered(lambda: copying.cancel(closeables.reason)):
            copying.run()
    except CopyCancelled as error:
        raise CopyCancelled(error.reason, copying.done) from None
    finally:
        copying.close()
    if closeables.closed:
        raise CopyCancelled(closeables.reason, copying.done)
    if copying.errors:
        raise CopyFailed(copying.errors, copying.done)
    return CopyReport(tuple(copying.done), time.monotonic() - started)


class Copying:
    """A batch at work."""

    def __init__(self, batch: Batch, launch: Launch, access: S3Access) -> None:
        self._batch = batch
        self._s3 = access.options
        self._transfer = access.transfer
        self.errors: list[TransferError] = []
        self.done: list[CopiedFile] = []
        items, refused = make_items(batch.requests, access.options)
        self._items = items
        self._waiting = deque(items)
        self._refused = refused
        self._workers = self._count_workers(launch)
        self._connections = connections_for(cpus(), descriptor_limit())
        self.loop = Loop()
        self._fleet = Fleet(self.loop, launch, access, self._workers)
        self._checks = Checks(self.loop, access)
        self._staging = StagingArea(fsync=self._transfer.fsync)
        self._free = self._workers
        self._parked: deque[Task] = deque()
        self._busy: set[str] = set()
        self._resume_at = 0.0
        self._copiers = 0
        self._settled: set[int] = set()
        self._leftovers = Leftovers(self.loop, self._checks, lambda item: id(item) in self._settled, self._succeed)
        self._untold = {id(item) for item in items}

    def _count_workers(self, launch: Launch) -> int:
        chosen = launch.s5cmd.args.value("numworkers")
        if chosen:
            return max(2, int(chosen))
        sizes = [item.size for item in self._items]
        return workers_for(sizes, cpus(), descriptor_limit())

    # The whole batch.

    def cancel(self, reason: str) -> None:
        """End the copy; may come from any thread."""
        self.loop.interrupt(CopyCancelled(reason))
        # At once, and not when the loop comes round: what goes on meanwhile might complete an upload.
        self._fleet.interrupt()

    def run(self) -> None:
        """Copy; returns or raises when no process is left."""
        cancelled, late = True, False
        with self._staging:
            try:
                self._run()
                cancelled = False
            except _Finished as end:
                cancelled, late = False, isinstance(end, _Late)
            finally:
                self.loop.throw(_Finished())
                self._fleet.end()
                limit = _CLEANING_TIME_CANCELLED if cancelled else _CLEANING_TIME
                self._leftovers.clean(self._fleet.ended, count=not cancelled, seconds=limit)
            if late:
                self._fail_the_rest()

    def close(self) -> None:
        self._checks.store.close()
        self.loop.close()

    def _run(self) -> None:
        for error in self._refused:
            self._record(error)
        self._copiers = min(len(self._items), self._workers * _COPIERS_PER_SLOT)
        for _ in range(self._copiers):
            self.loop.spawn(self._copy_some())
        self.loop.spawn_daemon(self._watch())
        if self._batch.deadline is not None:
            self.loop.spawn_daemon(self._expire(self._batch.deadline))
        self.loop.run()

    async def _copy_some(self) -> None:
        while self._waiting:
            await self._copy(self._waiting.popleft())
        self._copiers -= 1
        if self._copiers == 0:
            await self._fleet.drain(_DRAIN_TIME)

    async def _watch(self) -> None:
        patience = self._transfer.stall_timeout
        tick = max(_TICK_LEAST, min(_TICK_MOST, patience / 4))
        if self._batch.progress is not None:
            tick = min(tick, _TICK_PROGRESS)
        while True:
            await self.loop.sleep(tick)
            self._fleet.watch(patience)
            if self._batch.progress is not None:
                self._report_arrivals()

    async def _expire(self, seconds: float) -> None:
        await self.loop.sleep(max(0.0, seconds))
        self.loop.interrupt(_Late())

    def _fail_the_rest(self) -> None:
        for item in self._items:
            if id(item) not in self._settled:
                message = f"{item.request.source} was not copied within {self._batch.deadline:.3g} s"
                self.errors.append(DeadlineExceeded(message, request=item.request, backend=NAME))
                self._settled.add(id(item))

    # One request.

    async def _copy(self, item: Item) -> None:
        item.began = time.monotonic()
        attempt = 0
        while True:
            try:
                copied = await self._attempt(item)
            except Exception as cause:
                error = self._error_of(item, cause)
                self._withdraw(item)
                pause = self._pause_after(item, cause, error, attempt)
                if pause is None:
                    self._settled.add(id(item))
                    self._untold.discard(id(item))
                    self._record(error)
                    return
            else:
                self._succeed(item, copied)
                return
            attempt += 1
            # It needs a process again: those that are tried again together share one.
            self._untold.add(id(item))
            await self.loop.sleep(pause)

    async def _attempt(self, item: Item) -> CopiedFile:
        await self._alone(item)
        try:
            self._plan(item)
            await self._checks.before(item)
            success = await self._told(item)
            return await self._checks.after(item, success)
        finally:
            self._busy.discard(item.request.destination)

    async def _alone(self, item: Item) -> None:
        """Wait until no other copy writes this object: s5cmd would race, and call both done."""
        if item.kind != DOWNLOAD:
            while item.request.destination in self._busy:
                await self.loop.sleep(_NAP)
            self._busy.add(item.request.destination)

    def _plan(self, item: Item) -> None:
        files = min(len(self._items), self._workers)
        if item.kind == DOWNLOAD:
            item.parts = download_parts(item.size, files, self._connections)

    async def _told(self, item: Item) -> Success:
        """Have s5cmd copy it; returns what s5cmd said."""
        while self._free == 0:
            await self.loop.park(self._parked)
        self._free -= 1
        try:
            while (pause := self._resume_at - time.monotonic()) > 0:
                await self.loop.sleep(pause)
            source, destination = uri_of(item.source), self._destination(item)
            if item.kind == UPLOAD:
                item.parts = upload_parts(item.size or 0, min(len(self._items), self._workers), self._connections)
            line = make_line(source, destination, item.parts, flags_of(item.kind, self._s3))
            run = await self._fleet.run_for(item.size)
            flight = run.tell(item, source, destination, line)
            self._untold.discard(id(item))
            if not self._untold:
                # It ends when it has done what it has, and so shows which lines it lost.
                self._fleet.finish()
            return await run.result(flight)
        finally:
            self._free += 1
            self.loop.unpark(self._parked)

    def _destination(self, item: Item) -> str:
        if item.kind != DOWNLOAD:
            return uri_of(item.destination)
        item.landing = self._staging.land(item.destination.key, item.request)
        # s5cmd appends digits to the name while it writes: "1" and "12" could not be told apart.
        item.landing.path += ".part"
        return item.landing.path

    # What became of it.

    def _error_of(self, item: Item, cause: Exception) -> TransferError:
        if isinstance(cause, CommandFailed):
            lost = not_found_though_there(cause.text, item.request) if item.kind == REMOTE else None
            return as_error_of(item.request, lost or error_of(cause.text, item.request), NAME)
        return as_error_of(item.request, cause, NAME)

    def _pause_after(self, item: Item, cause: Exception, error: TransferError, attempt: int) -> float | None:
        """Seconds until the next attempt; None for no other."""
        if isinstance(cause, CommandFailed) and says_expired(cause.text) and not item.renewed:
            item.renewed = self._fleet.renew_credentials()
            return 0.0 if item.renewed else None
        if not error.transient or attempt >= self._transfer.retries:
            return None
        pause = backoff(attempt)
        if isinstance(error, Throttled):
            # A store that tells one to slow down means all.
            self._resume_at = max(self._resume_at, time.monotonic() + pause)
        return pause

    def _withdraw(self, item: Item) -> None:
        if item.landing is not None:
            item.landing.discard()
            item.landing = None
        item.arrived = 0
        self._report(item, 0)

    def _succeed(self, item: Item, copied: CopiedFile) -> None:
        self._settled.add(id(item))
        self.done.append(copied)
        self._report(item, copied.bytes)

    def _record(self, error: TransferError) -> None:
        self.errors.append(error)
        if isinstance(error, NoSpace) or (self._batch.fail_fast and error.shared):
            self.loop.interrupt(_Finished())

    def _report_arrivals(self) -> None:
        for flight in self._fleet.flights:
            if flight.outcome is None:
                self._report(flight.item, max(flight.item.reported, flight.item.arrived))

    def _report(self, item: Item, total: int) -> None:
        """Tell the caller that ``total`` bytes of a file are there now."""
        count, item.reported = total - item.reported, total
        if count and self._batch.progress is not None:
            self._batch.progress(item.request, count)
