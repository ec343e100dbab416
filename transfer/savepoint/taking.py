"""Taking a savepoint of a checkpoint.

from statelift.transfer.savepoint import savepoint
savepoint("s3://state/job/chk-42", "s3://state/savepoints/before-upgrade")
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum

from ...backends.closeables import CloseableRegistry
from ...backends.errors import UsageError
from ...backends.options import Configuration
from ...backends.report import CopyReport, Progress
from ..checkpoint.checkpoints import CLAIMED
from ..checkpoint.layout import CheckpointLocation
from ..checkpoint.metadata import SAVEPOINT, CheckpointMetadata
from ..checkpoint.store import CheckpointStore
from ..file_systems import FileSystems
from ..handles import KeyedStateHandle
from .canonical import write_canonical
from .native import write_native
from .target import NewSavepoint, new_savepoint, target_of

TYPE = "savepoint.type"  # property


class SavepointType(StrEnum):
    """Files as the state backend wrote them, or rows that anyone can read (FLIP-203)."""

    NATIVE = "native"
    CANONICAL = "canonical"

    @classmethod
    def of(cls, name: str) -> SavepointType:
        """
        Raises:
            UsageError: there is no such type.
        """
        try:
            return cls(name)
        except ValueError:
            raise UsageError(f"there is no savepoint of type {name!r}", remedy="native or canonical") from None


@dataclass(frozen=True, kw_only=True)
class SavepointReport:
    """A savepoint that is complete.

    Args:
        copy: of a native one its files; of a canonical one what was read and what was written.
        seconds: all of it.
    """

    location: CheckpointLocation
    metadata: CheckpointMetadata
    type: SavepointType
    copy: CopyReport
    seconds: float


def savepoint(
    checkpoint: str,
    target: str,
    configuration: Configuration | None = None,
    *,
    type: str = SavepointType.NATIVE,
    closeables: CloseableRegistry | None = None,
    progress: Progress | None = None,
    deadline: float | None = None,
    scratch: str | os.PathLike[str] | None = None,
    store: CheckpointStore | None = None,
    file_systems: FileSystems | None = None,
) -> SavepointReport:
    """Make a savepoint of a completed checkpoint, or of a savepoint, in a directory of its own.

    It shares no file with any checkpoint and may be moved by any tool. ``_metadata`` is the last
    of its files; if anything fails before, nothing of it stays. A process that is killed leaves
    files without a ``_metadata``: ``statelift checkpoint orphans`` of the directory, or of one
    above it, finds and removes them once they are old enough. Or take the savepoint again, into
    the same directory or another.

    Args:
        checkpoint: ``<base>/chk-<n>``, or a savepoint's directory.
        target: the directory to make.
        type: ``native`` or ``canonical``.
        scratch: a local directory for a canonical one, with room for the state of one subtask.
        store: used instead of one that is made here, as are ``file_systems``.

    Raises:
        CheckpointNotFound: there is no such checkpoint.
        CheckpointError: its metadata is damaged, or there is a snapshot at ``target`` already.
        UsageError: no such type.
        CopyFailed: a file is missing, denied or corrupt.
        CopyCancelled: ``closeables`` was closed.
    """
    kind = SavepointType.of(type)
    configuration = configuration or Configuration()
    with ExitStack() as block:
        store = store or block.enter_context(CheckpointStore(configuration))
        file_systems = file_systems or block.enter_context(FileSystems(configuration))
        taking = _Taking(file_systems, closeables or CloseableRegistry(), progress, deadline, scratch)
        return taking.take(store, checkpoint, target, kind)


@dataclass(frozen=True)
class _Taking:
    """What both types of savepoint are written with."""

    file_systems: FileSystems
    closeables: CloseableRegistry
    progress: Progress | None
    deadline: float | None
    scratch: str | os.PathLike[str] | None

    def take(self, store: CheckpointStore, checkpoint: str, target: str, kind: SavepointType) -> SavepointReport:
        started = time.monotonic()
        source, metadata = store.read(checkpoint)
        with new_savepoint(target_of(target, source), store.objects) as new:
            states, copy = self._write(kind, source, metadata, new)
            self.closeables.check()
            taken = replace(
                metadata,
                states=states,
                kind=SAVEPOINT,
                created=time.time(),
                properties={**_own(metadata.properties), TYPE: kind.value},
            )
            new.complete(taken)
        seconds = time.monotonic() - started
        return SavepointReport(location=new.location, metadata=taken, type=kind, copy=copy, seconds=seconds)

    def _write(
        self, kind: SavepointType, source: CheckpointLocation, metadata: CheckpointMetadata, new: NewSavepoint
    ) -> tuple[tuple[KeyedStateHandle, ...], CopyReport]:
        what = source, metadata, new, self.file_systems, self.closeables
        if kind is SavepointType.NATIVE:
            return write_native(*what, progress=self.progress, deadline=self.deadline)
        return write_canonical(*what, progress=self.progress, deadline=self.deadline, scratch=self.scratch)


def _own(properties: Mapping[str, str]) -> dict[str, str]:
    """What the job itself wanted to find again."""
    return {key: value for key, value in properties.items() if key != CLAIMED}
