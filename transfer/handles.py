"""State handles: where one piece of state lies.

A handle says where the bytes are and what they must be; it moves nothing. Handles of keyed
state are grouped per subtask with the range of key groups they hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from ..backends.errors import UsageError


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """Key groups ``first`` to ``last``, both inclusive. Empty where ``last < first``."""

    first: int
    last: int

    def __len__(self) -> int:
        return max(0, self.last - self.first + 1)

    def __contains__(self, key_group: int) -> bool:
        return self.first <= key_group <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange:
        return KeyGroupRange(max(self.first, other.first), min(self.last, other.last))


def key_groups_of(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The range that a subtask owns: those key groups ``g`` with ``g * parallelism // max_parallelism == subtask``.

    The same as Flink's assignment, and as `subtask_of` row by row.

    Raises:
        UsageError: the subtask or the parallelism is out of range.
    """
    if not 1 <= parallelism <= max_parallelism:
        raise UsageError(
            f"parallelism {parallelism} is not between 1 and the maximum {max_parallelism}",
            remedy="the maximum is fixed when state is first written",
        )
    if not 0 <= subtask < parallelism:
        raise UsageError(f"subtask {subtask} is not between 0 and {parallelism - 1}")
    first = -(-subtask * max_parallelism // parallelism)
    return KeyGroupRange(first, -(-(subtask + 1) * max_parallelism // parallelism) - 1)


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns a key group."""
    return key_group * parallelism // max_parallelism


@dataclass(frozen=True, slots=True)
class InMemoryHandle:
    """Bytes that travel inside the metadata and never as a file."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class FileHandle:
    """A whole file or object by its URI."""

    uri: str
    size: int
    crc64nvme: int | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class RelativeFileHandle:
    """A whole file by its path relative to a scope of the checkpoint, so that the checkpoint can be moved.

    Args:
        scope: ``exclusive`` (the checkpoint's own directory), ``shared`` or ``taskowned``.
    """

    scope: str
    path: str
    size: int
    crc64nvme: int | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class SegmentHandle:
    """A range of a file that holds many pieces of state."""

    file: FileHandle | RelativeFileHandle
    offset: int
    size: int
    crc64nvme: int | None = None


@dataclass(frozen=True, slots=True)
class DirectoryHandle:
    """A directory that is managed, and deleted, as a whole."""

    uri: str


StateHandle: TypeAlias = InMemoryHandle | FileHandle | RelativeFileHandle | SegmentHandle | DirectoryHandle


@dataclass(frozen=True, slots=True)
class StateFile:
    """One file of a RocksDB database: its name there, and the handle of its bytes.

    Args:
        smallest: first key of an SST file, None for other files.
        largest: last key of an SST file.
        level: level of an SST file in the LSM tree.
    """

    name: str
    handle: InMemoryHandle | FileHandle | RelativeFileHandle | SegmentHandle
    smallest: bytes | None = None
    largest: bytes | None = None
    level: int | None = None

    @property
    def size(self) -> int:
        return self.handle.size


@dataclass(frozen=True, slots=True)
class KeyedStateHandle:
    """The keyed state of one subtask in one checkpoint.

    Args:
        backend_id: identity of the database lineage; equal ids share SST files.
        shared: immutable SST files, which later checkpoints may use again.
        private: the files that make a database of them (MANIFEST, CURRENT, OPTIONS).
    """

    key_groups: KeyGroupRange
    max_parallelism: int
    backend_id: str
    checkpoint_id: int
    shared: tuple[StateFile, ...] = ()
    private: tuple[StateFile, ...] = ()
    format: str = field(default="rocksdb")

    @property
    def size(self) -> int:
        return sum(file.size for file in (*self.shared, *self.private))
