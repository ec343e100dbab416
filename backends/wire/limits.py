"""Limits on bytes per second, CPU and connections, for this process or for all of a host."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
import time
from pathlib import Path
from typing import Protocol

_DOUBLE = struct.Struct("d")


class Clock(Protocol):
    """When, on the monotonic clock, all that was granted so far is used up."""

    def advance(self, now: float, seconds: float) -> float:
        """Add ``seconds`` of use, starting now at the earliest. Returns the new end."""
        ...


class LocalClock:
    def __init__(self) -> None:
        self._end = 0.0

    def advance(self, now: float, seconds: float) -> float:
        self._end = max(self._end, now) + seconds
        return self._end


class SharedClock:
    """One number in a mapped file under flock; the monotonic clock is the same in all processes of a host."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, _DOUBLE.size)
        self._map = mmap.mmap(self._fd, _DOUBLE.size)

    def advance(self, now: float, seconds: float) -> float:
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            (end,) = _DOUBLE.unpack(self._map[:])
            # A value far ahead is left from before a reboot: the clock starts at zero then.
            end = (end if now <= end < now + 60 else now) + seconds
            self._map[:] = _DOUBLE.pack(end)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return float(end)

    def close(self) -> None:
        self._map.close()
        os.close(self._fd)


class Pace:
    """So many units per second (generic cell rate algorithm, ITU-T I.371), with a burst of a tenth of a second."""

    _BURST = 0.1

    def __init__(self, rate: float, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock

    def take(self, amount: float) -> float:
        """Use ``amount`` units. Returns the seconds to wait before going on."""
        now = time.monotonic()
        end = self._clock.advance(now, amount / self._rate)
        return max(0.0, end - now - self._BURST)


class CpuLimit:
    """A duty cycle of the calling thread: ``percent`` of one CPU."""

    def __init__(self, percent: float, clock: Clock) -> None:
        self._pace = Pace(percent / 100.0, clock)
        self._used = time.thread_time()

    def pause(self) -> float:
        """Seconds to sleep for the CPU used since the last call."""
        used = time.thread_time()
        spent, self._used = used - self._used, used
        return self._pace.take(spent)


class Slots:
    """A number of locks in a directory, each held by one connection of one process of the host."""

    def __init__(self, directory: Path, count: int) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._paths = [directory / f"slot-{index}" for index in range(count)]

    def acquire(self) -> int | None:
        """A token for `release`; None: all are taken."""
        for path in self._paths:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                continue
            return fd
        return None

    @staticmethod
    def release(token: int) -> None:
        with contextlib.suppress(OSError):
            os.close(token)


def free_descriptors() -> int:
    """Descriptors that this process may still open."""
    import resource

    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError:
        used = 0
    return soft - used if soft != resource.RLIM_INFINITY else 1 << 20


def state_directory(configured: Path | None) -> Path:
    """Where processes of one user on this host meet."""
    return configured or Path(tempfile.gettempdir()) / f"statelift-{os.getuid()}"
