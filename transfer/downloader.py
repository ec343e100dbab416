"""From state handles to local files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..backends.closeables import CloseableRegistry
from ..backends.errors import CopyCancelled, CopyFailed, TransferError, UsageError
from ..backends.landing import StagingArea, writing
from ..backends.report import CopiedFile, CopyReport, Progress
from ..backends.request import CopyRequest
from ..backends.transfer_options import TransferOptions
from .checkpoint.layout import CheckpointLocation
from .file_systems import FileSystems
from .handles import DirectoryHandle, FileHandle, InMemoryHandle, RelativeFileHandle, SegmentHandle, StateHandle
from .linking import link_files, restore_plan
from .strategy import Plan

INLINE = "inline"


@dataclass(frozen=True, slots=True)
class Download:
    """A piece of state and the local path that it shall have."""

    handle: StateHandle
    path: str


class StateDownloader:
    """Brings the files of a checkpoint to a local disk, all of them or none."""

    def __init__(self, file_systems: FileSystems) -> None:
        self.file_systems = file_systems
        self._fsync = file_systems.configuration.of(TransferOptions).fsync

    def download(
        self,
        location: CheckpointLocation,
        downloads: Sequence[Download],
        closeables: CloseableRegistry,
        *,
        progress: Progress | None = None,
        deadline: float | None = None,
        strategy: Plan | None = None,
    ) -> CopyReport:
        """Download every handle; sizes are not asked for, they stand in the handles.

        If it fails, and once all work has ended, the files that it brought and the directories
        that it made are removed.

        Args:
            strategy: decides which files are linked; by default that of a restore that claims nothing.

        Raises:
            CheckpointError: a path in the metadata climbs out of its directory.
            UsageError: two handles share a path, or one is of a directory.
            CopyFailed: a file could not be copied.
            CopyCancelled: ``closeables`` was closed.
        """
        started = time.monotonic()
        if not downloads:
            return CopyReport()
        inline, requests = plan(location, downloads)
        with _undone_on_failure([each.path for each in downloads]):
            written = self._write(inline, closeables, progress)
            decided = strategy or restore_plan(self.file_systems, location, os.path.dirname(downloads[0].path))
            linked, left = link_files(requests, decided, closeables, progress=progress)
            report = self.file_systems.copy(left, closeables, progress=progress, deadline=deadline)
        return CopyReport((*written, *linked, *report.files), time.monotonic() - started)

    def _write(
        self,
        inline: Iterable[tuple[InMemoryHandle, CopyRequest]],
        closeables: CloseableRegistry,
        progress: Progress | None,
    ) -> list[CopiedFile]:
        done: list[CopiedFile] = []
        with StagingArea(fsync=self._fsync) as staging:
            for handle, request in inline:
                closeables.check()
                done.append(_land(staging, handle, request))
                if progress:
                    progress(request, handle.size)
        return done


def _land(staging: StagingArea, handle: InMemoryHandle, request: CopyRequest) -> CopiedFile:
    started = time.monotonic()
    try:
        landing = staging.land(request.destination, request)
        with writing(request.destination, request):
            view = memoryview(handle.data)
            while view:
                view = view[os.write(landing.fd, view) :]
        size = landing.publish(handle.size)
    except TransferError as error:
        raise CopyFailed([error]) from error
    return CopiedFile(request, INLINE, size, time.monotonic() - started)


def plan(
    location: CheckpointLocation, downloads: Iterable[Download]
) -> tuple[list[tuple[InMemoryHandle, CopyRequest]], list[CopyRequest]]:
    """State that is in memory already, and requests for the rest.

    Raises:
        CheckpointError: a path climbs out of its directory.
        UsageError: two handles share a path, or one is of a directory.
    """
    inline: list[tuple[InMemoryHandle, CopyRequest]] = []
    requests: list[CopyRequest] = []
    paths: set[str] = set()
    for download in downloads:
        handle, path = download.handle, download.path
        if path in paths:
            raise UsageError(f"two pieces of state would become {path}")
        paths.add(path)
        if isinstance(handle, InMemoryHandle):
            inline.append((handle, CopyRequest(INLINE, path, size=handle.size)))
        elif isinstance(handle, DirectoryHandle):
            raise UsageError(f"{handle.uri} is a directory, not a file", remedy="name its files")
        else:
            requests.append(_request(location, handle, path))
    return inline, requests


def _request(
    location: CheckpointLocation, handle: FileHandle | RelativeFileHandle | SegmentHandle, path: str
) -> CopyRequest:
    source = location.resolve(handle)
    # An ETag changes when a checkpoint is moved; a checksum does not, and proves more.
    etag = handle.etag if isinstance(handle, FileHandle) and handle.crc64nvme is None else None
    return CopyRequest(
        source.uri,
        path,
        size=source.size,
        offset=source.offset,
        length=source.length,
        crc64nvme=handle.crc64nvme,
        etag=etag,
    )


@dataclass(slots=True)
class _Directory:
    """A destination directory as it was before.

    Args:
        missing: ancestors that did not exist either, innermost first.
        names: what it held.
    """

    path: str
    missing: list[str]
    names: frozenset[str] = frozenset()


def _look(path: str) -> _Directory:
    missing = []
    above = path
    while not os.path.isdir(above):
        missing.append(above)
        parent = os.path.dirname(above)
        if parent == above:
            break
        above = parent
    names: frozenset[str] = frozenset()
    if not missing:
        with contextlib.suppress(OSError):
            names = frozenset(os.listdir(path))
    return _Directory(path, missing, names)


@contextlib.contextmanager
def _undone_on_failure(destinations: Sequence[str]) -> Iterator[None]:
    """Remove what this block brought, if it fails; never what was there before or is another's."""
    paths = {os.path.abspath(each) for each in destinations}
    before = {each: _look(each) for each in {os.path.dirname(path) for path in paths}}
    try:
        yield
    except BaseException as error:
        done = error.done if isinstance(error, CopyFailed | CopyCancelled) else ()
        replaced = {os.path.abspath(file.request.destination) for file in done}
        _undo(paths, replaced, before)
        raise


def _undo(paths: set[str], replaced: set[str], before: dict[str, _Directory]) -> None:
    for path in paths:
        directory, name = os.path.split(path)
        if path in replaced or name not in before[directory].names:
            with contextlib.suppress(OSError):
                os.unlink(path)
    missing = {each for directory in before.values() for each in directory.missing}
    for directory in sorted(missing, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
