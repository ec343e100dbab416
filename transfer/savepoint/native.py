"""Native savepoints: the files of a checkpoint as they are, copied by the cheapest way there is.

Where source and target lie in one store it copies by itself and no byte comes here (seed 002:
"pre-existing files will need to be duplicated into the savepoint location").
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ...backends.closeables import CloseableRegistry
from ...backends.report import CopyReport, Progress
from ...backends.request import CopyRequest
from ..checkpoint.layout import CheckpointLocation
from ..checkpoint.metadata import CheckpointMetadata
from ..file_systems import FileSystems
from ..handles import FileHandle, InMemoryHandle, KeyedStateHandle, RelativeFileHandle, SegmentHandle, StateFile
from .rows_file import COMMON, PARQUET_SUFFIX
from .target import NewSavepoint

StoredHandle: TypeAlias = FileHandle | RelativeFileHandle | SegmentHandle


@dataclass
class _Copies:
    """What is copied, and the new handle of everything that is.

    Args:
        whole: files of which segments are taken, yet that are copied whole: with half of its bytes
            needed, one copy is cheaper than one a segment.
    """

    source: CheckpointLocation
    new: NewSavepoint
    whole: frozenset[FileHandle | RelativeFileHandle] = frozenset()
    requests: list[CopyRequest] = field(default_factory=list)
    placed: dict[StoredHandle, RelativeFileHandle] = field(default_factory=dict)

    def add(self, handle: StoredHandle) -> RelativeFileHandle | SegmentHandle:
        """The handle that the savepoint shall have for this one; each is copied once."""
        if isinstance(handle, SegmentHandle) and handle.file in self.whole:
            return replace(handle, file=self._once(handle.file))
        return self._once(handle)

    def _once(self, handle: StoredHandle) -> RelativeFileHandle:
        if handle not in self.placed:
            self.placed[handle] = self._copied(handle)
        return self.placed[handle]

    def _copied(self, handle: StoredHandle) -> RelativeFileHandle:
        source = self.source.resolve(handle)
        placed = self._place(handle, source.uri)
        # An ETag changes when a checkpoint is moved; a checksum does not, and proves more.
        etag = handle.etag if isinstance(handle, FileHandle) and handle.crc64nvme is None else None
        destination = self.new.location.resolve(placed).uri
        self.requests.append(
            CopyRequest(
                source.uri,
                destination,
                size=source.size,
                offset=source.offset,
                length=source.length,
                crc64nvme=handle.crc64nvme,
                etag=etag,
            )
        )
        return placed

    def _place(self, handle: StoredHandle, uri: str) -> RelativeFileHandle:
        if uri.rpartition("/")[2] == COMMON:
            return self.new.place_fixed(COMMON, handle.size, handle.crc64nvme)
        suffix = PARQUET_SUFFIX if uri.endswith(PARQUET_SUFFIX) else ""
        return self.new.place(handle.size, handle.crc64nvme, suffix=suffix)


def write_native(
    source: CheckpointLocation,
    metadata: CheckpointMetadata,
    new: NewSavepoint,
    file_systems: FileSystems,
    closeables: CloseableRegistry,
    *,
    progress: Progress | None = None,
    deadline: float | None = None,
) -> tuple[tuple[KeyedStateHandle, ...], CopyReport]:
    """Copy every file of a checkpoint; what is in memory stays in the metadata.

    Raises:
        CopyFailed: a file could not be copied.
        CopyCancelled: ``closeables`` was closed.
    """
    started = time.monotonic()
    copies = _Copies(source, new, frozenset(_worth_whole(metadata.states)))
    states = tuple(_state(state, copies) for state in metadata.states)
    report = file_systems.copy(copies.requests, closeables, progress=progress, deadline=deadline)
    return states, CopyReport(report.files, time.monotonic() - started)


def _state(state: KeyedStateHandle, copies: _Copies) -> KeyedStateHandle:
    shared = tuple(_file(file, copies) for file in state.shared)
    return replace(state, shared=shared, private=tuple(_file(file, copies) for file in state.private))


def _file(file: StateFile, copies: _Copies) -> StateFile:
    return file if isinstance(file.handle, InMemoryHandle) else replace(file, handle=copies.add(file.handle))


def _worth_whole(states: Iterable[KeyedStateHandle]) -> Iterator[FileHandle | RelativeFileHandle]:
    used: dict[FileHandle | RelativeFileHandle, set[tuple[int, int]]] = defaultdict(set)
    for state in states:
        for file in (*state.shared, *state.private):
            if isinstance(file.handle, SegmentHandle):
                used[file.handle.file].add((file.handle.offset, file.handle.size))
    for handle, ranges in used.items():
        if 2 * sum(size for _, size in ranges) >= handle.size:
            yield handle
