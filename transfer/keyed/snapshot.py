"""Snapshots: a consistent copy of the database by hard links, of which only new SST files are uploaded."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from ...backends.closeables import CloseableRegistry
from ...backends.report import CopyReport, Progress
from ..checkpoint.layout import EXCLUSIVE, SHARED, CheckpointLocation
from ..handles import InMemoryHandle, KeyedStateHandle, KeyGroupRange, StateFile
from ..linking import Transfer, decisions_of, snapshot_plan, summed
from ..strategy import Decision, Method, Sharing
from ..uploader import StateUploader, Upload
from .database import KeyedState
from .key_groups import PREFIX_BYTES, key_groups_between
from .lineage import FileOf
from .manifest import TableFile, UnknownManifest, read_manifest, write_manifest
from .options import RocksOptions
from .rocksdb import open_rocksdb

_WITHOUT_STATE = (".log", "LOCK", "LOG", "IDENTITY")
_REFERENCED = Decision(Method.REUSE, "a completed checkpoint has the file")
_LONGEST_TAIL = b"\xff" * 8


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """What a snapshot did.

    Args:
        bytes_reused: of SST files that an earlier checkpoint has.
        compacted: whether level 0 was sorted first.
        transfers: how every file got into the checkpoint and why, as `transfer.strategy` says it.
    """

    handle: KeyedStateHandle
    copy: CopyReport
    bytes_reused: int
    files_reused: int
    compacted: bool
    transfers: tuple[Transfer, ...] = ()


def snapshot(
    state: KeyedState,
    location: CheckpointLocation,
    uploader: StateUploader,
    closeables: CloseableRegistry,
    *,
    full: bool = False,
    progress: Progress | None = None,
) -> KeyedStateHandle:
    """Bring the state as it is now into a checkpoint.

    SST files of the newest completed checkpoint below the same base are referenced, not uploaded.
    Call ``state.completed(id)`` once the checkpoint exists, else nothing of it is ever referenced.

    Args:
        full: upload every file.

    Raises:
        CopyFailed: a file could not be uploaded; nothing of this snapshot stays in the store.
        CopyCancelled: ``closeables`` was closed.
    """
    return take(state, location, uploader, closeables, full=full, progress=progress).handle


def take(
    state: KeyedState,
    location: CheckpointLocation,
    uploader: StateUploader,
    closeables: CloseableRegistry,
    *,
    full: bool = False,
    progress: Progress | None = None,
) -> SnapshotReport:
    """Like `snapshot`, and tell what it did."""
    compacted = _compact_if_unsorted(state)
    with state.frozen() as frozen:
        tables, private = _described(frozen, state.options)
        known: FileOf = {} if full else state.lineage.reusable(location.base)
        new = [table for table in tables if (table.unique_id or "") not in known]
        uploads = [Upload(os.path.join(frozen, table.name), SHARED) for table in new]
        uploads += [Upload(path, EXCLUSIVE) for path in private]
        sharing = Sharing.FORWARD if full else Sharing.FORWARD_BACKWARD
        plan = snapshot_plan(uploader.file_systems, location, frozen, sharing)
        handles, report = uploader.upload(location, uploads, closeables, progress=progress, strategy=plan)
    uploaded = dict(zip((table.name for table in new), handles, strict=False))
    files = tuple(_state_file(table, uploaded.get(table.name) or known[str(table.unique_id)]) for table in tables)
    handle = KeyedStateHandle(
        state.key_groups,
        state.max_parallelism,
        state.backend_id,
        location.checkpoint_id,
        files,
        tuple(StateFile(os.path.basename(path), each) for path, each in zip(private, handles[len(new) :], strict=True)),
    )
    identified = {table.unique_id: file.handle for table, file in zip(tables, files, strict=True) if table.unique_id}
    state.lineage.begin(location.checkpoint_id, location.base, identified)
    state.lineage.save(state.directory)
    reused = [file for file in files if file.name not in uploaded]
    inline = [(plan.for_file(file.name, file.handle), file.size) for file in _inline(handle) if file not in reused]
    transfers = (
        *summed((_REFERENCED, file.size) for file in reused),
        *decisions_of(plan, report.files, uploaded=True),
        *summed(inline),
    )
    return SnapshotReport(handle, report, sum(file.size for file in reused), len(reused), compacted, transfers)


def _inline(handle: KeyedStateHandle) -> list[StateFile]:
    return [file for file in (*handle.shared, *handle.private) if isinstance(file.handle, InMemoryHandle)]


def _state_file(table: TableFile, handle: object) -> StateFile:
    return StateFile(table.name, handle, table.first_key, _last_key(table), table.level)  # type: ignore[arg-type]


def _last_key(table: TableFile) -> bytes:
    """The last key, or where a range deletion ends just before a key group a bound in the key group before it.

    The handle knows inclusive keys only; the bound keeps the file out of a range it does not touch.
    """
    key = table.last_key
    if not table.ends_before_last_key or len(key) != PREFIX_BYTES or not any(key):
        return key
    return (int.from_bytes(key, "big") - 1).to_bytes(PREFIX_BYTES, "big") + _LONGEST_TAIL


def key_groups_of_table(table: TableFile) -> KeyGroupRange:
    """The key groups that an SST file spans."""
    return key_groups_between(table.first_key, _last_key(table))


def _compact_if_unsorted(state: KeyedState) -> bool:
    """Sort level 0 where it holds more than the configured share and more than one file's worth of bytes."""
    if state.options.unsorted_share >= 1:
        return False
    state.flush()
    sizes = [(file["level"], file["size"]) for file in state._open.live_files()]
    unsorted = sum(size for level, size in sizes if level == 0)
    share = state.options.unsorted_share * sum(size for _, size in sizes)
    if unsorted <= max(share, state.options.target_file_size):
        return False
    state.compact()
    return True


def _described(frozen: str, options: RocksOptions) -> tuple[tuple[TableFile, ...], list[str]]:
    """The SST files of a frozen database, and the paths of the other files that make it one."""
    try:
        manifest = read_manifest(frozen)
    except UnknownManifest:
        return _by_opening(frozen, options), _others(frozen)
    rewritten = os.path.join(frozen, "rewritten")
    os.mkdir(rewritten)
    # The log of edits grows without end; its sum is a few bytes per file and fits into the metadata.
    write_manifest(rewritten, replace(manifest, log_number=0))
    originals = [path for path in _others(frozen) if not os.path.basename(path).startswith(("MANIFEST-", "CURRENT"))]
    return manifest.files, sorted([*_others(rewritten), *originals])


def _others(directory: str) -> list[str]:
    files = sorted(entry.path for entry in os.scandir(directory) if entry.is_file())
    return [path for path in files if not path.endswith((".sst", *_WITHOUT_STATE))]


def _by_opening(frozen: str, options: RocksOptions) -> tuple[TableFile, ...]:
    """What RocksDB itself says of the files, where its MANIFEST is not understood: no identity, so never reused."""
    database = open_rocksdb(frozen, options, read_only=True)
    try:
        found = database.live_files()
    finally:
        database.close()
    suffix = bytes(8)
    return tuple(
        TableFile(
            int(each["name"].strip("/").removesuffix(".sst")),
            each["level"],
            each["size"],
            each["start_key"] + suffix,
            each["end_key"] + suffix,
            0,
            0,
        )
        for each in found
    )
