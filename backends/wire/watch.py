"""Notices parts that stand still or crawl, within seconds and by their rate.

A part that moves fewer bytes than a minimum has stalled: that is a failure. One that is much slower
than the others is only unlucky in its connection: it goes on over another, from the byte it reached.
"""

from __future__ import annotations

import statistics
import time
from collections import deque

from ..errors import StalledTransfer

_WINDOW = 3.0
_MUCH = 10
_ENOUGH = 3
_REMEMBERED = 33
_MEASURABLE = 256 << 10


class SlowTransfer(StalledTransfer):
    """Others are ten times as fast. Costs no attempt."""


class Rates:
    """Bytes per second that parts of a batch had lately."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, rate: float) -> None:
        self._recent.append(rate)

    def is_slow(self, rate: float) -> bool:
        return len(self._recent) >= _ENOUGH and rate * _MUCH < statistics.median(self._recent)


class Watch:
    """Watches one attempt at one part.

    Args:
        seconds: without enough bytes, after which the part has stalled.
        minimum: bytes per second that are enough.
        hurries: whether being much slower than others ends the attempt.
    """

    def __init__(self, seconds: float, minimum: float, rates: Rates, *, hurries: bool) -> None:
        self._seconds = seconds
        self._minimum = minimum
        self._rates = rates
        self._hurries = hurries
        self._window = min(_WINDOW, seconds)
        self.restart()

    def restart(self) -> None:
        """Forget the time before: it was spent on a limit of our own."""
        self._since = self._stall_since = time.monotonic()
        self._count = self._stall_count = 0

    def moved(self, count: int) -> None:
        """Report bytes, or none.

        Raises:
            SlowTransfer: others are much faster.
            TimeoutError: too few in a window of time; its caller knows the object's name.
        """
        self._count += count
        self._stall_count += count
        now = time.monotonic()
        if now - self._stall_since >= self._seconds:
            self._judge_stall(now)
        if now - self._since >= self._window:
            self._judge_rate(now)

    def _judge_stall(self, now: float) -> None:
        elapsed = now - self._stall_since
        if self._stall_count < self._minimum * elapsed:
            raise TimeoutError(f"{self._stall_count} bytes in {elapsed:.1f} s")
        self._stall_since, self._stall_count = now, 0

    def _judge_rate(self, now: float) -> None:
        rate = self._count / (now - self._since)
        if self._hurries and self._rates.is_slow(rate):
            raise SlowTransfer(f"{rate:.0f} bytes per second, while others are much faster")
        self._rates.add(rate)
        self._since, self._count = now, 0

    def ended(self) -> None:
        """The part is complete."""
        elapsed = time.monotonic() - self._since
        if self._count >= _MEASURABLE and elapsed > 0:
            self._rates.add(self._count / elapsed)
