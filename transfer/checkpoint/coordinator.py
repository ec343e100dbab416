"""The driver's side of checkpoints: triggers, completes, aborts and subsumes them.

A checkpoint is pending until every subtask has acknowledged it. It exists from the moment its
``_metadata`` is written, the last of its files, and ceases to exist when that goes, the first of
its files. Whatever else lies around is swept as orphans, so a crash between any two operations
loses nothing and shows nothing half-made.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from ...backends.errors import CheckpointError, TransferError, UsageError
from ..handles import FileHandle, KeyedStateHandle, RelativeFileHandle, SegmentHandle, StateFile
from ..strategy import ClaimMode, Sharing
from .deletion import Deleter
from .fencing import Epoch
from .layout import CheckpointLocation
from .metadata import CheckpointMetadata
from .registry import SharedFileRegistry
from .store import CheckpointStore

_LOG = logging.getLogger("statelift")
CLAIMED = "claimed"  # property: bases whose files this job may delete


class CheckpointListener(Protocol):
    """Told of each checkpoint's end. A notification may be lost, doubled or late: ids only grow."""

    def completed(self, checkpoint_id: int) -> None: ...
    def aborted(self, checkpoint_id: int) -> None: ...
    def subsumed(self, checkpoint_id: int) -> None: ...


