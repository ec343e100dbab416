"""A driver's own loop of checkpoints, with savepoints for whoever asks and a stop that ends it.

    coordinator.start()
    loop = CheckpointLoop(coordinator, directory="s3://state/savepoints", name="billing")
    with loop.serving(port=8085, token=token) as service:
        for ending in loop:
            updates = read_next(spark, flush=ending is Ending.DRAIN)
            coordinated_checkpoint(spark, updates, add_up, coordinator, key="account", parallelism=4)

    curl -H "Authorization: Bearer $TOKEN" -d '{"type": "native"}' 127.0.0.1:8085/jobs/billing/stop

A round of the loop completes one checkpoint. Who asks for a savepoint gets a copy of the checkpoint
of the next round that begins, while the loop goes on. After a stop the round's checkpoint is the
last one: the loop waits until the savepoint exists and ends, or goes on where that failed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ...backends.errors import CheckpointError, UsageError
from ...backends.options import Configuration
from ..checkpoint.coordinator import CompletedCheckpoint, Coordinator
from .job import Ending, Job
from .service import SavepointService

#: A stopped job's status can be asked for so long, unless whoever stopped it has read it before. Seconds.
LINGERS = 30.0


@dataclass(eq=False)
class _Wish:
    """Somebody waits for a checkpoint, in another thread."""

    ending: Ending
    checkpoint: CompletedCheckpoint | None = None


class CheckpointLoop:
    """Iterate over it in the thread that takes checkpoints; savepoints are asked for in others.

    A round that completes no checkpoint, for want of input say, leaves those who ask waiting; look
    at `wanted` to cut a wait for input short.

    Args:
        coordinator: started.
        directory, name, configuration: of the `Job`, which is `job`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        directory: str | None = None,
        name: str = "job",
        configuration: Configuration | None = None,
    ) -> None:
        self.job = Job(
            coordinator,
            self._next_checkpoint,
            finish=self._finish,
            let_go=self._let_go,
            configuration=configuration,
            directory=directory,
            name=name,
        )
        self._coordinator = coordinator
        self._changed = threading.Condition()
        self._wishes: list[_Wish] = []
        self._holds: list[tuple[int, ExitStack]] = []
        self._verdict: bool | None = None
        self._stopped = False
        self._closed = False

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a checkpoint."""
        with self._changed:
            return bool(self._wishes)

    @property
    def stopped(self) -> bool:
        """Whether a savepoint ended the loop."""
        return self._stopped

    def __iter__(self) -> Iterator[Ending]:
        """What each round shall do to the job's input.

        Raises:
            UsageError: the loop was closed.
        """
        while not self._stopped:
            with self._changed:
                self._require_open()
                wishes = list(self._wishes)
            last = next((each for each in wishes if each.ending is not Ending.NONE), None)
            before = self._coordinator.latest
            yield Ending.NONE if last is None else last.ending
            done = self._coordinator.latest
            if done is not None and (before is None or done.checkpoint_id != before.checkpoint_id):
                self._fulfil([each for each in wishes if each.ending is Ending.NONE or each is last], done)
                self._stopped = last is not None and self._ends()

    def _fulfil(self, wishes: list[_Wish], done: CompletedCheckpoint) -> None:
        with self._changed:
            self._verdict = None
            for each in wishes:
                hold = ExitStack()
                hold.enter_context(self._coordinator.holding(done.checkpoint_id))
                self._holds.append((done.checkpoint_id, hold))
                each.checkpoint = done
            self._wishes = [each for each in self._wishes if each not in wishes]
            self._changed.notify_all()

    def _ends(self) -> bool:
        """Wait for the end of the savepoint that was to be the last: whether it exists."""
        with self._changed:
            self._changed.wait_for(lambda: self._verdict is not None or self._closed)
            return bool(self._verdict)

    def _next_checkpoint(self, ending: Ending) -> CompletedCheckpoint:
        wish = _Wish(ending)
        with self._changed:
            self._require_open()
            self._wishes.append(wish)
            self._changed.notify_all()
            self._changed.wait_for(lambda: wish.checkpoint is not None or self._closed)
            if wish.checkpoint is None:
                raise CheckpointError(f"the loop of the job {self.job.name} ended before its next checkpoint")
        return wish.checkpoint

    def _let_go(self, checkpoint: CompletedCheckpoint) -> None:
        with self._changed:
            index = [number for number, _ in self._holds].index(checkpoint.checkpoint_id)
            _, hold = self._holds.pop(index)
        hold.close()

    def _finish(self, completed: bool) -> None:
        with self._changed:
            self._verdict = completed
            self._changed.notify_all()

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError(f"the loop of the job {self.job.name} has ended")

    def close(self) -> None:
        """No round comes any more: whoever waits for one is told. Idempotent."""
        with self._changed:
            self._closed = True
            self._wishes.clear()
            self._changed.notify_all()

    @contextmanager
    def serving(
        self, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None, lingers: float = LINGERS
    ) -> Iterator[SavepointService]:
        """Serve the job over HTTP in this block; see `SavepointService`.

        Args:
            lingers: seconds for which a job that was stopped still answers, unless its end was read before.
        """
        service = SavepointService(self.job, host=host, port=port, token=token)
        try:
            yield service
            if self._stopped:
                service.wait_until_told(lingers)
        finally:
            # In this order: a savepoint that waits for a round would never end.
            self.close()
            service.close()
