"""When to try again: budgets in count and time, and one throttle for all connections of a bucket."""

from __future__ import annotations

import random
import time

from ..batch import backoff
from ..errors import Throttled, TransferError

#: A store that says "slow down" is alive: it is asked more often than one that fails.
_THROTTLE_FACTOR = 3
_RETRY_AFTER_MOST = 30.0
#: Bytes that the first row of failures must bring to be worth a second one.
WORTH = 1 << 20


class Budget:
    """The retries of one part: so many failures in a row, within so much time.

    What arrives between failures begins a new row only where it is worth it, and each row asks for twice
    as much as the one before. So a connection that dies every few bytes is given up after ``retries``
    further attempts, and a part of n bytes sees at most log2(n / 1 MiB) + 1 rows, whatever the server does.

    Args:
        retries: further attempts in one row; answers that ask to slow down have three times as many.
        seconds: from the first failure of a row, after which none is tried again.
    """

    def __init__(self, retries: int, seconds: float) -> None:
        self._retries = retries
        self._seconds = seconds
        self._worth = WORTH
        self._moved = 0
        self._begin_row()

    def _begin_row(self) -> None:
        self._failures = 0
        self._throttled = 0
        self._first_failure: float | None = None

    def progressed(self, count: int) -> None:
        """Bytes of the part moved, and will not be asked for again."""
        self._moved += count

    def delay(self, error: TransferError) -> float | None:
        """Seconds to wait before the next attempt; None: give up."""
        if self._moved >= self._worth:
            self._worth *= 2
            self._moved = 0
            self._begin_row()
        now = time.monotonic()
        if self._first_failure is None:
            self._first_failure = now
        if not error.transient or now - self._first_failure > self._seconds:
            return None
        if isinstance(error, Throttled):
            self._throttled += 1
            return backoff(self._throttled - 1) if self._throttled <= self._retries * _THROTTLE_FACTOR else None
        self._failures += 1
        return backoff(self._failures - 1) if self._failures <= self._retries else None


class Throttle:
    """Holds all requests of a bucket back after the store asked for it."""

    def __init__(self) -> None:
        self._until = 0.0

    def slow_down(self, seconds: float, retry_after: float | None = None) -> None:
        """Pause for ``seconds``, or for what ``Retry-After`` said where that is longer."""
        pause = max(seconds, min(retry_after or 0.0, _RETRY_AFTER_MOST))
        self._until = max(self._until, time.monotonic() + pause)

    def pause(self) -> float:
        """Seconds to wait now; jittered, so that all do not come back at one instant."""
        left = self._until - time.monotonic()
        return left + random.uniform(0.0, 0.2 * min(left, 1.0)) if left > 0 else 0.0
