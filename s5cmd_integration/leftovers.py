"""What processes that were ended leave at the store: objects that they wrote, and multipart uploads.

Local files need nothing: they lie in the batch's staging area, which goes as a whole. When this process
is killed too, nobody aborts its multipart uploads (of files above 64 MiB): the bucket should have a
lifecycle rule for that, ``AbortIncompleteMultipartUpload``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from ..backends.errors import TransferError
from ..backends.report import CopiedFile
from ..backends.wire.loop import Loop
from .checks import Checks
from .command import DOWNLOAD
from .items import Item
from .output import Success
from .runs import Run

_LOG = logging.getLogger(__name__)


class _Enough(BaseException):
    """The time for cleaning is over."""


class Leftovers:
    """Cleans up after the runs of one batch, once its own loop has ended.

    Args:
        settled: tells whether a request's result is known.
        succeed: takes the result of one that was written all the same.
    """

    def __init__(
        self,
        loop: Loop,
        checks: Checks,
        settled: Callable[[Item], bool],
        succeed: Callable[[Item, CopiedFile], None],
    ) -> None:
        self._loop = loop
        self._checks = checks
        self._settled = settled
        self._succeed = succeed
        self._since = datetime.now(UTC)

    def clean(self, runs: Iterable[Run], *, count: bool, seconds: float) -> None:
        """Abort the uploads that these runs began and did not end.

        Args:
            count: also check and count what they wrote and nobody took notice of.
            seconds: how long it may take.
        """
        written = [found for run in runs for found in self._written(run)] if count else []
        unfinished = [item for run in runs for item in run.unfinished_uploads]
        if not written and not unfinished:
            return
        self._loop.clear_interrupt()
        for item, success in written:
            self._loop.spawn(self._count(item, success))
        for item in unfinished:
            self._loop.spawn(self._abort(item))
        self._loop.spawn_daemon(self._stop(seconds))
        try:
            self._loop.run()
        except _Enough:
            _LOG.warning("s5cmd: cleaning up at the store took longer than %g s and was given up", seconds)

    def _written(self, run: Run) -> list[tuple[Item, Success]]:
        return [
            (flight.item, flight.outcome)
            for flight in run.flights
            if isinstance(flight.outcome, Success) and flight.item.kind != DOWNLOAD and not self._settled(flight.item)
        ]

    async def _count(self, item: Item, success: Success) -> None:
        try:
            self._succeed(item, await self._checks.after(item, success))
        except TransferError as error:
            _LOG.info("s5cmd: %s was written while the batch ended: %s", item.request.destination, error)

    async def _abort(self, item: Item) -> None:
        try:
            await self._checks.store.abort_uploads(item.destination, self._since)
        except TransferError as error:
            _LOG.warning("s5cmd: a multipart upload of %s may be left: %s", item.request.destination, error)

    async def _stop(self, seconds: float) -> None:
        await self._loop.sleep(seconds)
        self._loop.interrupt(_Enough())
