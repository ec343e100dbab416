"""A running job on its driver: savepoints on request, and stopping with one.

A savepoint of a running job is a checkpoint first, through the workers as always, and then a copy
that is its user's. The job goes on meanwhile; only the copied checkpoint is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from enum import Enum

from ...backends.closeables import CloseableRegistry
from ...backends.errors import CheckpointError, UsageError
from ...backends.options import Configuration
from ..checkpoint.coordinator import CompletedCheckpoint, Coordinator
from .taking import SavepointReport, SavepointType, savepoint

_ATTEMPTS = 3


class Ending(Enum):
    """What a checkpoint shall do to the job's input.

    Attributes:
        NONE: nothing, the job goes on.
        SUSPEND: no input after it; the job will be resumed from it.
        DRAIN: no input after it, and what waits for an end of input (timers, windows) is flushed
            into it first: the job will not be resumed.
    """

    NONE = "none"
    SUSPEND = "suspend"
    DRAIN = "drain"


class Job:
    """What a savepoint needs of a job. Thread-safe.

    Args:
        trigger: takes a checkpoint through the workers and returns once it is complete. After one
            that ends the job, the workers wait until ``finish`` is called.
        finish: called with True once the savepoint that ends the job exists, with False where it
            failed and the job shall go on.
        let_go: called with a checkpoint that ``trigger`` returned once the savepoint holds it itself:
            a trigger that keeps it from being subsumed until then spares the job a second one.
        configuration: for the copy; by default from the environment.
        directory: where savepoints go that are requested without a target.
        name: the job's id in the HTTP service.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        trigger: Callable[[Ending], CompletedCheckpoint],
        *,
        finish: Callable[[bool], object] | None = None,
        let_go: Callable[[CompletedCheckpoint], object] | None = None,
        configuration: Configuration | None = None,
        directory: str | None = None,
        name: str = "job",
    ) -> None:
        self.coordinator = coordinator
        self.directory = directory.rstrip("/") if directory else None
        self.name = name
        self._trigger = trigger
        self._finish = finish
        self._let_go = let_go
        self._configuration = configuration
        self._lock = threading.Lock()
        self._ending = Ending.NONE

    @property
    def ending(self) -> Ending:
        """How the job ends or ended; NONE while it runs."""
        return self._ending

    def savepoint(
        self, target: str, *, type: str = SavepointType.NATIVE, closeables: CloseableRegistry | None = None
    ) -> SavepointReport:
        """Take a savepoint; the job goes on.

        Raises:
            UsageError: no such type, or the job is ending.
            CheckpointError: the checkpoint failed, or there is a snapshot at ``target`` already.
            CopyFailed: a file could not be copied.
            CopyCancelled: ``closeables`` was closed.
        """
        kind = SavepointType.of(type)
        self.require_running()
        return self._take(target, kind, Ending.NONE, closeables or CloseableRegistry())

    def stop_with_savepoint(
        self,
        target: str,
        *,
        type: str = SavepointType.NATIVE,
        drain: bool = False,
        closeables: CloseableRegistry | None = None,
    ) -> SavepointReport:
        """Take a savepoint that nothing comes after, and end the job. Where it fails the job goes on.

        Args:
            drain: flush what waits for the end of input; False suspends the job as it is.

        Raises:
            UsageError, CheckpointError, CopyFailed, CopyCancelled: see `savepoint`.
        """
        kind = SavepointType.of(type)
        with self._lock:
            self.require_running()
            self._ending = Ending.DRAIN if drain else Ending.SUSPEND
        try:
            report = self._take(target, kind, self._ending, closeables or CloseableRegistry())
        except BaseException:
            self._ending = Ending.NONE
            self._end(completed=False)
            raise
        self._end(completed=True)
        return report

    def require_running(self) -> None:
        """
        Raises:
            UsageError: the job is ending or has ended.
        """
        if self._ending is not Ending.NONE:
            raise UsageError(f"the job {self.name} is stopping or has stopped ({self._ending.value})")

    def _end(self, *, completed: bool) -> None:
        if self._finish is not None:
            self._finish(completed)

    def _take(self, target: str, kind: SavepointType, ending: Ending, closeables: CloseableRegistry) -> SavepointReport:
        with ExitStack() as block:
            checkpoint = self._held(ending, block, closeables)
            return savepoint(
                checkpoint.location.directory, target, self._configuration, type=kind, closeables=closeables
            )

    def _held(self, ending: Ending, block: ExitStack, closeables: CloseableRegistry) -> CompletedCheckpoint:
        """A fresh checkpoint that stays while it is copied: newer ones may subsume it before it can be held."""
        for _ in range(_ATTEMPTS):
            closeables.check()
            taken = self._trigger(ending)
            try:
                return block.enter_context(self.coordinator.holding(taken.checkpoint_id))
            except CheckpointError:
                if ending is not Ending.NONE:
                    raise
            finally:
                if self._let_go is not None:
                    self._let_go(taken)
        raise CheckpointError(
            f"{self.coordinator.base}: checkpoints were subsumed before they could be copied",
            remedy="retain more checkpoints",
        )
