"""A small event loop: coroutines that wait for sockets, time, threads and each other.

Why not asyncio: its transports and futures cost more per chunk than the copy of the chunk. Here a
wait is one ``yield`` to a loop over edge-triggered epoll, where a socket is registered once in its
life. One thread owns a loop; only `Loop.interrupt` and `Loop.call_soon` may come from others.
"""

from __future__ import annotations

import contextlib
import heapq
import socket
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from ..errors import StalledTransfer
from .poller import GONE, READ, WRITE, make_poller

_SWEEP = 0.1
_T = TypeVar("_T")


@types.coroutine
def _suspend() -> Generator[None, Any, Any]:
    return (yield)


class Task:
    """A coroutine in the loop, and what it waits for."""

    __slots__ = ("asleep", "coroutine", "fd", "mask", "naps", "until")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.coroutine = coroutine
        self.fd = -1
        self.mask = 0
        self.until = 0.0
        self.asleep = False
        self.naps = 0


class Loop:
    """Runs tasks until none is left, or until it is interrupted.

    Attributes:
        idle: seconds that the loop has spent waiting with nothing to do.
        brake: called once a turn; the loop sleeps for as many seconds as it returns.
    """

    def __init__(self) -> None:
        self._poller = make_poller()
        self._ready: deque[tuple[Task, Any]] = deque()
        self._tasks: set[Task] = set()
        self._daemons: set[Task] = set()
        self._waiting: dict[int, Task] = {}
        self._gone: set[int] = set()
        self._missed: dict[int, int] = {}
        self._timers: list[tuple[float, int, Task, int]] = []
        self._count = 0
        self._next_sweep = 0.0
        self._foreign: deque[Callable[[], None]] = deque()
        self._interrupted: BaseException | None = None
        self._inner, self._outer = socket.socketpair()
        for end in (self._inner, self._outer):
            end.setblocking(False)
        self._signal = self._inner.fileno()
        self._poller.add(self._signal)
        self._poller.want(self._signal, READ)
        self._closed = False
        self.idle = 0.0
        self.brake: Callable[[], float] | None = None

    # From any thread.

    def interrupt(self, reason: BaseException) -> None:
        """Have `run` throw ``reason`` into every task and then raise it."""
        if self._interrupted is None:
            self._interrupted = reason
        self._wake()

    def call_soon(self, function: Callable[[], None]) -> None:
        self._foreign.append(function)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._outer.send(b"x")

    # From the loop's own thread.

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> Task:
        task = Task(coroutine)
        self._tasks.add(task)
        self._ready.append((task, None))
        return task

    def spawn_daemon(self, coroutine: Coroutine[Any, Any, None]) -> Task:
        """A task that does not keep `run` from ending."""
        task = self.spawn(coroutine)
        self._daemons.add(task)
        return task

    def add(self, fd: int) -> None:
        """Watch a non-blocking socket until `remove`, which must come before it is closed."""
        self._gone.discard(fd)
        self._missed.pop(fd, None)
        self._poller.add(fd)

    def remove(self, fd: int) -> None:
        self._poller.remove(fd)
        self._gone.discard(fd)
        self._missed.pop(fd, None)

    async def wait(self, fd: int, mask: int, until: float) -> int:
        """Wait for a socket that said EAGAIN. Returns what it may be ready for; 0: ``until`` has passed."""
        if fd in self._gone:
            return READ | WRITE
        missed = self._missed.pop(fd, 0) & mask
        if missed:
            return missed
        task = self._current
        task.fd, task.mask, task.until = fd, mask, until
        self._waiting[fd] = task
        self._poller.want(fd, mask)
        try:
            return int(await _suspend())
        finally:
            self._waiting.pop(fd, None)
            task.fd = -1

    async def sleep(self, seconds: float) -> None:
        await self._nap(seconds)

    async def turn(self) -> None:
        """Let the other tasks run first."""
        self._ready.append((self._current, None))
        await _suspend()

    async def park(self, parked: deque[Task], seconds: float | None = None) -> None:
        """Wait until someone takes this task from ``parked`` by `unpark`, or for some time."""
        task = self._current
        parked.append(task)
        try:
            await self._nap(seconds)
        finally:
            with contextlib.suppress(ValueError):
                parked.remove(task)

    def unpark(self, parked: deque[Task]) -> None:
        """Wake one task."""
        while parked:
            if self._rouse(parked.popleft()):
                return

    async def _nap(self, seconds: float | None) -> None:
        task = self._current
        task.asleep = True
        task.naps += 1
        if seconds is not None:
            self._count += 1
            heapq.heappush(self._timers, (time.monotonic() + seconds, self._count, task, task.naps))
        await _suspend()

    def _rouse(self, task: Task) -> bool:
        # Its time may pass in the very turn in which it is woken: only the first of both counts.
        if not task.asleep:
            return False
        task.asleep = False
        self._ready.append((task, None))
        return True

    async def in_thread(self, function: Callable[[], _T], *, timeout: float) -> _T:
        """Run what may block (name resolution, credentials) in a daemon thread of its own.

        Raises:
            StalledTransfer: it took longer than ``timeout``; the thread ends when the call does.
        """
        parked: deque[Task] = deque()
        result: list[tuple[_T | None, BaseException | None]] = []

        def work() -> None:
            try:
                result.append((function(), None))
            except BaseException as error:
                result.append((None, error))
            self.call_soon(lambda: self.unpark(parked))

        threading.Thread(target=work, name="statelift-wire-call", daemon=True).start()
        until = time.monotonic() + timeout
        while not result:
            if time.monotonic() > until:
                raise StalledTransfer(f"no answer within {timeout:g} s")
            await self.park(parked, 0.5)
        value, error = result[0]
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def run(self) -> None:
        """Run until no task is left but daemons.

        Raises:
            BaseException: what `interrupt` was given, or what a task raised.
        """
        while len(self._tasks) > len(self._daemons):
            for _ in range(len(self._ready)):
                if self._interrupted is not None:
                    break
                self._step(*self._ready.popleft())
            if self._interrupted is not None:
                self.throw(self._interrupted)
                raise self._interrupted
            if len(self._tasks) > len(self._daemons):
                self._poll()
            if self.brake is not None and (pause := self.brake()) > 0:
                time.sleep(min(pause, 0.1))

    def _step(self, task: Task, value: Any) -> None:
        if task not in self._tasks:
            return
        self._current = task
        try:
            task.coroutine.send(value)
        except StopIteration:
            self._forget(task)
        except BaseException:
            self._forget(task)
            raise

    def _forget(self, task: Task) -> None:
        self._tasks.discard(task)
        self._daemons.discard(task)

    def _poll(self) -> None:
        now = time.monotonic()
        if now >= self._next_sweep:
            self._sweep(now)
        timeout = 0.0
        if not self._ready:
            timeout = max(0.0, min(self._next_sweep, self._timers[0][0] if self._timers else 1e18) - now)
        found = self._poller.poll(timeout)
        if timeout:
            self.idle += time.monotonic() - now
        for fd, mask in found:
            self._deliver(fd, mask)
        if self._timers:
            self._fire(time.monotonic())

    def _deliver(self, fd: int, mask: int) -> None:
        if mask & GONE:
            self._gone.add(fd)
        if fd == self._signal:
            self._answer_foreign()
            return
        task = self._waiting.get(fd)
        if task is not None and task.mask & mask:
            del self._waiting[fd]
            self._ready.append((task, mask & task.mask))
            mask &= ~task.mask
        # An edge comes once: what nobody waits for now, the next wait must know.
        if mask & (READ | WRITE):
            self._missed[fd] = self._missed.get(fd, 0) | mask & (READ | WRITE)

    def _answer_foreign(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._inner.recv(4096):
                pass
        self._poller.want(self._signal, READ)
        while self._foreign:
            self._foreign.popleft()()

    def _fire(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, _, task, nap = heapq.heappop(self._timers)
            if task.naps == nap and self._rouse(task):
                # Before those that are only ready: one of them may be slow, and this may be the deadline.
                self._ready.rotate(1)

    def _sweep(self, now: float) -> None:
        """End the waits for sockets whose time has passed. Few tasks, so a scan is cheaper than a heap."""
        self._next_sweep = now + _SWEEP
        for fd, task in list(self._waiting.items()):
            if now >= task.until:
                del self._waiting[fd]
                self._ready.append((task, 0))

    def throw(self, error: BaseException) -> None:
        """End every task with ``error``; what they raise instead is dropped."""
        for task in list(self._tasks):
            self._current = task
            with contextlib.suppress(BaseException):
                task.coroutine.throw(error)
            with contextlib.suppress(BaseException):
                task.coroutine.close()
        self._tasks.clear()
        self._daemons.clear()
        self._ready.clear()
        self._timers.clear()
        self._waiting.clear()

    def clear_interrupt(self) -> None:
        self._interrupted = None

    def close(self) -> None:
        """End what still runs and release the descriptors."""
        if self._closed:
            return
        self._closed = True
        for task in list(self._tasks):
            with contextlib.suppress(BaseException):
                task.coroutine.close()
        self._tasks.clear()
        self._poller.close()
        self._inner.close()
        self._outer.close()
