"""What a subtask's state means to the register of shared files: which files, under which keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ...backends.errors import CheckpointError
from ..handles import FileHandle, KeyedStateHandle, RelativeFileHandle, SegmentHandle, StateFile
from ..strategy import Sharing
from .checkpoints import CompletedCheckpoint, PendingCheckpoint
from .layout import CheckpointLocation
from .registry import SharedFileRegistry

FileLike = FileHandle | RelativeFileHandle | SegmentHandle


def files_elsewhere(files: Iterable[StateFile]) -> Iterator[tuple[StateFile, FileLike]]:
    """Those that lie in files of their own, not in the metadata."""
    for file in files:
        if isinstance(file.handle, FileHandle | RelativeFileHandle | SegmentHandle):
            yield file, file.handle


def uris_of(location: CheckpointLocation, state: KeyedStateHandle) -> list[str]:
    return [location.resolve(handle).uri for _, handle in files_elsewhere((*state.shared, *state.private))]


def key_of(state: KeyedStateHandle, file: StateFile, handle: FileLike) -> str:
    """What a file is: two uploads with one key are duplicates.

    A segment, or a file without a checksum, is only itself.
    """
    known = handle.crc64nvme is not None and not isinstance(handle, SegmentHandle)
    identity = f"{handle.crc64nvme:016x}" if known else repr(handle)
    return f"{state.backend_id}/{file.name}/{file.size}/{identity}"


def _handle_at(uri: str, handle: FileLike, location: CheckpointLocation) -> FileHandle | RelativeFileHandle:
    prefix = location.shared + "/"
    if uri.startswith(prefix):
        return RelativeFileHandle("shared", uri.removeprefix(prefix), handle.size, handle.crc64nvme)
    return FileHandle(uri, handle.size, handle.crc64nvme)


def register_completed(
    registry: SharedFileRegistry, checkpoint: CompletedCheckpoint, deletable: Callable[[str], bool]
) -> None:
    """The shared files of a checkpoint that exists already are good."""
    number = checkpoint.metadata.checkpoint_id
    for state in checkpoint.metadata.states:
        for file, handle in files_elsewhere(state.shared):
            uri = checkpoint.location.resolve(handle).uri
            registry.register(number, key_of(state, file, handle), uri, deletable=deletable(uri))
    registry.confirm(number)


def register_pending(
    registry: SharedFileRegistry,
    pending: PendingCheckpoint,
    state: KeyedStateHandle,
    in_place: frozenset[str],
    deletable: Callable[[str], bool],
) -> tuple[KeyedStateHandle, list[str]]:
    """Register what a subtask brought.

    Returns:
        the state as the checkpoint shall name it, and the uploads that it has no need of.

    Raises:
        CheckpointError: a full checkpoint uses files of another base.
    """
    changed: dict[str, StateFile] = {}
    duplicates = []
    for file, handle in files_elsewhere(state.shared):
        uri = pending.location.resolve(handle).uri
        if pending.sharing is Sharing.FORWARD and not uri.startswith(pending.location.base + "/"):
            raise CheckpointError(
                f"{pending.location}: must be full, but uses {uri} of the checkpoint that was restored",
                remedy="take the first snapshot after a NO_CLAIM restore with Sharing.FORWARD",
            )
        holder = state.backend_id if uri in in_place else None
        key = key_of(state, file, handle)
        used = registry.register(pending.checkpoint_id, key, uri, holder=holder, deletable=deletable(uri))
        if used != uri:
            duplicates.append(uri)
            changed[file.name] = replace(file, handle=_handle_at(used, handle, pending.location))
    return replace(state, shared=tuple(changed.get(file.name, file) for file in state.shared)), duplicates
