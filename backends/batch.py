"""Run a batch of copies: largest first, a sliding window, no barrier, one result.

Every threaded backend copies one file in a function and leaves the rest to `run_batch`.
"""

from __future__ import annotations

import copy
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .closeables import CloseableRegistry
from .disk import require_space
from .errors import BackendError, CopyCancelled, CopyFailed, DeadlineExceeded, NoSpace, Throttled, TransferError
from .report import CopiedFile, CopyReport
from .request import CopyRequest

#: Copies one file; checks the registry per chunk; raises an error of the tree.
CopyOne: TypeAlias = Callable[[CopyRequest, CloseableRegistry], CopiedFile]

_LOG = logging.getLogger(__name__)
_BACKOFF = 0.2
_BACKOFF_CAP = 5.0


@dataclass(frozen=True, kw_only=True)
class BatchPolicy:
    """How a batch runs.

    Args:
        workers: files in flight at once.
        retries: further attempts for a file whose error is transient.
        deadline: seconds from now within which the batch must end.
        fail_fast: whether the first error that every other backend would share ends the batch.
        check_space: whether all known sizes must fit on their disks before the first file is begun.
    """

    backend: str
    workers: int
    retries: int = 0
    deadline: float | None = None
    fail_fast: bool = True
    check_space: bool = True


def backoff(attempt: int) -> float:
    """Seconds to wait before attempt ``attempt`` + 1: exponential with full jitter, at most 5."""
    return random.uniform(0.1, 1.0) * min(_BACKOFF_CAP, _BACKOFF * 2.0**attempt)


def largest_first(requests: Sequence[CopyRequest]) -> list[CopyRequest]:
    """Requests of unknown size come first: they may be large."""
    return sorted(requests, key=lambda request: -(request.expected if request.expected is not None else 1 << 62))


def run_batch(
    requests: Sequence[CopyRequest], copy_one: CopyOne, policy: BatchPolicy, closeables: CloseableRegistry
) -> CopyReport:
    """Copy all requests; return only when no worker is left.

    Raises:
        CopyFailed: at least one request failed.
        CopyCancelled: ``closeables`` was closed.
    """
    closeables.check()
    started = time.monotonic()
    if not requests:
        return CopyReport()
    if policy.check_space:
        _check_space(requests, policy.backend)
    with closeables.child() as registry:
        batch = _Batch(deque(largest_first(requests)), copy_one, policy, registry)
        batch.run()
    if closeables.closed:
        raise CopyCancelled(closeables.reason, batch.done)
    if batch.errors:
        raise CopyFailed(batch.errors, batch.done)
    return CopyReport(tuple(batch.done), time.monotonic() - started)


def _check_space(requests: Sequence[CopyRequest], backend: str) -> None:
    try:
        require_space(requests)
    except TransferError as error:
        raise CopyFailed([as_error_of(error.request or requests[0], error, backend)]) from error


@dataclass
class _Batch:
    waiting: deque[CopyRequest]
    copy_one: CopyOne
    policy: BatchPolicy
    registry: CloseableRegistry
    errors: list[TransferError] = field(default_factory=list)
    done: list[CopiedFile] = field(default_factory=list)
    resume_at: float = 0.0
    late: bool = False
    ended: bool = False
    ending: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.requests = tuple(self.waiting)

    def run(self) -> None:
        count = max(1, min(self.policy.workers, len(self.waiting)))
        threads = [
            threading.Thread(target=self._work, name=f"statelift-{self.policy.backend}-{index}", daemon=True)
            for index in range(count)
        ]
        timer = self._timer()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            self._end("interrupted")
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        finally:
            if timer:
                timer.cancel()
                timer.join()
        if self.late:
            self._fail_the_rest()

    def _timer(self) -> threading.Timer | None:
        if self.policy.deadline is None:
            return None
        timer = threading.Timer(max(0.0, self.policy.deadline), lambda: self._end("the deadline passed", late=True))
        timer.name, timer.daemon = f"statelift-{self.policy.backend}-deadline", True
        timer.start()
        return timer

    def _end(self, reason: str, *, late: bool = False) -> None:
        """Stop the workers. The first cause counts: what follows from it is none."""
        with self.ending:
            self.late = self.late or (late and not self.ended)
            self.ended = True
        try:
            self.registry.close(reason)
        except Exception:
            # The batch ends all the same, and the error to tell is the one that ends it.
            _LOG.warning("ending a batch of %s", self.policy.backend, exc_info=True)

    def _fail_the_rest(self) -> None:
        finished = {id(file.request) for file in self.done} | {id(error.request) for error in self.errors}
        for request in self.requests:
            if id(request) not in finished:
                message = f"{request.source} was not copied within {self.policy.deadline:.3g} s"
                self.errors.append(DeadlineExceeded(message, request=request, backend=self.policy.backend))

    def _work(self) -> None:
        while not self.registry.closed:
            try:
                request = self.waiting.popleft()
            except IndexError:
                return
            try:
                self.done.append(self._attempt(request))
            except CopyCancelled:
                return
            except BaseException as error:
                # Once the batch is ending, errors are consequences of that, not causes.
                if self.registry.closed:
                    return
                self._failed(request, error)

    def _attempt(self, request: CopyRequest) -> CopiedFile:
        attempt = 0
        while True:
            self.registry.wait(max(0.0, self.resume_at - time.monotonic()))
            try:
                return self.copy_one(request, self.registry)
            except TransferError as error:
                if not error.transient or attempt >= self.policy.retries:
                    raise
                pause = backoff(attempt)
                if isinstance(error, Throttled):
                    # One worker that is told to slow down slows all of them.
                    self.resume_at = max(self.resume_at, time.monotonic() + pause)
            self.registry.wait(pause)
            attempt += 1

    def _failed(self, request: CopyRequest, cause: BaseException) -> None:
        error = as_error_of(request, cause, self.policy.backend)
        self.errors.append(error)
        if isinstance(error, NoSpace) or (self.policy.fail_fast and error.shared):
            self._end(str(error))


def as_error_of(request: CopyRequest, cause: BaseException, backend: str) -> TransferError:
    """An error of the tree that names this request and backend, made of whatever a copy raised."""
    if not isinstance(cause, TransferError):
        error: TransferError = BackendError(f"{request.source}: {type(cause).__name__}: {cause}")
        error.__cause__ = cause
    elif cause.request is not None and cause.request is not request:
        # One exception that several requests met: each has its own copy.
        error = copy.copy(cause)
        error.__cause__ = cause.__cause__ or cause
    else:
        error = cause
    error.request = request
    error.backend = error.backend or backend
    return error
