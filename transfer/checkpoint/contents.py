"""The files of a checkpoint, and what the checkpoints of one base have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...backends.errors import CheckpointError, CheckpointNotFound
from ..handles import FileHandle, InMemoryHandle, RelativeFileHandle, SegmentHandle, StateFile
from .layout import CheckpointLocation, CopySource
from .metadata import CheckpointMetadata
from .store import CheckpointStore


@dataclass(frozen=True, slots=True)
class Content:
    """One piece of state that lies in a file.

    Args:
        source: where its bytes are; a segment is a range of a file.
    """

    subtask: int
    file: StateFile
    source: CopySource

    @property
    def whole(self) -> FileHandle | RelativeFileHandle:
        """The file that the bytes lie in."""
        handle = self.file.handle
        if isinstance(handle, InMemoryHandle):
            raise TypeError(f"{self.file.name} lies in no file")
        return handle.file if isinstance(handle, SegmentHandle) else handle

    @property
    def crc64nvme(self) -> int | None:
        handle = self.file.handle
        return None if isinstance(handle, InMemoryHandle) else handle.crc64nvme


def contents(location: CheckpointLocation, metadata: CheckpointMetadata) -> Iterator[Content]:
    """Every piece of state that is not in the metadata itself, as often as it is named.

    Raises:
        CheckpointError: a path climbs out of its directory.
    """
    for subtask, state in enumerate(metadata.states):
        for file in (*state.shared, *state.private):
            if not isinstance(file.handle, InMemoryHandle):
                yield Content(subtask, file, location.resolve(file.handle))


def inline_size(metadata: CheckpointMetadata) -> int:
    """Bytes of state that are in the metadata itself."""
    files = (file for state in metadata.states for file in (*state.shared, *state.private))
    return sum(file.size for file in files if isinstance(file.handle, InMemoryHandle))


def sizes_of_files(location: CheckpointLocation, metadata: CheckpointMetadata) -> dict[str, int]:
    """Bytes of each file that the checkpoint needs, by URI."""
    return {each.source.uri: each.source.size for each in contents(location, metadata)}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A checkpoint or savepoint among those of its base.

    Args:
        metadata: None where it cannot be read; ``error`` says why.
        files: bytes by URI.
        bytes_shared: of files that another checkpoint of the base needs too.
    """

    location: CheckpointLocation
    metadata: CheckpointMetadata | None = None
    files: Mapping[str, int]
    files_shared: int = 0
    bytes_shared: int = 0
    error: CheckpointError | None = None

    @property
    def bytes(self) -> int:
        return sum(self.files.values()) + (inline_size(self.metadata) if self.metadata else 0)


def entries(store: CheckpointStore, base: str) -> list[Entry]:
    """Every checkpoint of a base, oldest first, then the savepoints at or below it by name.

    A damaged one is listed with its error, one that is deleted meanwhile is not.
    """
    found = [each for location in (*store.list(base), *store.others(base)) for each in _entry(store, location)]
    users = Counter(uri for each in found for uri in each.files)
    return [_with_sharing(each, users) for each in found]


def _entry(store: CheckpointStore, location: CheckpointLocation) -> Iterator[Entry]:
    try:
        where, metadata = store.read(location.directory)
        yield Entry(location=where, metadata=metadata, files=sizes_of_files(where, metadata))
    except CheckpointNotFound:
        return
    except CheckpointError as error:
        yield Entry(location=location, files={}, error=error)


def _with_sharing(entry: Entry, users: Counter[str]) -> Entry:
    shared = [size for uri, size in entry.files.items() if users[uri] > 1]
    return Entry(
        location=entry.location,
        metadata=entry.metadata,
        files=entry.files,
        files_shared=len(shared),
        bytes_shared=sum(shared),
        error=entry.error,
    )
