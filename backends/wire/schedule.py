"""One pool of work over all files and their parts: largest first, no barrier."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..errors import TransferError
from .loop import Loop, Task
from .retry import Budget


class Transfer(Protocol):
    """One request's copy, made of jobs."""

    def recover(self, _job: Job, error: TransferError) -> bool:
        """Whether the transfer mends this error itself, by other jobs."""
        ...

    def fail(self, error: TransferError) -> None:
        """Give up; its other jobs end by themselves."""
        ...


class Job(Protocol):
    """A part of a transfer that one connection does at a time.

    Attributes:
        weight: bytes of the whole file: jobs of the largest go first.
        order: number of the transfer: of equal ones the first is ended before the next begins, so
            that few files are open.
    """

    weight: int
    order: int
    budget: Budget

    @property
    def transfer(self) -> Transfer: ...

    @property
    def stale(self) -> bool:
        """The transfer needs it no more."""
        ...

    async def run(self) -> None: ...


class Schedule:
    """Jobs that wait, and workers that wait for them.

    Args:
        begin: starts the largest transfer that has not begun, which adds its jobs here. A batch of
            100,000 files must not be 100,000 transfers in memory at once.

    Attributes:
        unbegun: how many transfers have not begun.
    """

    def __init__(self, loop: Loop, begin: Callable[[], None]) -> None:
        self._loop = loop
        self._begin = begin
        self.unbegun = 0
        self._heap: list[tuple[int, int, int, Job]] = []
        self._parked: deque[Task] = deque()
        self._count = 0
        self._delayed = 0
        self._running = 0

    @property
    def waiting(self) -> int:
        """Jobs that a further worker could take now."""
        return len(self._heap) + self.unbegun

    def add(self, job: Job) -> None:
        self._count += 1
        heapq.heappush(self._heap, (-job.weight, job.order, self._count, job))
        self._loop.unpark(self._parked)

    def later(self, job: Job, seconds: float) -> None:
        """Add a job after a pause, during which its worker does others."""
        self._delayed += 1
        self._loop.spawn(self._delay(job, seconds))

    async def _delay(self, job: Job, seconds: float) -> None:
        await self._loop.sleep(seconds)
        self._delayed -= 1
        self.add(job)

    async def next(self) -> Job | None:
        """The next job; None: there is none and none will come. Say `done` after it."""
        while True:
            while self._heap or self.unbegun:
                if not self._heap:
                    self.unbegun -= 1
                    self._begin()
                    continue
                job = heapq.heappop(self._heap)[3]
                if not job.stale:
                    self._running += 1
                    return job
            if self._running == 0 and self._delayed == 0:
                self._wake_all()
                return None
            await self._loop.park(self._parked)

    def done(self) -> None:
        self._running -= 1
        if self._running == 0 and not self.waiting:
            self._wake_all()

    def _wake_all(self) -> None:
        while self._parked:
            self._loop.unpark(self._parked)
