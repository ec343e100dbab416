"""One handle's files on their way into the database."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...backends.closeables import CloseableRegistry
from ...backends.errors import CheckpointError, TransferError
from ..checkpoint.layout import CheckpointLocation
from ..handles import KeyGroupRange, StateFile
from .key_groups import key_bounds, prefix_of
from .lineage import FileOf
from .manifest import Manifest, compose, read_manifest, write_manifest
from .options import RocksOptions
from .plan import PartPlan
from .rocksdb import compact_outside, delete_outside, ingest_rows, open_rocksdb, rocksdb_errors, rows
from .snapshot import key_groups_of_table

if TYPE_CHECKING:
    from rocksdict import Rdict


@dataclass
class Part:
    """What is taken over from one handle.

    Args:
        directory: that its files are downloaded to.
        manifest: of the files that go into the database; None while they are not understood, and
            where their rows must be copied.
        identified: the handle of each of these files by unique id.
    """

    plan: PartPlan
    directory: str
    manifest: Manifest | None = None
    identified: FileOf = field(default_factory=dict)

    @property
    def name(self) -> str:
        own = self.plan.handle.key_groups
        return f"the subtask of key groups {own.first} to {own.last}"

    @property
    def first_files(self) -> tuple[StateFile, ...]:
        """The files that are enough if the MANIFEST is understood."""
        private = (file for file in self.plan.handle.private if file.name.startswith(("CURRENT", "MANIFEST-")))
        return (*private, *self.plan.needed)

    @property
    def other_files(self) -> tuple[StateFile, ...]:
        first = {file.name for file in self.first_files}
        everything = (*self.plan.handle.private, *self.plan.handle.shared)
        return tuple(file for file in everything if file.name not in first)

    def understand(self, location: CheckpointLocation, *, joined: bool) -> None:
        """Read the MANIFEST and hold it against metadata and files.

        Args:
            joined: whether the files are to be joined with those of other parts.

        Raises:
            UnknownManifest: it cannot be trusted to say everything.
            CheckpointError: it is missing, or contradicts the metadata or a file's size.
        """
        try:
            manifest = read_manifest(self.directory)
        except OSError as error:
            raise CheckpointError(
                f"{location}: {self.name} has no usable MANIFEST: {error}", remedy="use another checkpoint"
            ) from error
        self._check(location, manifest)
        if joined:
            compose([manifest])
        self.manifest = manifest.only(file.name for file in self.plan.needed)
        handles = {file.name: file.handle for file in self.plan.needed}
        self.identified = {file.unique_id: handles[file.name] for file in self.manifest.files if file.unique_id}

    def _check(self, location: CheckpointLocation, manifest: Manifest) -> None:
        listed = {file.name: file for file in manifest.files}
        known = {file.name: file for file in self.plan.handle.shared}
        if len(known) != len(self.plan.handle.shared) or listed.keys() != known.keys():
            wrong = ", ".join(sorted(listed.keys() ^ known.keys()))
            raise CheckpointError(f"{location}: {self.name}: MANIFEST and metadata differ in {wrong or 'a name'}")
        for file in self.plan.needed:
            size, size_listed = os.path.getsize(os.path.join(self.directory, file.name)), listed[file.name].size
            if not size == size_listed == file.size:
                raise CheckpointError(
                    f"{location}, {file.name} of {self.name}: {size} bytes, "
                    f"{size_listed} in the MANIFEST, {file.size} in the metadata"
                )

    def straighten(self, options: RocksOptions, closeables: CloseableRegistry) -> bool:
        """Rewrite the files that reach out of the wanted key groups. Returns whether that helped.

        Raises:
            CopyCancelled: ``closeables`` was closed.
        """
        if self.manifest is None:
            return False
        write_manifest(self.directory, self.manifest)
        bounds = bounds_of(self.plan.wanted, self.plan.handle.max_parallelism)
        database = open_rocksdb(self.directory, options, automatic=False)
        try:
            with (
                rocksdb_errors(self.directory),
                contextlib.closing(database),
                closeables.registered(lambda: database.cancel_all_background(False)),
            ):
                delete_outside(database, *bounds)
                compact_outside(database, *bounds)
        except TransferError:
            # A cancelled compaction, and the close after it, end with an error of RocksDB's.
            closeables.check()
            raise
        self.manifest = inside(read_manifest(self.directory), self.plan.wanted)
        return self.manifest is not None

    def copy_rows(self, database: Rdict, options: RocksOptions, closeables: CloseableRegistry) -> None:
        """Read the wanted rows one by one, and ingest them: right whatever the files look like."""
        with contextlib.closing(open_rocksdb(self.directory, options, read_only=True)) as source:
            found = rows(source, self.directory, *key_bounds(self.plan.wanted))
            ingest_rows(database, found, os.path.join(self.directory, "rows.sst"), options, closeables)


def bounds_of(key_groups: KeyGroupRange, max_parallelism: int) -> tuple[bytes, bytes, bytes]:
    """First key of the key groups, first behind them, and first behind all there are."""
    return (*key_bounds(key_groups), prefix_of(max_parallelism))


def inside(manifest: Manifest, wanted: KeyGroupRange) -> Manifest | None:
    """The files inside the wanted range; None where one reaches out of it."""
    names = []
    for file in manifest.files:
        own = key_groups_of_table(file)
        if own.first >= wanted.first and own.last <= wanted.last:
            names.append(file.name)
        elif len(own.intersection(wanted)):
            return None
    return manifest.only(names)
