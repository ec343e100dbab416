"""Run groups of copies side by side, then stream what failed natively, then say what happened."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..backends.closeables import CloseableRegistry
from ..backends.errors import (
    BackendError,
    BackendUnavailable,
    ConnectionFailed,
    CopyCancelled,
    CopyFailed,
    NoSpace,
    StalledTransfer,
    TransferError,
    UnsupportedCopy,
)
from ..backends.paths_copying import PathsCopyingFileSystem
from ..backends.report import CopiedFile, CopyReport, Progress
from ..backends.request import CopyRequest

_GROUPS_AT_ONCE = 8
_UNREACHABLE = (ConnectionFailed, StalledTransfer)


@dataclass(slots=True)
class Group:
    """Requests that one call of one backend copies."""

    backend: PathsCopyingFileSystem
    requests: list[CopyRequest]


def copy_groups(
    groups: Sequence[Group],
    refused: Sequence[TransferError],
    closeables: CloseableRegistry,
    *,
    fallback: Callable[[], PathsCopyingFileSystem],
    keep: Callable[[TransferError], bool] = lambda _: False,
    progress: Progress | None = None,
    ends: float | None = None,
    fail_fast: bool = True,
) -> CopyReport:
    """Copy every group; see `FileSystems.copy`.

    Args:
        refused: errors of requests that no backend takes.
        fallback: makes the stream backend, called only where a file needs it.
        keep: tells errors that the fallback must not hide.
        ends: the deadline on ``time.monotonic()``.
    """
    started = time.monotonic()
    run = _Run(closeables, _Arrivals(progress) if progress else None, ends, fail_fast, list(refused))
    run.native(groups)
    run.stream(fallback, keep)
    if run.errors:
        raise CopyFailed(_roots_first(run.errors), run.done)
    return CopyReport(tuple(run.done), time.monotonic() - started)


class _Arrivals:
    """Bytes reported per request, so that a second attempt can take them back."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._bytes: dict[int, int] = {}

    def __call__(self, request: CopyRequest, count: int) -> None:
        with self._lock:
            self._bytes[id(request)] = self._bytes.get(id(request), 0) + count
        self._progress(request, count)

    def take_back(self, request: CopyRequest) -> None:
        with self._lock:
            count = self._bytes.pop(id(request), 0)
        if count:
            self._progress(request, -count)


