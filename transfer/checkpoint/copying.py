"""A checkpoint elsewhere: with everything it needs, or only with what the target lacks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...backends.checksums import crc64nvme_of_file
from ...backends.closeables import CloseableRegistry
from ...backends.errors import CheckpointError, SourceNotFound, UsageError
from ...backends.report import CopyReport, Progress
from ...backends.request import CopyRequest, locate
from ..file_systems import FileSystems
from ..handles import FileHandle, KeyedStateHandle, RelativeFileHandle, SegmentHandle, StateFile
from .checkpoints import CLAIMED
from .contents import contents
from .layout import SHARED, CheckpointLocation
from .metadata import CheckpointMetadata, encode
from .store import CheckpointStore


@dataclass(frozen=True)
class CheckpointCopy:
    """A checkpoint that is now at ``location`` too.

    Args:
        kept: files that the target had already.
    """

    location: CheckpointLocation
    copy: CopyReport
    kept: int
    bytes_kept: int


def copy_checkpoint(
    checkpoint: str,
    base: str,
    store: CheckpointStore,
    file_systems: FileSystems,
    closeables: CloseableRegistry | None = None,
    *,
    progress: Progress | None = None,
) -> CheckpointCopy:
    """Copy ``<other base>/chk-<n>`` to ``<base>/chk-<n>``, or a savepoint to the directory ``base``, the metadata last.

    A file that the target has under the same name and size is kept; on a local disk its checksum
    is compared too. Files outside of the checkpoint's own base come along, so that the copy needs
    nothing but its base. After a failure what arrived stays, and another call goes on from there.

    Raises:
        CheckpointNotFound: there is no such checkpoint.
        CheckpointError: the target has another checkpoint of this number, or may not be a savepoint's.
        UsageError: source and target are the same.
        CopyFailed: files could not be copied.
    """
    source, metadata = store.read(checkpoint)
    target = _target(source, base)
    if target.directory == source.directory:
        raise UsageError(f"{source} would be copied onto itself", remedy="name another base")
    copied = _moved(metadata)
    exists = _exists_as(store, target, copied)
    requests = _requests(source, metadata, target)
    kept = _present(store, target, requests)
    missing = [each for each in requests if each.destination not in kept]
    report = file_systems.copy(missing, closeables, progress=progress)
    if not exists:
        store.write(target, copied)
    bytes_kept = sum(each.size or 0 for each in requests if each.destination in kept)
    return CheckpointCopy(target, report, len(kept), bytes_kept)


def _target(source: CheckpointLocation, base: str) -> CheckpointLocation:
    if not source.is_savepoint:
        return CheckpointLocation.parse(f"{base.rstrip('/')}/chk-{source.checkpoint_id}")
    target = CheckpointLocation.named(base)
    if not target.is_savepoint:
        raise CheckpointError(
            f"{target}: a savepoint cannot have a checkpoint's name", remedy="any other name than chk-<number>"
        )
    return CheckpointLocation.savepoint(base, source.checkpoint_id)


def _exists_as(store: CheckpointStore, target: CheckpointLocation, metadata: CheckpointMetadata) -> bool:
    try:
        document = store.objects.read(target.metadata)
    except SourceNotFound:
        return False
    if document != encode(metadata):
        raise CheckpointError(f"{target}: another checkpoint is there already", remedy="copy to another base")
    return True


def _moved(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """The metadata with every path relative; a copy inherits no right to delete other bases' files."""
    properties = {key: value for key, value in metadata.properties.items() if key != CLAIMED}
    return replace(metadata, states=tuple(map(_moved_state, metadata.states)), properties=properties)


def _moved_state(state: KeyedStateHandle) -> KeyedStateHandle:
    return replace(
        state,
        shared=tuple(_moved_file(file) for file in state.shared),
        private=tuple(_moved_file(file) for file in state.private),
    )


def _moved_file(file: StateFile) -> StateFile:
    match file.handle:
        case FileHandle() | RelativeFileHandle() as handle:
            return replace(file, handle=_relative(handle))
        case SegmentHandle() as handle:
            return replace(file, handle=replace(handle, file=_relative(handle.file)))
    return file


def _relative(handle: FileHandle | RelativeFileHandle) -> RelativeFileHandle:
    """The handle in the copy. ETags are the store's own and do not travel."""
    if isinstance(handle, RelativeFileHandle):
        return replace(handle, etag=None)
    # The name must be the same each time, so that a second copy finds what the first one brought.
    name = hashlib.sha256(handle.uri.encode()).hexdigest()[:32]
    return RelativeFileHandle(SHARED, name, handle.size, handle.crc64nvme)


def _requests(
    source: CheckpointLocation, metadata: CheckpointMetadata, target: CheckpointLocation
) -> list[CopyRequest]:
    """One request per file, also where several subtasks or segments use it."""
    found = {}
    for each in contents(source, metadata):
        whole = each.whole
        destination = target.resolve(_relative(whole)).uri
        found[destination] = CopyRequest(each.source.uri, destination, size=whole.size, crc64nvme=whole.crc64nvme)
    return list(found.values())


def _present(store: CheckpointStore, target: CheckpointLocation, requests: Iterable[CopyRequest]) -> set[str]:
    directories = (target.directory, target.shared, target.taskowned)
    sizes = {each.uri: each.size for directory in directories for each in store.objects.list(directory + "/")}
    return {each.destination for each in requests if sizes.get(each.destination) == each.size and _is_whole(each)}


def _is_whole(request: CopyRequest) -> bool:
    location = locate(request.destination)
    if request.crc64nvme is None or not location.is_local:
        return True
    return os.path.isfile(location.key) and crc64nvme_of_file(location.key) == request.crc64nvme
