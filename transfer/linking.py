"""Reuse on one disk: an SST file gets a second name, a hard link, instead of a copy.

No byte is read or moved. Either side deletes its own name only, so neither can take the file from
the other. Everything else is copied, as `transfer.strategy` decides.
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
from .handles import InMemoryHandle, SegmentHandle, StateFile, StateHandle
from .strategy import FORCED, ClaimMode, Decision, Method, Plan, Restore, plan_restore_transfer

HARD_LINK = "hard-link"
_TABLE = ".sst"
_POOLED = Decision(Method.REUSE, "this disk has the file already")


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
    """How some of a restore's files get to the database, and why."""

    decision: Decision
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.decision.method.value}: {self.decision.reason}"


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
        )
    )


def _copies_paths(file_systems: FileSystems, source: str, destination: str) -> bool:
    try:
        return file_systems.choose(source, destination).name != STREAM
    except TransferError:
        return False


def decide(plan: Plan, location: CheckpointLocation, handle: StateHandle, path: str) -> Decision:
    """How a handle's bytes would get to a path."""
    may_link = (
        plan.decision.reason != FORCED
        and not isinstance(handle, InMemoryHandle | SegmentHandle)
        and path.endswith(_TABLE)
    )
    link = may_link and on_one_disk(location.resolve(handle).uri, path)  # type: ignore[arg-type]
    return plan.for_file(os.path.basename(path), handle, link=link)


def decisions_of(plan: Plan, files: Iterable[CopiedFile]) -> tuple[Transfer, ...]:
    """How files did get to the database: links that were refused are seen as the copies they became."""
    found: dict[Decision, list[int]] = {}
    for file in files:
        found.setdefault(_decision_of(plan, file), []).append(file.bytes)
    return tuple(Transfer(decision, len(sizes), sum(sizes)) for decision, sizes in found.items())


def _decision_of(plan: Plan, file: CopiedFile) -> Decision:
    name = os.path.basename(file.request.destination)
    if file.method == "inline":
        return plan.for_file(name, InMemoryHandle(b""))
    if file.method == "reuse":
        return _POOLED
    if file.method == HARD_LINK:
        return plan.for_file(name, link=True)
    method = Method.BYTES_COPY if file.method == STREAM else Method.PATHS_COPY
    return Decision(method, plan.for_file(name).reason)


def expected_transfers(
    file_systems: FileSystems, location: CheckpointLocation, files: Iterable[StateFile], directory: str
) -> tuple[Transfer, ...]:
    """How a restore of these files into a directory would get them, without doing it."""
    plan = restore_plan(file_systems, location, directory)
    found: dict[Decision, list[int]] = {}
    for file in files:
        decision = decide(plan, location, file.handle, os.path.join(directory, file.name))
        found.setdefault(decision, []).append(file.size)
    return tuple(Transfer(decision, len(sizes), sum(sizes)) for decision, sizes in found.items())


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
    file_systems: FileSystems,
    closeables: CloseableRegistry,
    *,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> tuple[list[CopiedFile], list[CopyRequest]]:
    """Link what may be linked: (done, what is left to copy).

    Args:
        names: the database's name for each file, where the destination does not bear it.
    """
    if file_systems.configuration.of(ReuseOptions).force_copy:
        return [], list(requests)
    done: list[CopiedFile] = []
    left: list[CopyRequest] = []
    for index, request in enumerate(requests):
        name = names[index] if names is not None else request.destination
        linked = _link(request, closeables) if name.endswith(_TABLE) and not request.is_range else None
        if linked is None:
            left.append(request)
        else:
            done.append(linked)
            if progress:
                progress(request, linked.bytes)
    return done, left


def _link(request: CopyRequest, closeables: CloseableRegistry) -> CopiedFile | None:
    """None where it must be copied; a file of another size as well, for the copy to refuse."""
    started = time.monotonic()
    if not (locate(request.source).is_local and locate(request.destination).is_local):
        return None
    closeables.check()
    source, destination = locate(request.source).key, locate(request.destination).key
    try:
        found = os.lstat(source)
        if not stat.S_ISREG(found.st_mode) or request.size not in {None, found.st_size}:
            return None
        os.makedirs(os.path.dirname(os.path.abspath(destination)), exist_ok=True)
        os.link(source, destination)
    except OSError:
        return None
    return CopiedFile(request, HARD_LINK, found.st_size, time.monotonic() - started)
