"""The driver's side of checkpoints: triggers, completes, aborts and subsumes them.

A checkpoint is pending until every subtask has acknowledged it. It exists from the moment its
``_metadata`` is written, the last of its files, and ceases to exist when that goes, the first of
its files. Whatever else lies around is swept as orphans, so a crash between any two operations
loses nothing and shows nothing half-made.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ...backends.errors import CheckpointError, TransferError, UsageError
from ..handles import KeyedStateHandle
from ..strategy import ClaimMode, Sharing
from .checkpoints import CheckpointListener, CompletedCheckpoint, PendingCheckpoint, claimed_by, claims
from .deletion import Deleter
from .fencing import Epoch
from .layout import CheckpointLocation
from .registration import register_completed, register_pending, uris_of
from .registry import SharedFileRegistry
from .store import CheckpointStore

_LOG = logging.getLogger("statelift")

__all__ = ["CheckpointListener", "CompletedCheckpoint", "Coordinator", "PendingCheckpoint"]


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
                completed = CompletedCheckpoint(location, metadata)
                self._claimed.update(claimed_by(completed))
                self._adopt(completed)
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
        register_completed(self.registry, checkpoint, self._is_ours)
        self._completed[checkpoint.metadata.checkpoint_id] = checkpoint

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
            named, duplicates = register_pending(self.registry, pending, state, in_place, self._is_ours)
            self._deleter.submit(duplicates)
            pending.states[subtask] = named
            pending.in_place[state.backend_id] = in_place
            return None if pending.missing else self._complete(pending)

    def _discard_surplus(self, checkpoint_id: int, state: KeyedStateHandle, in_place: frozenset[str]) -> None:
        """Delete what a late or second attempt brought, but for what the checkpoint itself uses."""
        location = CheckpointLocation(self.base, checkpoint_id)
        _LOG.info("%s: a late or doubled acknowledgement", location)
        needed = in_place | {uri for each in self._states_of(checkpoint_id) for uri in uris_of(location, each)}
        surplus = [uri for uri in uris_of(location, state) if uri not in needed and uri not in self.registry]
        self._deleter.submit([uri for uri in surplus if self._is_ours(uri)])

    def _states_of(self, checkpoint_id: int) -> Iterable[KeyedStateHandle]:
        if checkpoint_id in self._pending:
            return self._pending[checkpoint_id].states.values()
        done = self._completed.get(checkpoint_id)
        return done.metadata.states if done else ()

    def _complete(self, pending: PendingCheckpoint) -> CompletedCheckpoint:
        metadata = pending.metadata(claims(self._claimed))
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
