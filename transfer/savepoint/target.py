"""The directory that becomes a savepoint, or is left as it was."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from ...backends.errors import CheckpointError, DestinationError, SourceNotFound, TransferError
from ...backends.request import locate
from ..checkpoint.layout import EXCLUSIVE, SHARED, TASKOWNED, CheckpointLocation
from ..checkpoint.metadata import CheckpointMetadata, encode
from ..handles import RelativeFileHandle
from ..objects import Objects

_LOG = logging.getLogger("statelift")
_CHECKPOINT = re.compile(r"chk-(0|[1-9][0-9]*)")


def target_of(uri: str, source: CheckpointLocation) -> CheckpointLocation:
    """The savepoint that shall be at ``uri``, made of the checkpoint ``source``.

    Raises:
        CheckpointError: a coordinator or an orphan sweep would take it for its own there.
    """
    target = CheckpointLocation.savepoint(uri, source.checkpoint_id)
    if _CHECKPOINT.fullmatch(target.directory.rpartition("/")[2]):
        raise CheckpointError(
            f"{target}: a savepoint cannot have a checkpoint's name", remedy="any other name than chk-<number>"
        )
    owned = [source.directory] if source.is_savepoint else [source.shared, source.taskowned]
    below = target.directory.removeprefix(source.base + "/").partition("/")[0]
    inside = target.directory.startswith(source.base + "/") and _CHECKPOINT.fullmatch(below)
    if inside or any(f"{target.directory}/".startswith(f"{each}/") for each in owned):
        raise CheckpointError(
            f"{target}: a savepoint cannot lie inside the checkpoint's own directories",
            remedy=f"a directory outside chk-*, {SHARED} and {TASKOWNED}",
        )
    return target


class NewSavepoint:
    """A savepoint that is being written. It exists from `complete` on."""

    def __init__(self, location: CheckpointLocation, objects: Objects) -> None:
        self.location = location
        self._objects = objects
        self._files: list[str] = []
        self._fixed: list[str] = []
        self._document: bytes | None = None

    def place(self, size: int, crc64nvme: int | None = None, *, suffix: str = "") -> RelativeFileHandle:
        """The handle of a file that is going to be written under a random name."""
        handle = RelativeFileHandle(EXCLUSIVE, f"{uuid.uuid4()}{suffix}", size, crc64nvme)
        self._files.append(self.location.resolve(handle).uri)
        return handle

    def place_fixed(self, name: str, size: int, crc64nvme: int | None = None) -> RelativeFileHandle:
        """Likewise under a name that programs look for; every attempt writes the same bytes there."""
        handle = RelativeFileHandle(EXCLUSIVE, name, size, crc64nvme)
        self._fixed.append(self.location.resolve(handle).uri)
        return handle

    def complete(self, metadata: CheckpointMetadata) -> None:
        """The last write.

        Raises:
            CheckpointError: another savepoint was completed here meanwhile.
        """
        self._document = encode(metadata)
        try:
            self._objects.write(self.location.metadata, self._document, only_if_absent=True)
        except TransferError as error:
            # The answer to a write that took effect may be lost, and its repetition be refused.
            with contextlib.suppress(TransferError):
                if self._stored() == self._document:
                    return
            if isinstance(error, DestinationError) and error.errno == errno.EEXIST:
                raise _taken(self.location) from error
            raise

    def _stored(self) -> bytes | None:
        try:
            return self._objects.read(self.location.metadata)
        except SourceNotFound:
            return None

    def undo(self) -> None:
        """Remove what was written, ``_metadata`` first; another savepoint's stays."""
        try:
            stored = self._stored()
            if stored is not None and stored == self._document:
                self._objects.delete([self.location.metadata])
                stored = None
            self._objects.delete([*self._files, *(self._fixed if stored is None else ())])
        except TransferError as error:
            # The failure before is the one to report. What stays is named by no metadata.
            _LOG.warning("could not delete what a failed savepoint left in %s: %s", self.location, error)


def _taken(location: CheckpointLocation) -> CheckpointError:
    return CheckpointError(f"{location}: there is a snapshot already", remedy="name a new directory")


@contextmanager
def new_savepoint(location: CheckpointLocation, objects: Objects) -> Iterator[NewSavepoint]:
    """Write a savepoint in this block; if it fails nothing of it stays.

    Raises:
        CheckpointError: the directory has a ``_metadata``.
    """
    if objects.exists(location.metadata):
        raise _taken(location)
    made = _missing_directories(location.directory)
    new = NewSavepoint(location, objects)
    try:
        yield new
    except BaseException:
        new.undo()
        for directory in made:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        raise


def _missing_directories(uri: str) -> list[str]:
    """Of a local target: it and its ancestors as far as they do not exist, innermost first."""
    path = locate(uri)
    missing: list[str] = []
    directory = path.key
    while path.is_local and not os.path.lexists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    return missing
