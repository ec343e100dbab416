"""What a database directory remembers between processes: its range, and which of its files are uploaded.

Kept beside RocksDB's files as ``statelift-state.json``. SST files are known by RocksDB's unique id
of their content, which stays the same when a file gets another number at a rescale.

A snapshot's files may be referenced by later snapshots only once its checkpoint is complete: an
aborted checkpoint's files are deleted. Of the completed ones only the newest counts, since the
files of subsumed ones may be gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ...backends.disk import reading, writing
from ...backends.errors import CheckpointError, UsageError
from ..checkpoint.layout import SHARED, CheckpointLocation
from ..checkpoint.records import handle_record, read_handle
from ..handles import FileHandle, InMemoryHandle, KeyGroupRange, RelativeFileHandle, SegmentHandle
from .key_groups import check_max_parallelism

NAME = "statelift-state.json"
_FORMAT = 1

AnyHandle: TypeAlias = InMemoryHandle | FileHandle | RelativeFileHandle | SegmentHandle
FileOf: TypeAlias = Mapping[str, AnyHandle]


@dataclass
class Lineage:
    """Identity and uploaded files of one subtask's database.

    Args:
        base: of the checkpoints that the handles below belong to.
        completed: handle by unique id, of the newest completed snapshot or the restored one.
        pending: the same, per checkpoint whose end is not known yet.
        claimed: whether the completed files may be referenced from another base too, because the
            job that was restored from them owns them (CLAIM) or relies on them for ever (LEGACY).
    """

    key_groups: KeyGroupRange
    max_parallelism: int
    backend_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    base: str | None = None
    completed_id: int = -1
    completed: FileOf = field(default_factory=dict)
    pending: dict[int, FileOf] = field(default_factory=dict)
    claimed: bool = False

    @classmethod
    def of(cls, directory: str, key_groups: KeyGroupRange | None, max_parallelism: int | None) -> Lineage:
        """The directory's lineage, or a new one, saved, where it has no state yet.

        Raises:
            UsageError: a new one needs a range; an old one has another range than asked for.
            CheckpointError: the directory holds a database that is not ours, or its file is damaged.
        """
        found = cls.load(directory)
        if found is None:
            return cls._begun(directory, key_groups, max_parallelism)
        own = found.key_groups
        if key_groups not in {None, own} or max_parallelism not in {None, found.max_parallelism}:
            raise UsageError(
                f"{directory} holds key groups {own.first} to {own.last} of {found.max_parallelism}, "
                "not those asked for",
                remedy="restore them from a checkpoint into another directory",
            )
        return found

    @classmethod
    def _begun(cls, directory: str, key_groups: KeyGroupRange | None, max_parallelism: int | None) -> Lineage:
        if os.path.exists(os.path.join(directory, "CURRENT")):
            raise CheckpointError(
                f"{directory} holds a database without {NAME}", remedy="restore the state, or choose another directory"
            )
        if key_groups is None or max_parallelism is None:
            raise UsageError(f"{directory} holds no state", remedy="give key_groups and max_parallelism to begin it")
        check_max_parallelism(max_parallelism)
        if len(key_groups) and not 0 <= key_groups.first <= key_groups.last < max_parallelism:
            raise UsageError(f"key groups {key_groups.first} to {key_groups.last} of {max_parallelism}")
        begun = cls(key_groups, max_parallelism)
        with writing(directory):
            os.makedirs(directory, exist_ok=True)
        begun.save(directory)
        return begun

    def reusable(self, base: str) -> FileOf:
        """Files that a snapshot below ``base`` may reference.

        Those in its own shared directory, inline ones, and those of another base that are named
        absolutely, as the files of a claimed checkpoint are.
        """
        if base != self.base and not self.claimed:
            return {}
        below = {unique_id: _relative(handle, base) for unique_id, handle in self.completed.items()}
        return {unique_id: handle for unique_id, handle in below.items() if _is_shared(handle, base)}

    def begin(self, checkpoint_id: int, base: str, files: FileOf) -> None:
        """Note a snapshot whose checkpoint is not complete yet."""
        if base != self.base:
            self.completed, self.pending, self.base = self.reusable(base), {}, base
            self.completed_id, self.claimed = -1, False
        self.pending[checkpoint_id] = files

    def complete(self, checkpoint_id: int) -> None:
        """A checkpoint is complete. Unknown, repeated and late ids change nothing."""
        files = self.pending.pop(checkpoint_id, None)
        if files is None or checkpoint_id < self.completed_id:
            return
        self.completed, self.completed_id = files, checkpoint_id
        self.pending = {each: handles for each, handles in self.pending.items() if each > checkpoint_id}

    def abort(self, checkpoint_id: int) -> None:
        self.pending.pop(checkpoint_id, None)

    def save(self, directory: str) -> None:
        """Write the file; a reader sees the old one or the new one."""
        path = os.path.join(directory, NAME)
        with writing(path):
            temporary = f"{path}.{uuid.uuid4().hex}.tmp"
            try:
                with open(temporary, "w", encoding="ascii") as file:
                    json.dump(self._record(), file)
                os.replace(temporary, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)

    def _record(self) -> dict[str, object]:
        return {
            "format": _FORMAT,
            "backend": self.backend_id,
            "key_groups": [self.key_groups.first, self.key_groups.last],
            "max_parallelism": self.max_parallelism,
            "base": self.base,
            "completed_id": self.completed_id,
            "completed": _handle_records(self.completed),
            "claimed": self.claimed,
            "pending": {str(each): _handle_records(files) for each, files in self.pending.items()},
        }

    @classmethod
    def load(cls, directory: str) -> Lineage | None:
        """The directory's lineage, or None where there is no such file.

        Raises:
            CheckpointError: the file is damaged or of another version.
            AccessDenied: it cannot be read.
        """
        path = os.path.join(directory, NAME)
        if not os.path.exists(path):
            return None
        with reading(path), open(path, "rb") as file:
            text = file.read()
        try:
            record = json.loads(text)
            if record["format"] != _FORMAT:
                raise ValueError(f"format {record['format']}")
            return cls(
                KeyGroupRange(*record["key_groups"]),
                record["max_parallelism"],
                record["backend"],
                record["base"],
                record["completed_id"],
                _handles(record["completed"], path),
                {int(each): _handles(files, path) for each, files in record["pending"].items()},
                bool(record.get("claimed", False)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} is damaged: {error}", remedy="remove the directory and restore the state again"
            ) from error


def _handle_records(files: FileOf) -> dict[str, object]:
    return {unique_id: handle_record(handle) for unique_id, handle in files.items()}


def _handles(records: dict[str, dict[str, object]], path: str) -> FileOf:
    return {unique_id: read_handle(record, path) for unique_id, record in records.items()}


def _is_shared(handle: object, base: str) -> bool:
    if isinstance(handle, SegmentHandle):
        handle = handle.file
    if isinstance(handle, FileHandle):
        return not handle.uri.startswith(base + "/")
    return isinstance(handle, InMemoryHandle) or (isinstance(handle, RelativeFileHandle) and handle.scope == SHARED)


def absolute(handle: AnyHandle, location: CheckpointLocation) -> AnyHandle:
    """The handle as a checkpoint below any base may name it."""
    if isinstance(handle, InMemoryHandle):
        return handle
    if isinstance(handle, SegmentHandle):
        return replace(handle, file=_absolute(handle.file, location))
    return _absolute(handle, location)


def _absolute(handle: FileHandle | RelativeFileHandle, location: CheckpointLocation) -> FileHandle:
    return FileHandle(location.resolve(handle).uri, handle.size, handle.crc64nvme, handle.etag)


def _relative(handle: AnyHandle, base: str) -> AnyHandle:
    """An absolute handle below the base's own shared directory as the relative one that it was."""
    if isinstance(handle, SegmentHandle):
        return replace(handle, file=_relative_file(handle.file, base))
    return handle if isinstance(handle, InMemoryHandle) else _relative_file(handle, base)


def _relative_file(handle: FileHandle | RelativeFileHandle, base: str) -> FileHandle | RelativeFileHandle:
    prefix = f"{base}/{SHARED}/"
    if isinstance(handle, FileHandle) and handle.uri.startswith(prefix):
        return RelativeFileHandle(SHARED, handle.uri.removeprefix(prefix), handle.size, handle.crc64nvme, handle.etag)
    return handle
