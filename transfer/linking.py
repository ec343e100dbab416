"""Carrying out what `transfer.strategy` decides about files on disks, and telling what was done and why.

Reuse on a disk is a second name for an SST file. No byte is read or moved. A hard link is a file of
its own: either side deletes its own name only, so neither can take the file from the other. A
symbolic link, where the restore table says reuse, reads a checkpoint's file where it lies.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..backends.closeables import CloseableRegistry
from ..backends.errors import TransferError
from ..backends.options import OptionGroup, option, parse_bool
from ..backends.report import CopiedFile, Progress
from ..backends.request import CopyRequest, locate
from .checkpoint.layout import CheckpointLocation
from .file_systems import STREAM, FileSystems
from .files.second_name import HARD_LINK, SYMBOLIC_LINK, second_name
from .handles import FileHandle, InMemoryHandle, SegmentHandle, StateFile, StateHandle
from .strategy import (
    ClaimMode,
    Decision,
    Method,
    Plan,
    Restore,
    Sharing,
    Snapshot,
    plan_restore_transfer,
    plan_snapshot,
)

LINKS = frozenset({HARD_LINK, SYMBOLIC_LINK})
_POOLED = Decision(Method.REUSE, "this disk has the file already")
_REFUSED = "no link can be made of it"


@dataclass(frozen=True, kw_only=True)
class ReuseOptions(OptionGroup):
    """Option ``state.force-copy``."""

    force_copy: bool = option(
        "state.force-copy",
        False,
        parse=parse_bool,
        shown="false",
        help="Copy SST files also where checkpoint and database are on one disk and could share them.",
    )


@dataclass(frozen=True, slots=True)
class Transfer:
    """How some files of a snapshot or restore get to the other side, and why."""

    decision: Decision
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.decision.method.value}: {self.decision.reason}"


def snapshot_plan(
    file_systems: FileSystems,
    location: CheckpointLocation,
    directory: str,
    sharing: Sharing = Sharing.FORWARD_BACKWARD,
) -> Plan:
    """The snapshot table's decision for a RocksDB database, whose files are local to the worker."""
    return plan_snapshot(
        Snapshot(
            working=None,
            target=location.directory,
            shared=location.shared,
            sharing=sharing,
            paths_copy=_copies_paths(file_systems, os.path.join(directory, "x"), f"{location.shared}/x"),
            force_copy=file_systems.configuration.of(ReuseOptions).force_copy,
            real_files=True,
        )
    )


def restore_plan(
    file_systems: FileSystems, location: CheckpointLocation, directory: str, claim: ClaimMode = ClaimMode.NO_CLAIM
) -> Plan:
    """The restore table's decision for a RocksDB database, whose files are local to the worker."""
    return plan_restore_transfer(
        Restore(
            working=None,
            sources=(location.shared,),
            own_shared=location.shared,
            claim=claim,
            paths_copy=_copies_paths(file_systems, f"{location.shared}/x", os.path.join(directory, "x")),
            force_copy=file_systems.configuration.of(ReuseOptions).force_copy,
            real_files=True,
        )
    )


def _copies_paths(file_systems: FileSystems, source: str, destination: str) -> bool:
    try:
        return file_systems.choose(source, destination).name != STREAM
    except TransferError:
        return False


def decisions_of(plan: Plan, files: Iterable[CopiedFile], *, uploaded: bool = False) -> tuple[Transfer, ...]:
    """How files did get to the other side: links that were refused are seen as the copies they became.

    Args:
        uploaded: whether the database's name for a file is that of its source.
    """
    return summed((_decision_of(plan, file, uploaded), file.bytes) for file in files)


def summed(decided: Iterable[tuple[Decision, int]]) -> tuple[Transfer, ...]:
    """One transfer for each decision about files of some bytes."""
    found: dict[Decision, list[int]] = {}
    for decision, size in decided:
        found.setdefault(decision, []).append(size)
    return tuple(Transfer(decision, len(sizes), sum(sizes)) for decision, sizes in found.items())


