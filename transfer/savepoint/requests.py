"""Savepoints on request: each runs in the background and is asked for by its id."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...backends.closeables import CloseableRegistry
from ...backends.errors import BackendError, CopyCancelled, TransferError, UsageError
from .job import Job
from .taking import SavepointReport, SavepointType

IN_PROGRESS, COMPLETED, FAILED = "IN_PROGRESS", "COMPLETED", "FAILED"
_AT_ONCE = 2
_MOST_UNFINISHED = 32
_MOST_KEPT = 1000


class TooManyRequests(BackendError):
    """More savepoints wait than will be taken soon."""


@dataclass
class SavepointRequest:
    """What was asked for, and how far it is.

    Args:
        location: of the savepoint, once it is complete.
        failure: why there is none.
        told: whether somebody has read its end.
    """

    id: str
    job: str
    status: str = IN_PROGRESS
    location: str | None = None
    failure: str | None = None
    told: bool = False

    def document(self) -> dict[str, object]:
        """As the HTTP service answers."""
        operation: dict[str, str] = {}
        if self.location is not None:
            operation["location"] = self.location
        if self.failure is not None:
            operation["failure-cause"] = self.failure
        return {"status": {"id": self.status}, "operation": operation}


class SavepointRequests:
    """Takes savepoints of jobs in the background. Thread-safe."""

    def __init__(self, *jobs: Job) -> None:
        self._jobs = {job.name: job for job in jobs}
        if len(self._jobs) < len(jobs):
            raise UsageError("two jobs have one name")
        self._requests: dict[str, SavepointRequest] = {}
        self._lock = threading.Condition()
        self._closeables = CloseableRegistry()
        self._workers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="statelift-savepoint")

    @property
    def closed(self) -> bool:
        return self._closeables.closed

    def job(self, name: str) -> Job | None:
        return self._jobs.get(name)

    def get(self, job: str, request_id: str) -> SavepointRequest | None:
        with self._lock:
            found = self._requests.get(request_id)
        return found if found is not None and found.job == job else None

    def told(self, request_id: str, document: object) -> None:
        """This was read of a request; its end counts, see `wait_until_told`."""
        with self._lock:
            found = self._requests.get(request_id)
            if found is not None and found.status != IN_PROGRESS and document == found.document():
                found.told = True
                self._lock.notify_all()

    def wait_until_told(self, seconds: float) -> bool:
        """Wait until every request's end was read, at most so long."""
        with self._lock:
            return self._lock.wait_for(lambda: all(each.told for each in self._requests.values()), seconds)

    def savepoint(self, job: Job, target: str | None, *, type: str = SavepointType.NATIVE) -> SavepointRequest:
        """Begin a savepoint.

        Raises:
            UsageError: no such type, no target, or the job is ending.
            TooManyRequests: too many have not finished.
        """
        kind = SavepointType.of(type)
        return self._submit(job, target, lambda to: job.savepoint(to, type=kind, closeables=self._closeables))

    def stop(
        self, job: Job, target: str | None, *, type: str = SavepointType.NATIVE, drain: bool = False
    ) -> SavepointRequest:
        """Begin to stop the job with a savepoint. Raises as `savepoint`."""
        kind = SavepointType.of(type)

        def take(to: str) -> SavepointReport:
            return job.stop_with_savepoint(to, type=kind, drain=drain, closeables=self._closeables)

        return self._submit(job, target, take)

    def _submit(self, job: Job, target: str | None, take: Callable[[str], SavepointReport]) -> SavepointRequest:
        job.require_running()
        request = SavepointRequest(uuid.uuid4().hex, job.name)
        if target is None and job.directory is None:
            raise UsageError(f"the job {job.name} has no directory for savepoints", remedy="name a target-directory")
        directory = target or f"{job.directory}/savepoint-{request.id}"
        with self._lock:
            self._make_room()
            self._workers.submit(self._run, request, directory, take)
            self._requests[request.id] = request
        return request

    def _make_room(self) -> None:
        finished = [each for each in self._requests.values() if each.status != IN_PROGRESS]
        if len(self._requests) - len(finished) >= _MOST_UNFINISHED:
            raise TooManyRequests(f"{_MOST_UNFINISHED} savepoints have not finished yet", remedy="try again later")
        for old in finished[: max(0, len(self._requests) + 1 - _MOST_KEPT)]:
            del self._requests[old.id]

    def _run(self, request: SavepointRequest, target: str, take: Callable[[str], SavepointReport]) -> None:
        try:
            self._closeables.check()
            location = take(target).location.directory
        except (TransferError, CopyCancelled) as error:
            self._end(request, failure=str(error))
        except BaseException as error:
            # The job's own callables may raise anything: the one who asked is told, and nobody else listens.
            self._end(request, failure=f"{type(error).__name__}: {error}")
        else:
            self._end(request, location=location)

    def _end(self, request: SavepointRequest, *, location: str | None = None, failure: str | None = None) -> None:
        with self._lock:
            request.location, request.failure = location, failure
            request.status = COMPLETED if failure is None else FAILED

    def close(self) -> None:
        """End the savepoints that are being copied and wait for their clean-up."""
        self._closeables.close("the service was closed")
        self._workers.shutdown(wait=True, cancel_futures=False)
