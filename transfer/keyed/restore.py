"""Restoring keyed state at any parallelism, with as few bytes moved and rewritten as can be.

Only SST files that overlap the subtask's key groups are downloaded. The database is made of them
by writing its MANIFEST anew, which takes milliseconds whatever the size, and then clipped by range
deletions. Several handles become one database in the same way, since their key ranges do not
overlap and so nothing in one can hide or outlive a key in another. That holds as long as every
file keeps to its handle's range. A file that an earlier rescale clipped does not: its deletions
and its dead rows reach into the neighbour. Where the neighbour still has the same file, it is
taken once and serves both. Otherwise such parts are first straightened, by compacting the files
that reach out. Where a MANIFEST is not understood the rows are copied instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...backends.closeables import CloseableRegistry
from ...backends.disk import writing
from ...backends.errors import CopyFailed, DestinationError, TransferError
from ...backends.locked_directories import attempt_directory
from ...backends.report import CopiedFile, CopyReport, Progress
from ..checkpoint.layout import CheckpointLocation
from ..downloader import Download, StateDownloader
from ..handles import KeyGroupRange, StateFile
from ..linking import Transfer, decisions_of, restore_plan
from ..strategy import ClaimMode
from .lineage import Lineage, absolute
from .manifest import UnknownManifest, compose, write_manifest
from .options import RocksOptions
from .parts import Part, bounds_of
from .plan import FilePlan, PartPlan, RestorePlan, plan_restore
from .rocksdb import delete_outside, open_rocksdb, rocksdb_errors

if TYPE_CHECKING:
    from rocksdict import Rdict

PHASES = ("transfer", "verify", "straighten", "open", "clip")


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did.

    Args:
        method: see `RestorePlan.method`.
        seconds: per phase: ``transfer``, ``verify`` (handles against MANIFEST; checksums are the
            transfer's), ``straighten``, ``open`` and ``clip`` (range deletions, rows copied).
        bytes_saved: of SST files that were not needed.
        fallbacks: why a part took a slower way, one line each.
        transfers: how the files got here and why, as `transfer.strategy` says it.
    """

    method: str
    key_groups: KeyGroupRange
    files: int
    bytes: int
    bytes_saved: int
    seconds: Mapping[str, float]
    copy: CopyReport
    fallbacks: tuple[str, ...] = ()
    transfers: tuple[Transfer, ...] = ()

    @property
    def seconds_outside_transfer(self) -> float:
        return sum(value for phase, value in self.seconds.items() if phase != "transfer")


def restore(
    plan: RestorePlan,
    location: CheckpointLocation,
    into: str | os.PathLike[str],
    downloader: StateDownloader,
    closeables: CloseableRegistry | None = None,
    *,
    claim: ClaimMode = ClaimMode.NO_CLAIM,
    progress: Progress | None = None,
    deadline: float | None = None,
) -> tuple[str, RestoreReport]:
    """Bring a subtask's state into a directory, for `KeyedState.open`.

    The directory appears whole or not at all. Files that are taken over unchanged are referenced,
    not uploaded, by the next snapshot below the same base; where the checkpoint is claimed or used
    in LEGACY mode, by the next snapshot below any base. SST files are hard links where checkpoint
    and directory are on one disk; their checksums are not compared then, since nothing is read.

    Raises:
        DestinationError: ``into`` exists and is not empty, or cannot be written.
        CopyFailed: a file is missing, short or corrupt; each error names checkpoint, subtask and file.
        CheckpointError: the files contradict the metadata.
        IntegrityError: RocksDB refuses a file.
        CopyCancelled: ``closeables`` was closed.
    """
    target = os.path.abspath(into)
    if os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise DestinationError(f"{target} exists already", remedy="restore into a new directory")
    parent = os.path.dirname(target)
    with writing(target), _parents_undone(parent), attempt_directory(parent) as attempt:
        kind = _rows_restore() if plan.method == "rows" else StateRestore
        closeables = closeables or CloseableRegistry()
        run = kind(plan, location, downloader, closeables, attempt, progress, deadline, claim)
        report = run()
        os.rename(run.workspace, target)
    return target, report