@dataclass
class _Run:
    closeables: CloseableRegistry
    progress: _Arrivals | None
    ends: float | None
    fail_fast: bool
    errors: list[TransferError]
    done: list[CopiedFile] = field(default_factory=list)

    def native(self, groups: Sequence[Group]) -> None:
        with self.closeables.child() as registry:
            if len(groups) == 1:
                # In the caller's thread: a child process ends with the thread that started it.
                self._copy(groups[0], registry)
            elif groups:
                self._side_by_side(deque(groups), registry)
        self._check()

    def _check(self) -> None:
        if self.closeables.closed:
            raise CopyCancelled(self.closeables.reason, self.done)

    def _side_by_side(self, waiting: deque[Group], registry: CloseableRegistry) -> None:
        threads = [
            threading.Thread(target=self._work, args=(waiting, registry), name=f"statelift-group-{index}", daemon=True)
            for index in range(min(len(waiting), _GROUPS_AT_ONCE))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            registry.close("interrupted")
            for thread in threads:
                thread.join()
            raise

    def _work(self, waiting: deque[Group], registry: CloseableRegistry) -> None:
        while not registry.closed:
            try:
                group = waiting.popleft()
            except IndexError:
                return
            self._copy(group, registry)

    def _copy(self, group: Group, registry: CloseableRegistry) -> None:
        try:
            report = self._call(group.backend, group.requests, registry)
            self.done.extend(report.files)
        except CopyFailed as error:
            self.done.extend(error.done)
            self.errors.extend(error.errors)
        except CopyCancelled as error:
            self.done.extend(error.done)
        except TransferError as error:
            self.errors.extend(_each(error, group))
        except Exception as error:
            wrapped = BackendError(f"{group.backend.name}: {type(error).__name__}: {error}", backend=group.backend.name)
            wrapped.__cause__ = error
            self.errors.extend(_each(wrapped, group))
        if self._is_fatal():
            registry.close("another part of the batch failed")

    def _call(
        self, backend: PathsCopyingFileSystem, requests: Sequence[CopyRequest], registry: CloseableRegistry
    ) -> CopyReport:
        left = None if self.ends is None else max(0.0, self.ends - time.monotonic())
        return backend.copy_files(requests, registry, progress=self.progress, deadline=left, fail_fast=self.fail_fast)

    def _is_fatal(self) -> bool:
        return any(isinstance(error, NoSpace) or (self.fail_fast and error.shared) for error in self.errors)

    def stream(self, fallback: Callable[[], PathsCopyingFileSystem], keep: Callable[[TransferError], bool]) -> None:
        """Copy by streams what failed for a reason that they need not share."""
        if self._is_fatal() or (self.ends is not None and time.monotonic() >= self.ends):
            return
        failed = [error for error in self.errors if _may_stream(error) and not keep(error)]
        if not failed:
            return
        try:
            backend = fallback()
        except BackendUnavailable:
            return  # then what failed natively has failed
        requests = [each for each in map(_request_of, failed) if backend.can_copy_paths(each.source, each.destination)]
        if len(requests) > 1 and all(isinstance(error, _UNREACHABLE) for error in failed):
            # A store that nothing reached: one file tells whether streams do.
            if self._settle(backend, requests[:1]):
                return
            requests = requests[1:]
        if requests:
            self._settle(backend, requests)

    def _settle(self, backend: PathsCopyingFileSystem, requests: Sequence[CopyRequest]) -> bool:
        """Stream these files; whether any of them failed again."""
        if self.progress:
            for request in requests:
                self.progress.take_back(request)
        failed: dict[int, TransferError] = {}
        try:
            copied: Sequence[CopiedFile] = self._call(backend, requests, self.closeables).files
        except CopyFailed as error:
            copied = error.done
            failed = {id(each.request): each for each in error.errors}
        except CopyCancelled as error:
            raise CopyCancelled(error.reason, [*self.done, *error.done]) from error
        self.done.extend(copied)
        settled = {id(file.request) for file in copied}
        self.errors = [
            _telling(error, failed.get(id(error.request))) for error in self.errors if id(error.request) not in settled
        ]
        return bool(failed)


def _request_of(error: TransferError) -> CopyRequest:
    assert error.request is not None  # noqa: S101  _may_stream saw to it
    return error.request


def _each(error: TransferError, group: Group) -> list[TransferError]:
    """One error per request of a group that failed as a whole, sharing its cause."""
    if error.request is not None:
        return [error]
    copies = []
    for request in group.requests:
        copy = type(error)(str(error.args[0]), remedy=error.remedy, request=request, backend=group.backend.name)
        copy.transient, copy.shared, copy.__cause__ = error.transient, error.shared, error.__cause__ or error
        copies.append(copy)
    return copies


def _may_stream(error: TransferError) -> bool:
    return not error.shared and error.request is not None and error.backend != "stream"


def _telling(native: TransferError, streamed: TransferError | None) -> TransferError:
    """Of two errors of one file, the one that says why it cannot be copied at all."""
    if streamed is None:
        return native
    if streamed.shared or isinstance(native, UnsupportedCopy | BackendUnavailable):
        streamed.__context__ = streamed.__context__ or native
        return streamed
    return native


def _roots_first(errors: Sequence[TransferError]) -> list[TransferError]:
    """A full disk, then what no other way would have avoided, then the rest, each in order of time."""
    return sorted(errors, key=lambda error: (not isinstance(error, NoSpace), not error.shared))
