"""When to try again: budgets in count and time, and one throttle for all connections of a bucket."""

from __future__ import annotations

import random
import time

from ..batch import backoff
from ..errors import Throttled, TransferError

#: A store that says "slow down" is alive: it is asked more often than one that fails.
_THROTTLE_FACTOR = 3
_RETRY_AFTER_MOST = 30.0
# An attempt that brought less than this is no progress: a connection that dies every kilobyte would be tried for ever.
_PROGRESS = 256 << 10


class Budget:
    """The retries of one part: so many attempts without progress, so much time."""

    def __init__(self, retries: int, seconds: float) -> None:
        self._retries = retries
        self._seconds = seconds
        self._failures = 0
        self._throttled = 0
        self._moved = 0
        self._first_failure = 0.0

    def progressed(self, count: int) -> None:
        """Bytes moved: after enough of them the next failure counts anew, but not its time."""
        self._moved += count

    def delay(self, error: TransferError) -> float | None:
        """Seconds to wait before the next attempt; None: give up."""
        now = time.monotonic()
        self._first_failure = self._first_failure or now
        if not error.transient or now - self._first_failure > self._seconds:
            return None
        if isinstance(error, Throttled):
            self._throttled += 1
            return backoff(self._throttled - 1) if self._throttled <= self._retries * _THROTTLE_FACTOR else None
        if self._moved >= _PROGRESS:
            self._failures = 0
        self._moved = 0
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
