"""One s5cmd process at work: lines in, results out, and whether bytes still move."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..backends.errors import BackendError, StalledTransfer, TransferError
from ..backends.wire.loop import Loop, Task
from ..backends.wire.poller import READ, WRITE
from .cpulimit import CpuLimit, limit_cpu
from .items import Item
from .masking import Masker
from .output import Failure, Noise, Success, parse_line
from .process import Process
from .watchdog import StagedFiles, bytes_counted

_FOREVER = float("inf")
#: Seconds that an s5cmd whose outputs are held open by another process may have been gone.
_LINGER = 1.0
_TOLD_LINES = 5


class CommandFailed(Exception):
    """s5cmd says that a line failed; ``text`` is why, masked."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(eq=False, slots=True)
class Flight:
    """One line that s5cmd has not answered.

    Attributes:
        mark: what was last seen of it.
        moved: when that last changed.
    """

    item: Item
    source: str
    destination: str
    moved: float
    mark: object = None
    outcome: Success | Exception | None = None
    parked: deque[Task] = field(default_factory=deque)
    stalled: bool = False


@dataclass(slots=True)
class Quota:
    """What one process may still be given: files and bytes."""

    files: int
    bytes: int
    used: bool = False

    def admits(self, size: int | None) -> bool:
        """A file larger than all of it is admitted as the only one."""
        return self.files > 0 and (not self.used or (size or 0) <= self.bytes)

    def take(self, size: int | None) -> None:
        self.files -= 1
        self.bytes -= size or 0
        self.used = True