def _rows_restore() -> type[StateRestore]:
    """Imported late: it builds on this module, and needs pyarrow."""
    from ..savepoint.loading import RowsRestore

    return RowsRestore


@contextmanager
def _parents_undone(directory: str) -> Iterator[None]:
    """Remove again, if this block fails, the directories that were missing before it and are empty after it."""
    missing = []
    while not os.path.lexists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for each in missing:
                os.rmdir(each)
        raise


class StateRestore:
    """One restore, in a workspace that becomes the database's directory."""

    def __init__(
        self,
        plan: RestorePlan,
        location: CheckpointLocation,
        downloader: StateDownloader,
        closeables: CloseableRegistry,
        attempt: str,
        progress: Progress | None,
        deadline: float | None,
        claim: ClaimMode = ClaimMode.NO_CLAIM,
    ) -> None:
        self.plan = plan
        self.location = location
        self.downloader = downloader
        self.closeables = closeables
        self.claim = claim
        self.strategy = restore_plan(downloader.file_systems, location, attempt, claim)
        self.progress = progress
        self.ends = None if deadline is None else time.monotonic() + deadline
        self.options = downloader.file_systems.configuration.of(RocksOptions)
        self.workspace = os.path.join(attempt, "state")
        os.mkdir(self.workspace)
        self.parts = [Part(each, os.path.join(attempt, f"part-{i}")) for i, each in enumerate(plan.sources)]
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.copies: list[CopyReport] = []
        self.fallbacks: list[str] = []

    def __call__(self) -> RestoreReport:
        with self._phase("transfer"):
            self._download([(part, file) for part in self.parts for file in part.first_files])
        for part in self.parts:
            self._understand(part)
        if len(self.parts) > 1 and not self._joins_as_it_is():
            with self._phase("straighten"):
                self._straighten()
        self._assemble()
        self._lineage().save(self.workspace)
        copy = CopyReport.joined(self.copies, seconds=self.seconds["transfer"])
        saved = self.plan.bytes + self.plan.bytes_saved - sum(file.bytes for file in copy.files if _is_table(file))
        return RestoreReport(
            self.plan.method,
            self.plan.key_groups,
            len(copy.files),
            copy.bytes,
            max(0, saved),
            dict(self.seconds),
            copy,
            tuple(self.fallbacks),
            decisions_of(self.strategy, copy.files),
        )

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self.closeables.check()
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - started

    def _download(self, files: Sequence[tuple[Part, StateFile]]) -> None:
        """Download files to the directories of their parts; an SST file that several have, once."""
        paths: dict[str, tuple[Part, StateFile]] = {}
        downloads: list[Download] = []
        first: dict[object, str] = {}
        again: list[tuple[str, str]] = []
        for part, file in files:
            path = os.path.join(part.directory, file.name)
            paths[path] = part, file
            if file.level is not None and first.setdefault(file.handle, path) != path:
                again.append((first[file.handle], path))
            else:
                downloads.append(Download(file.handle, path))
        left = None if self.ends is None else max(0.0, self.ends - time.monotonic())
        try:
            report = self.downloader.download(
                self.location,
                downloads,
                self.closeables,
                progress=self.progress,
                deadline=left,
                strategy=self.strategy,
            )
        except CopyFailed as failure:
            errors = [self._named(error, paths) for error in failure.errors]
            raise CopyFailed(errors, failure.done) from failure
        self.copies.append(report)
        for path, other in again:
            os.makedirs(os.path.dirname(other), exist_ok=True)
            os.link(path, other)

    def _named(self, error: TransferError, paths: Mapping[str, tuple[Part, StateFile]]) -> TransferError:
        found = paths.get(error.request.destination) if error.request else None
        if found:
            part, file = found
            error.args = (f"{self.location}, {file.name} of {part.name}: {error.args[0]}",)
        return error

    def _understand(self, part: Part) -> None:
        """Trust a part's MANIFEST, or get the whole part so that RocksDB can read it."""
        try:
            with self._phase("verify"):
                part.understand(self.location, joined=len(self.parts) > 1)
        except UnknownManifest as error:
            self.fallbacks.append(f"{part.name}: {error}; RocksDB reads all of its files")
            with self._phase("transfer"):
                self._download([(part, file) for file in part.other_files])

    def _joins_as_it_is(self) -> bool:
        manifests = [part.manifest for part in self.parts if part.manifest is not None]
        if not self.plan.joins_as_it_is or len(manifests) < len(self.parts):
            return False
        try:
            compose(manifests)
        except UnknownManifest:
            return False
        return True

    def _straighten(self) -> None:
        """Make every file of every part keep to the key groups that are wanted of the part."""
        for part in self.parts:
            if (
                part.manifest is not None
                and part.plan.reaches_out
                and not part.straighten(self.options, self.closeables)
            ):
                self.fallbacks.append(f"{part.name}: files reach out after a compaction; rows are copied")

    def _assemble(self) -> None:
        alone = self.parts[0] if len(self.parts) == 1 else None
        with self._phase("open"):
            if alone and alone.manifest is None:
                os.rmdir(self.workspace)
                os.rename(alone.directory, self.workspace)
            elif self.parts:
                self._link(alone)
            database = open_rocksdb(
                self.workspace, self.options, create=not os.path.exists(f"{self.workspace}/CURRENT"), automatic=False
            )
        try:
            with self._phase("clip"), rocksdb_errors(self.workspace):
                if self.plan.method != "reopen":
                    # A neighbour without files may own what lies beside a lone part.
                    wanted = alone.plan.wanted if alone else self.plan.key_groups
                    _delete_reached(database, *bounds_of(wanted, self.plan.max_parallelism))
                for part in self.parts if alone is None else ():
                    if part.manifest is None:
                        part.copy_rows(database, self.options, self.closeables)
        finally:
            with rocksdb_errors(self.workspace):
                database.close()

    def _link(self, alone: Part | None) -> None:
        """Move the files of all understood parts together under one MANIFEST."""
        parts = [part for part in self.parts if part.manifest is not None]
        manifests = [part.manifest for part in parts if part.manifest is not None]
        if alone:
            whole, names = manifests[0], [{file.name: file.name for file in manifests[0].files}]
        else:
            whole, names = compose(manifests)
        for part, renamed in zip(parts, names, strict=True):
            for old, new in renamed.items():
                # Renaming a second link of a shared file is a no-op (rename(2)); it goes with the attempt.
                os.rename(os.path.join(part.directory, old), os.path.join(self.workspace, new))
        write_manifest(self.workspace, whole)

    def _lineage(self) -> Lineage:
        identified = {key: handle for part in self.parts for key, handle in part.identified.items()}
        lineage = Lineage(self.plan.key_groups, self.plan.max_parallelism, base=self.location.base)
        lineage.claimed = self.claim is not ClaimMode.NO_CLAIM
        if lineage.claimed:
            identified = {key: absolute(handle, self.location) for key, handle in identified.items()}
        lineage.completed, lineage.completed_id = identified, self.location.checkpoint_id
        if self.plan.method == "reopen":
            lineage.backend_id = self.plan.sources[0].handle.backend_id
        return lineage


def _delete_reached(database: Rdict, low: bytes, high: bytes, end: bytes) -> None:
    """Clip only where a file reaches outside: most restores have nothing to clip on one side, or on both."""
    spans = [(each["start_key"], each["end_key"]) for each in database.live_files()]
    below = any(first < low for first, _ in spans)
    above = any(last >= high for _, last in spans)
    delete_outside(database, low if below else bytes(len(low)), high if above else end, end)


def _is_table(file: CopiedFile) -> bool:
    return file.request.destination.endswith(".sst")


__all__ = ["FilePlan", "PartPlan", "RestorePlan", "RestoreReport", "StateRestore", "plan_restore", "restore"]
