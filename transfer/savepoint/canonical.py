"""Canonical savepoints: the rows themselves, whatever keeps them, for others to read and for any restore.

Each subtask's state is restored into a scratch directory and read in order. Disk is needed for
one subtask's state and one Parquet file at a time, memory for one row group.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from ...backends.checksums import crc64nvme_of_file
from ...backends.closeables import CloseableRegistry
from ...backends.errors import IntegrityError
from ...backends.locked_directories import attempt_directory
from ...backends.report import CopyReport, Progress
from ...backends.request import CopyRequest
from ..checkpoint.layout import CheckpointLocation
from ..checkpoint.metadata import CheckpointMetadata
from ..downloader import StateDownloader
from ..file_systems import FileSystems
from ..handles import KeyedStateHandle, RelativeFileHandle, StateFile
from ..keyed.database import KeyedState
from ..keyed.plan import PARQUET, plan_restore
from ..keyed.restore import restore
from .rows_file import COMMON, PARQUET_SUFFIX, PART_BYTES, RowsFile, write_rows, write_schema
from .target import NewSavepoint


def write_canonical(
    source: CheckpointLocation,
    metadata: CheckpointMetadata,
    new: NewSavepoint,
    file_systems: FileSystems,
    closeables: CloseableRegistry,
    *,
    progress: Progress | None = None,
    deadline: float | None = None,
    scratch: str | os.PathLike[str] | None = None,
    part_bytes: int = PART_BYTES,
) -> tuple[tuple[KeyedStateHandle, ...], CopyReport]:
    """Write every subtask's rows.

    Args:
        progress: of what is read.
        scratch: a directory with room for one subtask's state; by default the system's temporary one.

    Raises:
        CopyFailed: a file could not be read or written.
        IntegrityError: a subtask's state is damaged.
        CopyCancelled: ``closeables`` was closed.
    """
    started = time.monotonic()
    ends = None if deadline is None else started + deadline
    with attempt_directory(os.fspath(scratch or tempfile.gettempdir())) as attempt:
        writing = _Writing(source, metadata, new, file_systems, closeables, attempt, progress, ends)
        common = writing.common()
        states = tuple(writing.state(state, common, part_bytes) for state in metadata.states)
    return states, CopyReport.joined(writing.copies, seconds=time.monotonic() - started)


class _Writing:
    def __init__(
        self,
        source: CheckpointLocation,
        metadata: CheckpointMetadata,
        new: NewSavepoint,
        file_systems: FileSystems,
        closeables: CloseableRegistry,
        attempt: str,
        progress: Progress | None,
        ends: float | None,
    ) -> None:
        self.source = source
        self.metadata = metadata
        self.new = new
        self.file_systems = file_systems
        self.closeables = closeables
        self.attempt = attempt
        self.progress = progress
        self.ends = ends
        self.copies: list[CopyReport] = []

    def common(self) -> StateFile:
        """The summary file, without which Spark takes ``_metadata`` for a Parquet file."""
        path = os.path.join(self.attempt, COMMON)
        write_schema(path)
        handle = self.new.place_fixed(COMMON, os.path.getsize(path), crc64nvme_of_file(path))
        self._upload(path, handle)
        return StateFile(COMMON, handle)

    def state(self, state: KeyedStateHandle, common: StateFile, part_bytes: int) -> KeyedStateHandle:
        parts = tuple(self._parts(state, part_bytes)) if len(state.key_groups) else ()
        return KeyedStateHandle(
            state.key_groups,
            state.max_parallelism,
            str(uuid.uuid4()),
            self.metadata.checkpoint_id,
            parts,
            (common,),
            format=PARQUET,
        )

    def _parts(self, state: KeyedStateHandle, part_bytes: int) -> Iterator[StateFile]:
        plan = plan_restore(self.metadata.states, state.key_groups)
        downloader = StateDownloader(self.file_systems)
        with attempt_directory(self.attempt) as own:
            directory, report = restore(
                plan,
                self.source,
                os.path.join(own, "state"),
                downloader,
                self.closeables,
                progress=self.progress,
                deadline=self._left(),
            )
            self.copies.append(report.copy)
            with (
                self._named(state),
                KeyedState.open(directory, configuration=self.file_systems.configuration, read_only=True) as rows,
            ):
                files = write_rows(rows.items(), own, self.closeables, part_bytes=part_bytes)
                for index, file in enumerate(files):
                    yield self._brought(file, f"part-{index:05}{PARQUET_SUFFIX}")

    @contextmanager
    def _named(self, state: KeyedStateHandle) -> Iterator[None]:
        """Say of a damaged block whose it is: the scratch directory is gone when the error is read."""
        try:
            yield
        except IntegrityError as error:
            own = state.key_groups
            name = f"{self.source}, the subtask of key groups {own.first} to {own.last}"
            raise IntegrityError(f"{name}: {error.args[0]}", remedy="use another checkpoint") from error

    def _brought(self, file: RowsFile, name: str) -> StateFile:
        size, checksum = os.path.getsize(file.path), crc64nvme_of_file(file.path)
        handle = self.new.place(size, checksum, suffix=PARQUET_SUFFIX)
        self._upload(file.path, handle)
        os.unlink(file.path)
        return StateFile(name, handle, file.smallest, file.largest)

    def _upload(self, path: str, handle: RelativeFileHandle) -> None:
        destination = self.new.location.resolve(handle).uri
        request = CopyRequest(path, destination, size=handle.size, crc64nvme=handle.crc64nvme)
        self.copies.append(self.file_systems.copy([request], self.closeables, deadline=self._left()))

    def _left(self) -> float | None:
        return None if self.ends is None else max(0.0, self.ends - time.monotonic())