@dataclass(eq=False)
class PendingCheckpoint:
    """A checkpoint that waits for its subtasks.

    Args:
        sharing: what its subtasks may have in common with other checkpoints.
    """

    location: CheckpointLocation
    max_parallelism: int
    parallelism: int
    sharing: Sharing
    states: dict[int, KeyedStateHandle] = field(default_factory=dict)
    in_place: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def checkpoint_id(self) -> int:
        return self.location.checkpoint_id

    @property
    def missing(self) -> list[int]:
        """Subtasks that have not acknowledged yet."""
        return [subtask for subtask in range(self.parallelism) if subtask not in self.states]


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A checkpoint that exists, with what a restore needs to know of it."""

    location: CheckpointLocation
    metadata: CheckpointMetadata
    deletable: bool = True

    @property
    def checkpoint_id(self) -> int:
        return self.location.checkpoint_id


class Coordinator:
    """Coordinates the checkpoints below one base. Thread-safe; several may be pending at once.

    Args:
        base: directory of the job's checkpoints.
        retained: completed checkpoints to keep.
        owner: who coordinates, as the epoch file records it.
    """

    def __init__(
        self,
        base: str,
        store: CheckpointStore,
        *,
        retained: int = 1,
        owner: str = "",
        background_deletes: bool = True,
    ) -> None:
        if retained < 1:
            raise UsageError("at least one completed checkpoint must be retained")
        self.base = base.rstrip("/")
        self.retained = retained
        self.registry = SharedFileRegistry()
        self._store = store
        self._objects = store.objects
        self._owner = owner
        self._deleter = Deleter(store.objects, background=background_deletes)
        self._lock = threading.RLock()
        self._epoch: Epoch | None = None
        self._pending: dict[int, PendingCheckpoint] = {}
        self._completed: dict[int, CompletedCheckpoint] = {}
        self._listeners: list[CheckpointListener] = []
        self._next_id = 1
        self._needs_full = False
        self._held: Counter[int] = Counter()
        self._claimed: set[str] = set()

    def start(self) -> CompletedCheckpoint | None:
        """Take over the base: fence off an earlier coordinator and recover what it completed.

        Returns:
            the newest completed checkpoint, to restore from, or None.
        """
        with self._lock:
            self._epoch = Epoch.claim(self._objects, self.base, self._owner)
            for location in self._store.list(self.base):
                found, metadata = self._store.read(location.directory)
                self._next_id = max(self._next_id, location.checkpoint_id + 1)
                if found.is_savepoint:
                    continue  # its user's, though it lies here under a checkpoint's name
                self._claimed.update(json.loads(metadata.properties.get(CLAIMED, "[]")))
                self._adopt(CompletedCheckpoint(location, metadata))
            self._subsume_old()
            return self.latest

    def restore(self, checkpoint: str, mode: ClaimMode = ClaimMode.NO_CLAIM) -> CompletedCheckpoint:
        """Start from a checkpoint or savepoint, which may belong to another job.

        CLAIM makes it ours: it is deleted once subsumed. NO_CLAIM never touches it and needs the
        next checkpoint to be full. LEGACY uses its files for ever and never deletes them.

        Raises:
            CheckpointNotFound: there is no such checkpoint.
            CheckpointError: it is damaged, or bears the number of one that this job retains.
        """
        location, metadata = self._store.read(checkpoint)
        with self._lock:
            known = self._completed.get(location.checkpoint_id)
            if known is not None and known.location == location:
                return known
            if mode is not ClaimMode.NO_CLAIM and metadata.checkpoint_id in self._completed:
                raise CheckpointError(
                    f"{checkpoint} is checkpoint {metadata.checkpoint_id}, and {self.base} has one of that number",
                    remedy="restore it under a fresh base, or without claiming it",
                )
            restored = CompletedCheckpoint(location, metadata, deletable=mode is ClaimMode.CLAIM)
            self._next_id = max(self._next_id, metadata.checkpoint_id + 1)
            if mode is ClaimMode.NO_CLAIM:
                self._needs_full = True
            else:
                if restored.deletable:
                    self._claimed.add(location.base)
                self._adopt(restored)
            return restored

    def _adopt(self, checkpoint: CompletedCheckpoint) -> None:
        number = checkpoint.metadata.checkpoint_id
        for state in checkpoint.metadata.states:
            for file, handle in _files(state.shared):
                uri = checkpoint.location.resolve(handle).uri
                self.registry.register(number, _key(state, file, handle), uri, deletable=self._is_ours(uri))
        self.registry.confirm(number)
        self._completed[number] = checkpoint

    def _is_ours(self, uri: str) -> bool:
        """Whether a file lies below this base or one that was claimed; all others are never deleted."""
        return any(uri.startswith(base + "/") for base in (self.base, *self._claimed))

    @property
    def latest(self) -> CompletedCheckpoint | None:
        with self._lock:
            return self._completed[max(self._completed)] if self._completed else None

    @property
    def completed(self) -> list[CompletedCheckpoint]:
        """Retained checkpoints, oldest first."""
        with self._lock:
            return [self._completed[number] for number in sorted(self._completed)]

    def listen(self, listener: CheckpointListener) -> None:
        self._listeners.append(listener)

    def trigger(self, parallelism: int, max_parallelism: int) -> PendingCheckpoint:
        """Begin a checkpoint.

        Raises:
            CheckpointError: this coordinator was replaced or never started.
        """
        with self._lock:
            self._own_epoch()
            sharing = Sharing.FORWARD if self._needs_full else Sharing.FORWARD_BACKWARD
            location = CheckpointLocation(self.base, self._next_id)
            self._next_id += 1
            pending = PendingCheckpoint(location, max_parallelism, parallelism, sharing)
            self._pending[pending.checkpoint_id] = pending
            return pending

    def _own_epoch(self) -> Epoch:
        if self._epoch is None:
            raise CheckpointError(f"{self.base}: the coordinator was not started", remedy="call start() first")
        return self._epoch

    def acknowledge(
        self, checkpoint_id: int, subtask: int, state: KeyedStateHandle, *, in_place: frozenset[str] = frozenset()
    ) -> CompletedCheckpoint | None:
        """A subtask has brought its state; the last one completes the checkpoint.

        Args:
            in_place: URIs of shared files that the subtask's running database reads where they
                are, having handed them over (reuse). Empty where it has files of its own.

        Returns:
            the checkpoint if this completed it.

        Raises:
            CheckpointError: the checkpoint could not be completed; it is aborted.
        """
        with self._lock:
            pending = self._pending.get(checkpoint_id)
            if pending is None or subtask not in pending.missing:
                self._discard_surplus(checkpoint_id, state, in_place)
                return None
            pending.states[subtask] = self._register(pending, state, in_place)
            pending.in_place[state.backend_id] = in_place
            return None if pending.missing else self._complete(pending)

    def _register(
        self, pending: PendingCheckpoint, state: KeyedStateHandle, in_place: frozenset[str]
    ) -> KeyedStateHandle:
        changed: dict[str, StateFile] = {}
        duplicates = []
        for file, handle in _files(state.shared):
            uri = pending.location.resolve(handle).uri
            if pending.sharing is Sharing.FORWARD and not uri.startswith(self.base + "/"):
                raise CheckpointError(
                    f"{pending.location}: must be full, but uses {uri} of the checkpoint that was restored",
                    remedy="take the first snapshot after a NO_CLAIM restore with Sharing.FORWARD",
                )
            holder = state.backend_id if uri in in_place else None
            key = _key(state, file, handle)
            used = self.registry.register(pending.checkpoint_id, key, uri, holder=holder, deletable=self._is_ours(uri))
            if used != uri:
                duplicates.append(uri)
                changed[file.name] = replace(file, handle=_handle_at(used, handle, pending.location))
        self._deleter.submit(duplicates)
        return replace(state, shared=tuple(changed.get(file.name, file) for file in state.shared))

    def _discard_surplus(self, checkpoint_id: int, state: KeyedStateHandle, in_place: frozenset[str]) -> None:
        """Delete what a late or second attempt brought, but for what the checkpoint itself uses."""
        location = CheckpointLocation(self.base, checkpoint_id)
        _LOG.info("%s: a late or doubled acknowledgement", location)
        needed = in_place | {uri for each in self._states_of(checkpoint_id) for uri in _uris(location, each)}
        surplus = [uri for uri in _uris(location, state) if uri not in needed and uri not in self.registry]
        self._deleter.submit([uri for uri in surplus if self._is_ours(uri)])

    def _states_of(self, checkpoint_id: int) -> Iterable[KeyedStateHandle]:
        if checkpoint_id in self._pending:
            return self._pending[checkpoint_id].states.values()
        done = self._completed.get(checkpoint_id)
        return done.metadata.states if done else ()

    def _complete(self, pending: PendingCheckpoint) -> CompletedCheckpoint:
        metadata = CheckpointMetadata(
            checkpoint_id=pending.checkpoint_id,
            max_parallelism=pending.max_parallelism,
            parallelism=pending.parallelism,
            states=tuple(pending.states[subtask] for subtask in sorted(pending.states)),
            kind="incremental" if pending.sharing is Sharing.FORWARD_BACKWARD else "full",
            created=time.time(),
            properties={CLAIMED: json.dumps(sorted(self._claimed))} if self._claimed else {},
        )
        try:
            self._own_epoch().check()
            self._store.write(pending.location, metadata)
            self._refuse_if_replaced(pending)
        except TransferError:
            self._abort(pending)
            raise
        self._pending.pop(pending.checkpoint_id)
        self.registry.confirm(pending.checkpoint_id)
        done = CompletedCheckpoint(pending.location, metadata)
        self._completed[pending.checkpoint_id] = done
        self._needs_full = False
        self._tell("completed", pending.checkpoint_id)
        for older in [each for each in self._pending.values() if each.checkpoint_id < pending.checkpoint_id]:
            self._abort(older)
        self._subsume_old()
        for backend, uris in pending.in_place.items():
            self._deleter.submit(self.registry.hold(backend, uris))
        return done

    def _refuse_if_replaced(self, pending: PendingCheckpoint) -> None:
        """A coordinator that slept between check and write must not leave a checkpoint behind."""
        try:
            self._own_epoch().check()
        except CheckpointError:
            self._objects.delete([pending.location.metadata])
            raise

    def abort(self, checkpoint_id: int) -> None:
        """Give a pending checkpoint up; an unknown or completed one is left alone."""
        with self._lock:
            pending = self._pending.get(checkpoint_id)
            if pending is not None:
                self._abort(pending)

    def _abort(self, pending: PendingCheckpoint) -> None:
        self._pending.pop(pending.checkpoint_id, None)
        unused = self.registry.release(pending.checkpoint_id)
        # A write of the metadata may have been stored though its answer was lost: that goes first.
        exclusive = [uri for uri in self._exclusive(pending.location) if uri != pending.location.metadata]
        self._deleter.submit([pending.location.metadata], [*unused, *exclusive])
        self._tell("aborted", pending.checkpoint_id)

    def _subsume_old(self) -> None:
        for number in sorted(self._completed)[: -self.retained]:
            if self._held[number]:
                continue
            subsumed = self._completed.pop(number)
            unused = self.registry.release(number)
            if subsumed.deletable:
                exclusive = self._exclusive(subsumed.location)
                rest = [uri for uri in exclusive if uri != subsumed.location.metadata]
                self._deleter.submit([subsumed.location.metadata], [*unused, *rest])
            else:
                self._deleter.submit(unused)
            self._tell("subsumed", number)

    @contextmanager
    def holding(self, checkpoint_id: int) -> Iterator[CompletedCheckpoint]:
        """Keep a completed checkpoint for the length of this block, also where newer ones complete meanwhile.

        Raises:
            CheckpointError: it is not among those retained.
        """
        with self._lock:
            held = self._completed.get(checkpoint_id)
            if held is None:
                raise CheckpointError(f"{self.base}: checkpoint {checkpoint_id} is not retained any more")
            self._held[checkpoint_id] += 1
        try:
            yield held
        finally:
            with self._lock:
                self._held[checkpoint_id] -= 1
                self._subsume_old()

    def _exclusive(self, location: CheckpointLocation) -> list[str]:
        """Files of one checkpoint's own directory that no other checkpoint has taken over."""
        try:
            found = [each.uri for each in self._objects.list(location.directory + "/")]
        except TransferError as error:
            _LOG.warning("could not list %s: %s", location.directory, error)
            return []
        return [uri for uri in found if uri not in self.registry]

    def _tell(self, event: str, checkpoint_id: int) -> None:
        for listener in self._listeners:
            try:
                getattr(listener, event)(checkpoint_id)
            except Exception:
                _LOG.exception("a listener failed on %s %d", event, checkpoint_id)

    def close(self) -> None:
        """Abort what is pending and finish the deletes."""
        with self._lock:
            for pending in list(self._pending.values()):
                self._abort(pending)
        self._deleter.close()