class Run:
    """A process with its lines in flight.

    Attributes:
        accepts: whether it may be given further lines.
        over: whether it has ended and was waited for.
    """

    def __init__(
        self,
        loop: Loop,
        process: Process,
        quota: Quota,
        mask: Masker,
        ended: Callable[[Run], None],
    ) -> None:
        self._loop = loop
        self.process = process
        self._quota = quota
        self._mask = mask
        self._ended = ended
        self._flights: dict[tuple[str, str], Flight] = {}
        self._limit: CpuLimit | None = None
        self._percent: float | None = None
        self._watched = tuple(process.outputs)
        self._gone_since: float | None = None
        self._flushing = False
        self.finishing = False
        self.over = False
        self.unfinished_uploads: list[Item] = []
        for fd in self._watched:
            loop.spawn_daemon(self._read(fd))

    # Lines.

    def admits(self, size: int | None) -> bool:
        return not self.finishing and not self.over and self._quota.admits(size)

    def tell(self, item: Item, source: str, destination: str, line: bytes) -> Flight:
        """Give it a line."""
        flight = Flight(item, source, destination, time.monotonic())
        self._flights[source, destination] = flight
        self._quota.take(item.size)
        self._write(line)
        return flight

    async def result(self, flight: Flight) -> Success:
        """Wait for the result of a line.

        Raises:
            CommandFailed: s5cmd says so.
            TransferError: it stood still, or s5cmd ended without a word of it.
        """
        while flight.outcome is None:
            await self._loop.park(flight.parked)
        # A stalled line is still s5cmd's; and what is cancelled is looked at once more at the end.
        if not flight.stalled:
            del self._flights[flight.source, flight.destination]
        if isinstance(flight.outcome, Exception):
            raise flight.outcome
        return flight.outcome

    def _write(self, line: bytes) -> None:
        self.process.write(line)
        if self.process.blocked and not self._flushing:
            self._flushing = True
            self._loop.spawn_daemon(self._flush())

    async def _flush(self) -> None:
        fd = self.process.input
        if fd is not None:
            self._loop.add(fd)
            try:
                while self.process.blocked:
                    await self._loop.wait(fd, WRITE, _FOREVER)
                    self.process.flush()
            finally:
                self._loop.remove(fd)
        self._flushing = False

    def finish(self) -> None:
        """No more lines: let it end when it has done those that it has."""
        if not self.finishing:
            self.finishing = True
            self.process.finish()

    # Results.

    async def _read(self, fd: int) -> None:
        self._loop.add(fd)
        while fd in self.process.outputs:
            try:
                lines = self.process.read(fd)
            except BlockingIOError:
                await self._loop.wait(fd, READ, _FOREVER)
                continue
            for line in lines:
                self._take(line)
            await self._loop.turn()
        self._loop.remove(fd)
        if not self.process.outputs:
            self.end()

    def _take(self, line: bytes) -> None:
        match parse_line(line):
            case Success() as success:
                self._settle(self._flights.get((success.source, success.destination)), success)
            case Failure(command, error):
                self._settle(self._failed(command), CommandFailed(self._mask(error)))
            case Noise(text):
                self.process.tail.append(self._mask(text))

    def _failed(self, command: str) -> Flight | None:
        """The flight of a command, which is printed without quotes, and with or without its flags."""
        for flight in self._flights.values():
            if command.endswith(f" {flight.source} {flight.destination}"):
                return flight
        self.process.tail.append(self._mask(command))
        return None

    def _settle(self, flight: Flight | None, outcome: Success | Exception) -> None:
        if flight is None or flight.outcome is not None:
            return
        flight.outcome = outcome
        self._loop.unpark(flight.parked)

    @property
    def flights(self) -> tuple[Flight, ...]:
        """Lines without an answer, and those whose copy was cancelled before it could take its answer."""
        return tuple(self._flights.values())

    # The end.

    def end(self) -> None:
        """Kill what is left of it, wait for it, and fail the lines that it has not answered."""
        if self.over:
            return
        self.over = self.finishing = True
        for fd in self._watched:
            self._loop.remove(fd)
        # Killed before the limit ends, which lets it run on, and waited for after: its pid stays its own.
        self.process.kill()
        if self._limit is not None:
            self._limit.stop()
        code = self.process.wait()
        self._take_the_rest()
        self.process.close()
        for flight in list(self._flights.values()):
            if flight.item.is_multipart_upload and not isinstance(flight.outcome, Success):
                self.unfinished_uploads.append(flight.item)
            self._settle(flight, self._lost(flight.item, code))
        self._ended(self)

    def _take_the_rest(self) -> None:
        for fd in self.process.outputs:
            with contextlib.suppress(BlockingIOError):
                while fd in self.process.outputs:
                    for line in self.process.read(fd):
                        self._take(line)

    def _lost(self, item: Item, code: int) -> TransferError:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = "; ".join(list(self.process.tail)[-_TOLD_LINES:])
        message = f"s5cmd {how} and said nothing of {item.request.source}" + (
            f". Its last lines: {said}" if said else ""
        )
        return BackendError(message, transient=True)

    # Watching.

    def limit(self, percent: float) -> None:
        """Hold it to so many percent of one CPU from now on."""
        if self.over or (self._percent == percent and self._limit is not None and self._limit.alive):
            return
        if self._limit is not None:
            self._limit.stop()
        self._percent = percent
        self._limit = limit_cpu(self.process.pid, percent)

    def watch(self, now: float, patience: float) -> None:
        """Look whether the flights moved; those that did not for ``patience`` seconds have stalled."""
        if self._percent is not None:
            # A limiter that was killed may have left the process stopped.
            self.limit(self._percent)
        self._look(now)
        for flight in [each for each in self._flights.values() if each.outcome is None]:
            if now - flight.moved > patience + flight.item.allowance:
                self._give_up(flight, now - flight.moved)
        if self._flights and all(flight.stalled for flight in self._flights.values()):
            self.end()
        elif self.process.ended:
            self._gone_since = self._gone_since or now
            if now - self._gone_since > _LINGER:
                self.end()

    def _give_up(self, flight: Flight, seconds: float) -> None:
        # s5cmd cannot be told to drop one line: it is left behind in this process, which gets no more.
        flight.stalled = True
        self.finish()
        self._settle(flight, StalledTransfer(f"{flight.item.request.source}: no byte moved for {seconds:.1f} s"))

    def _look(self, now: float) -> None:
        staged = StagedFiles()
        counted = None
        for flight in self._flights.values():
            if flight.item.landing is not None:
                mark: object = staged.mark(flight.destination)
                flight.item.arrived = staged.bytes(flight.destination)
            else:
                counted = counted or bytes_counted(self.process.pid)
                mark = counted
            if mark != flight.mark:
                flight.mark, flight.moved = mark, now