def _decision_of(plan: Plan, file: CopiedFile, uploaded: bool) -> Decision:
    name = os.path.basename(file.request.source if uploaded else file.request.destination)
    if file.method == "inline":
        return plan.for_file(name, InMemoryHandle(b""))
    if file.method == "reuse":
        return _POOLED
    if file.method in LINKS:
        return plan.for_file(name, _handle_of(file.request), link=True)
    decision = plan.for_file(name, _handle_of(file.request))
    method = Method.BYTES_COPY if file.method == STREAM else Method.PATHS_COPY
    return Decision(method, _REFUSED if decision.method is Method.REUSE else decision.reason)


def _handle_of(request: CopyRequest) -> FileHandle | SegmentHandle:
    whole = FileHandle(request.source, request.size or 0)
    return SegmentHandle(whole, request.offset, request.length or 0) if request.is_range else whole


def expected_transfers(
    file_systems: FileSystems, location: CheckpointLocation, files: Iterable[StateFile], directory: str
) -> tuple[Transfer, ...]:
    """How a restore of these files into a directory would get them, without doing it."""
    plan = restore_plan(file_systems, location, directory)
    return summed((_expected(plan, location, file, directory), file.size) for file in files)


def _expected(plan: Plan, location: CheckpointLocation, file: StateFile, directory: str) -> Decision:
    handle: StateHandle = file.handle
    link = not isinstance(handle, InMemoryHandle) and on_one_disk(
        location.resolve(handle).uri,  # type: ignore[arg-type]
        os.path.join(directory, file.name),
    )
    return plan.for_file(file.name, handle, link=link)


def on_one_disk(source: str, destination: str) -> bool:
    """Whether a hard link to ``source`` can be made at ``destination``."""
    if not (locate(source).is_local and locate(destination).is_local):
        return False
    with contextlib.suppress(OSError):
        found = os.lstat(locate(source).key)
        return stat.S_ISREG(found.st_mode) and found.st_dev == _device(locate(destination).key)
    return False


def _device(path: str) -> int:
    """Device of the directory that a path lies in, or of the first one above it that exists."""
    directory = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(directory) and directory != os.path.dirname(directory):
        directory = os.path.dirname(directory)
    return os.stat(directory).st_dev


def link_files(
    requests: Sequence[CopyRequest],
    plan: Plan,
    closeables: CloseableRegistry,
    *,
    uploads: bool = False,
    progress: Progress | None = None,
) -> tuple[list[CopiedFile], list[CopyRequest]]:
    """Give a second name to what the plan lets be reused: (done, what is left to copy).

    Args:
        uploads: whether the database's name for a file is that of its source. The new name is then
            a checkpoint's, which must not depend on the database's: a hard link, never a symbolic one.
    """
    done: list[CopiedFile] = []
    left: list[CopyRequest] = []
    symbolic = not uploads and plan.decision.method is Method.REUSE
    for request in requests:
        linked = None
        if _is_reused(plan, request, uploads):
            closeables.check()
            linked = _link(request, symbolic=symbolic)
        if linked is None:
            left.append(request)
        else:
            done.append(linked)
            if progress:
                progress(request, linked.bytes)
    return done, left


def _is_reused(plan: Plan, request: CopyRequest, uploads: bool) -> bool:
    if not (locate(request.source).is_local and locate(request.destination).is_local):
        return False
    name = os.path.basename(request.source if uploads else request.destination)
    link = on_one_disk(request.source, request.destination)
    return plan.for_file(name, _handle_of(request), link=link).method is Method.REUSE


def _link(request: CopyRequest, *, symbolic: bool) -> CopiedFile | None:
    """None where it must be copied; a file of another size as well, for the copy to refuse."""
    started = time.monotonic()
    source, destination = (os.path.abspath(locate(each).key) for each in (request.source, request.destination))
    try:
        found = os.lstat(source)
        if not stat.S_ISREG(found.st_mode) or request.size not in {None, found.st_size}:
            return None
        os.makedirs(os.path.dirname(destination), exist_ok=True)
        how = second_name(source, destination, symbolic=symbolic)
    except OSError:
        return None
    return CopiedFile(request, how, found.st_size, time.monotonic() - started)
