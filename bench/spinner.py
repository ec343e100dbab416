"""A busy neighbour: counts blocks of work in a mapped file until it is killed.

``python -m statelift.bench.spinner FILE``
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_COUNT = struct.Struct("q")
_SETTLE = 0.5


def spin(path: str) -> None:
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), _COUNT.size) as counter:
        count = 0
        while True:
            for _ in range(10_000):
                pass
            count += 1
            _COUNT.pack_into(counter, 0, count)


class Neighbour:
    """A running neighbour and how fast it is when it is alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.alone = 0.0

    def count(self) -> int:
        return int(_COUNT.unpack(self._path.read_bytes()[: _COUNT.size])[0])

    def rate(self, seconds: float) -> float:
        """Blocks of work per second, over the next ``seconds``."""
        before, started = self.count(), time.monotonic()
        time.sleep(seconds)
        return (self.count() - before) / (time.monotonic() - started)


@contextmanager
def neighbour(scratch: Path, *, cpu: int) -> Iterator[Neighbour]:
    """A neighbour that keeps one CPU busy for as long as the block runs."""
    path = scratch / "neighbour"
    path.write_bytes(bytes(_COUNT.size))
    child = subprocess.Popen(
        [sys.executable, "-m", "statelift.bench.spinner", str(path)],
        preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
        stdin=subprocess.DEVNULL,
    )
    found = Neighbour(path)
    try:
        while not found.count():
            time.sleep(0.02)
        time.sleep(_SETTLE)
        found.alone = found.rate(2.0)
        yield found
    finally:
        child.kill()
        with contextlib.suppress(OSError):
            child.wait()


if __name__ == "__main__":
    spin(sys.argv[1])