FileLike = FileHandle | RelativeFileHandle | SegmentHandle


def _files(files: Iterable[StateFile]) -> Iterator[tuple[StateFile, FileLike]]:
    """Those that lie in files of their own, not in the metadata."""
    for file in files:
        if isinstance(file.handle, FileHandle | RelativeFileHandle | SegmentHandle):
            yield file, file.handle


def _uris(location: CheckpointLocation, state: KeyedStateHandle) -> list[str]:
    return [location.resolve(handle).uri for _, handle in _files((*state.shared, *state.private))]


def _key(state: KeyedStateHandle, file: StateFile, handle: FileLike) -> str:
    """What a file is: two uploads with one key are duplicates.

    A segment, or a file without a checksum, is only itself.
    """
    known = handle.crc64nvme is not None and not isinstance(handle, SegmentHandle)
    identity = f"{handle.crc64nvme:016x}" if known else repr(handle)
    return f"{state.backend_id}/{file.name}/{file.size}/{identity}"


def _handle_at(uri: str, handle: FileLike, location: CheckpointLocation) -> FileHandle | RelativeFileHandle:
    prefix = location.shared + "/"
    if uri.startswith(prefix):
        return RelativeFileHandle("shared", uri.removeprefix(prefix), handle.size, handle.crc64nvme)
    return FileHandle(uri, handle.size, handle.crc64nvme)
