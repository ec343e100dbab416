"""Checkpoints under a base: a checkpoint exists if and only if its ``_metadata`` does."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from ...backends.errors import (
    CheckpointError,
    CheckpointNotFound,
    DestinationError,
    IntegrityError,
    SourceNotFound,
)
from ...backends.options import Configuration
from ...backends.request import locate
from ..objects import Objects
from .layout import METADATA, CheckpointLocation
from .metadata import MAGIC, SAVEPOINT, CheckpointMetadata, decode, encode

#: No checkpoint's metadata is as long: a longer document is another program's, or damage. Bytes.
LONGEST_DOCUMENT = 1 << 30


class CheckpointStore:
    """Reads, writes and lists checkpoints on any store that `Objects` reaches."""

    def __init__(self, configuration: Configuration, *, objects: Objects | None = None) -> None:
        self.objects = objects or Objects(configuration)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, checkpoint_uri: str) -> tuple[CheckpointLocation, CheckpointMetadata]:
        """Location and metadata of the checkpoint ``<base>/chk-<n>``, or of a savepoint in any directory.

        Raises:
            CheckpointNotFound: there is no such checkpoint.
            CheckpointError: its metadata is damaged, or is another checkpoint's.
        """
        location = CheckpointLocation.named(checkpoint_uri)
        try:
            document = self.objects.read(location.metadata, at_most=LONGEST_DOCUMENT)
        except IntegrityError as error:
            raise CheckpointError(f"{location}: {error.args[0]}", remedy="use another checkpoint") from error
        except SourceNotFound as error:
            raise CheckpointNotFound(
                f"{location}: there is no checkpoint: {error.args[0]}",
                remedy="check the name; a checkpoint without _metadata was never completed",
            ) from error
        metadata = decode(document, name=str(location))
        if metadata.kind == SAVEPOINT:
            return CheckpointLocation.savepoint(checkpoint_uri, metadata.checkpoint_id), metadata
        if location.is_savepoint:
            raise CheckpointError(
                f"{location}: the metadata is that of a checkpoint, which keeps its place and name",
                remedy=f"it belongs under chk-{metadata.checkpoint_id}, beside the files that it shares",
            )
        if metadata.checkpoint_id != location.checkpoint_id:
            raise CheckpointError(
                f"{location}: the metadata is that of checkpoint {metadata.checkpoint_id}",
                remedy=f"it belongs under chk-{metadata.checkpoint_id}",
            )
        return location, metadata

    def is_snapshot(self, uri: str) -> bool:
        """Whether a directory or its ``_metadata`` is that of a checkpoint or savepoint, however damaged its body is.

        Other programs, such as writers of Parquet, name files ``_metadata`` too.
        """
        try:
            location = CheckpointLocation.named(uri)
            return self.objects.read(location.metadata, at_most=LONGEST_DOCUMENT).startswith(MAGIC)
        except (CheckpointError, IntegrityError, SourceNotFound):
            return False

    def write(self, location: CheckpointLocation, metadata: CheckpointMetadata) -> None:
        """Complete a checkpoint: the last write, after every file of it is in its place.

        Raises:
            CheckpointError: the checkpoint exists already, or the metadata is of another id.
        """
        if metadata.checkpoint_id != location.checkpoint_id:
            raise CheckpointError(f"{location}: the metadata is that of checkpoint {metadata.checkpoint_id}")
        try:
            self.objects.write(location.metadata, encode(metadata), only_if_absent=True)
        except DestinationError as error:
            if error.errno != errno.EEXIST:
                raise
            raise CheckpointError(
                f"{location}: this checkpoint exists already",
                remedy="another job may write under the same base: give each its own",
            ) from error

    def list(self, base: str) -> list[CheckpointLocation]:
        """Completed checkpoints under a base, oldest id first."""
        root = base_of(base)
        found = (each.uri for each in self.objects.list(f"{root}/chk-") if each.uri.endswith(f"/{METADATA}"))
        return sorted(_directly_below(root, found), key=lambda each: each.checkpoint_id)

    def others(self, base: str) -> tuple[CheckpointLocation, ...]:
        """Snapshots at or anywhere below a directory, by name, but for the checkpoints that `list` has: savepoints.

        All of it is listed for that.
        """
        root = base_of(base)
        known = {each.metadata for each in self.list(root)}
        found = (each.uri for each in self.objects.list(root + "/") if each.uri.endswith(f"/{METADATA}"))
        candidates = (uri for uri in sorted(found) if uri not in known)
        return tuple(CheckpointLocation.named(uri) for uri in candidates if self.is_snapshot(uri))

    def latest(self, base: str) -> CheckpointLocation | None:
        """The completed checkpoint with the highest id, if there is one."""
        return max(self.list(base), key=lambda each: each.checkpoint_id, default=None)

    def close(self) -> None:
        self.objects.close()


def base_of(base: str) -> str:
    """As `CheckpointLocation.parse` gives it: absolute where local, no slash at the end."""
    plain = locate(base).is_local and "://" not in base
    return (os.path.abspath(base) if plain else base).rstrip("/")


def _directly_below(base: str, documents: Iterable[str]) -> Iterator[CheckpointLocation]:
    for uri in documents:
        with contextlib.suppress(CheckpointError):
            location = CheckpointLocation.parse(uri)
            if location.base == base:
                yield location
