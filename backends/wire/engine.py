"""One batch of copies: a loop, its workers, what failed and what is done."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from ..closeables import CloseableRegistry
from ..errors import (
    BackendError,
    CopyCancelled,
    CopyFailed,
    DeadlineExceeded,
    NoSpace,
    TransferError,
    UnsupportedCopy,
)
from ..landing import StagingArea
from ..report import CopiedFile, CopyReport, Progress
from ..request import CopyRequest, locate
from ..s3_access import S3Access
from ..transfer_options import TransferOptions
from .client import Client
from .download import Download
from .endpoint import Endpoints
from .journal import Journal, abort_abandoned
from .limits import CpuLimit, LocalClock, Pace, SharedClock, free_descriptors, state_directory
from .loop import Loop
from .options import WireOptions
from .parts import ToObject
from .pool import Pool
from .range_size import RangeSize
from .retry import Budget
from .schedule import Job, Schedule
from .server_side import ServerSideCopy
from .splicing import SUPPORTED, Pipe
from .upload import Upload
from .watch import Rates, SlowTransfer, Watch

_FIRST_WORKERS = 4
#: No more workers before an answer came this soon, in seconds, or so many jobs are done: some stores
#: work long for every request (`RangeSize`).
_WORKERS_UNPROVEN = _FIRST_WORKERS
_PROMPT = 0.1
_PROOF = 2
_GROW_EVERY = 0.004
_GROW_EVERY_TLS = 0.02  # a handshake costs a millisecond of CPU: sooner, and they would be most of the idling
_IDLE_SHARE = 0.2
_CLEANING_TIME = 5.0
_CLEANING_TIME_CANCELLED = 0.5
_PATIENCE_FACTOR = 4
# A worker has a socket, a file, and a share of the staging directories' descriptors.
_DESCRIPTORS_EACH = 3
_DESCRIPTORS_KEPT = 64


class _Finished(BaseException):
    """Ends the loop early: what remains is not to be copied."""


class _Expired(BaseException):
    """The deadline passed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What `Engine.run` was asked for."""

    requests: Sequence[CopyRequest]
    progress: Progress | None
    deadline: float | None
    fail_fast: bool


class Engine:
    """Runs one batch in the calling thread. Transfers and jobs ask it for everything they share."""

    def __init__(self, access: S3Access, options: WireOptions, endpoints: Endpoints, pool: Pool, batch: Batch) -> None:
        self.options = options
        self.transfer: TransferOptions = access.transfer
        self.loop = Loop()
        self.schedule = Schedule(self.loop, self._begin_next)
        self.client = Client(self.loop, access, endpoints, pool, options)
        self.pool = pool
        self.staging = StagingArea(fsync=self.transfer.fsync)
        self.pace: Pace | None = None
        self._batch = batch
        self._done: list[CopiedFile] = []
        self._errors: list[TransferError] = []
        self._unbegun: deque[CopyRequest] = deque()
        self._workers = 0
        self._jobs_done = 0
        self._tls = endpoints.uses_tls
        self._rates = Rates()
        self.range_size = RangeSize(options.part_size)
        self._numbers = 0
        self._descriptors = max(_DESCRIPTORS_EACH, free_descriptors() - _DESCRIPTORS_KEPT)
        self._uploads = False
        self._clocks: list[SharedClock] = []
        splices = options.splice and not self.transfer.verify and not endpoints.uses_tls
        self.pipe = Pipe() if splices and SUPPORTED else None
        self._files: set[Upload] = set()
        self._with_parts: set[ToObject] = set()
        self._state_directory = state_directory(options.state_directory)
        self._store = store_name(access)
        self.journal = Journal(self._state_directory / "uploads", self._store)
        self._set_limits()

    def _set_limits(self) -> None:
        if self.options.bandwidth is not None:
            self.pace = Pace(self.options.bandwidth, self._clock("bandwidth"))
        if self.options.cpu_limit is not None:
            self.loop.brake = CpuLimit(self.options.cpu_limit, self._clock("cpu")).pause

    def _clock(self, name: str) -> LocalClock | SharedClock:
        if not self.options.host_limits:
            return LocalClock()
        clock = SharedClock(self._state_directory / name)
        self._clocks.append(clock)
        return clock

    # What transfers ask for.

    @property
    def patience(self) -> float:
        """Seconds for answers that a store gives after long work: a copy, the end of an upload."""
        return _PATIENCE_FACTOR * self.transfer.stall_timeout

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def opened(self, upload: Upload) -> None:
        self._files.add(upload)

    def closed(self, upload: Upload) -> None:
        self._files.discard(upload)

    def holds_parts(self, transfer: ToObject) -> None:
        """Note whether the store holds parts that must be aborted if the batch ends now."""
        if transfer.is_open:
            self._with_parts.add(transfer)
        else:
            self._with_parts.discard(transfer)

    def budget(self) -> Budget:
        return Budget(self.transfer.retries, self.options.retry_time)

    def watch(self, *, hurries: int) -> Watch:
        # Under a limit of our own a low rate says nothing of the connection.
        fair = hurries > 0 and self.pace is None and self.loop.brake is None
        return Watch(self.transfer.stall_timeout, self.options.minimum_rate, self._rates, hurries=fair)

    def moved(self, request: CopyRequest, count: int) -> None:
        if self._batch.progress is not None:
            self._batch.progress(request, count)

    def copied(self, file: CopiedFile) -> None:
        self._done.append(file)

    def failed(self, request: CopyRequest, error: TransferError) -> None:
        """Record a request's failure, and end the batch where that is called for."""
        error.request = error.request or request
        error.backend = error.backend or "wire"
        self._errors.append(error)
        if isinstance(error, NoSpace) or (self._batch.fail_fast and error.shared):
            self.loop.interrupt(_Finished())

    # Running.

    def run(self, closeables: CloseableRegistry) -> CopyReport:
        """Copy everything.

        Raises:
            CopyFailed: at least one request failed.
            CopyCancelled: the registry was closed.
        """
        started = time.monotonic()
        keep = False

        def interrupt() -> None:
            self.loop.interrupt(CopyCancelled(closeables.reason, self._done))

        try:
            with self.staging, closeables.registered(interrupt):
                self._run()
            if closeables.closed:
                raise CopyCancelled(closeables.reason, self._done)
            keep = not self._errors
        finally:
            self._clean(_CLEANING_TIME_CANCELLED if closeables.closed else _CLEANING_TIME)
            self.loop.close()
            self.pool.leave(self.loop, keep=keep)
        if self._errors:
            raise CopyFailed(self._errors, self._done)
        return CopyReport(tuple(self._done), time.monotonic() - started)

    def _clean(self, seconds: float) -> None:
        """Close files, have the store forget the parts of failed uploads."""
        for upload in list(self._files):
            upload.close()
        if self._with_parts:
            self.loop.clear_interrupt()
            for transfer in self._with_parts:
                self.loop.spawn(_quietly(transfer.abort))
            self.loop.spawn_daemon(self._expire(seconds))
            with contextlib.suppress(_Expired):
                self.loop.run()
        self.journal.close()
        for clock in self._clocks:
            clock.close()
        if self.pipe is not None:
            self.pipe.close()

    def _run(self) -> None:
        self._begin()
        limit = self._batch.deadline
        try:
            if self._errors and self._batch.fail_fast:
                return
            self._add_workers(_FIRST_WORKERS)
            if self._uploads:
                uploads = self._state_directory / "uploads"
                self.loop.spawn(_quietly(lambda: abort_abandoned(self.client, uploads, self._store)))
            self.loop.spawn(self._grow())
            if limit is not None:
                self.loop.spawn_daemon(self._expire(limit))
            self.loop.run()
        except _Finished:
            pass
        except _Expired:
            self._fail_the_rest()

    def _begin(self) -> None:
        """Refuse what cannot be copied, and put the rest in order: of unknown size first, then the largest."""
        accepted = []
        for request in self._batch.requests:
            source, destination = locate(request.source), locate(request.destination)
            if "s3" in {source.scheme, destination.scheme} <= {"s3", "file"}:
                accepted.append(request)
                self._uploads = self._uploads or destination.scheme == "s3"
            else:
                message = f"wire cannot copy {request.source} to {request.destination}"
                self.failed(request, UnsupportedCopy(message))
        self._unbegun = deque(sorted(accepted, key=_weight, reverse=True))
        self.schedule.unbegun = len(accepted)

    def _begin_next(self) -> None:
        request = self._unbegun.popleft()
        try:
            self._new_transfer(request).begin()
        except TransferError as error:
            self.failed(request, error)

    def _new_transfer(self, request: CopyRequest) -> Download | Upload | ServerSideCopy:
        if locate(request.destination).is_local:
            return Download(self, request)
        return Upload(self, request) if locate(request.source).is_local else ServerSideCopy(self, request)

    async def _expire(self, seconds: float) -> None:
        await self.loop.sleep(max(0.0, seconds))
        self.loop.interrupt(_Expired())

    def _fail_the_rest(self) -> None:
        settled = {id(file.request) for file in self._done} | {id(error.request) for error in self._errors}
        for request in self._batch.requests:
            if id(request) not in settled:
                message = f"{request.source} was not copied within {self._batch.deadline:.3g} s"
                self._errors.append(DeadlineExceeded(message, request=request, backend="wire"))

    # Workers.

    def _add_workers(self, count: int) -> None:
        limit = self._worker_limit()
        if self._jobs_done < _PROOF and self.client.promptest > _PROMPT:
            limit = min(limit, _WORKERS_UNPROVEN)
        for _ in range(min(count, limit - self._workers)):
            self._workers += 1
            self.loop.spawn(self._work())

    def _worker_limit(self) -> int:
        return min(self.options.connection_limit(tls=self._tls), self._descriptors // _DESCRIPTORS_EACH)

    async def _grow(self) -> None:
        """Add connections for as long as the CPU idles while there is work: no number fits every network."""
        idle, since = self.loop.idle, time.monotonic()
        while self._workers < self._worker_limit() and self.schedule.waiting:
            await self.loop.sleep(_GROW_EVERY_TLS if self._tls else _GROW_EVERY)
            now = time.monotonic()
            share = (self.loop.idle - idle) / (now - since)
            if share > _IDLE_SHARE:
                self._add_workers(min(self._workers, self.schedule.waiting))
            idle, since = self.loop.idle, now

    async def _work(self) -> None:
        while (job := await self.schedule.next()) is not None:
            try:
                await job.run()
                self._jobs_done += 1
            except TransferError as error:
                self._settle(job, error)
            except Exception as error:
                wrapped = BackendError(f"{type(error).__name__}: {error}")
                wrapped.__cause__ = error
                self._settle(job, wrapped)
            finally:
                self.schedule.done()

    def _settle(self, job: Job, error: TransferError) -> None:
        """Decide what a job's error means: nothing, another attempt, or the end of its transfer."""
        if job.stale or job.transfer.recover(job, error):
            return
        delay = 0.0 if isinstance(error, SlowTransfer) else job.budget.delay(error)
        if delay is None:
            job.transfer.fail(error)
        else:
            self.schedule.later(job, delay)


def _weight(request: CopyRequest) -> int:
    return request.expected if request.expected is not None else 1 << 62


async def _quietly(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Cleaning up is tried; its failure must not hide what it cleans up after."""
    with contextlib.suppress(TransferError):
        await work()


def store_name(access: S3Access) -> str:
    """Names the store and, without revealing it, the account: journals of others are not ours to act on."""
    options = access.options
    return f"{options.endpoint or 'AWS'} {options.access_key or options.profile or ''}"
