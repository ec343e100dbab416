"""Run one program as a child, pinned to one CPU, and say what it cost.

CPU time is the kernel's account of the whole process tree at its end (wait4(2)). Peak memory is
the sum over the tree of each process's high-water mark (``VmHWM``), sampled while it runs:
``ru_maxrss`` would count the parent's pages of before the exec. Received and sent bytes are those
that the server counts on its connections: whatever else the machine does, and whichever process
of the contender's opened them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .light_peer import Traffic
from .memory_limit import MemoryLimit

_SAMPLE_EVERY = 0.02
_TAIL = 400


@dataclass(frozen=True)
class Usage:
    """What one run took.

    Args:
        wall: seconds from start to exit; ``user`` and ``system``: CPU seconds of the tree.
        peak: bytes of memory at most.
        received: bytes that came from the server, ``sent``: that went to it; 0 where it does not count.
        exit: exit status, negative for a signal.
        said: the JSON document of the program's last line on stdout, where it printed one.
        tail: its last words on stderr.
    """

    wall: float
    user: float
    system: float
    peak: int
    exit: int
    received: int = 0
    sent: int = 0
    said: dict[str, Any] = field(default_factory=dict)
    tail: str = ""

    @property
    def cpu(self) -> float:
        return self.user + self.system


def run(
    command: Sequence[str],
    *,
    cpu: int | None,
    env: Mapping[str, str],
    timeout: float = 300.0,
    memory: MemoryLimit | None = None,
    traffic: Callable[[], Traffic] = Traffic,
) -> Usage:
    """Run a command to its end.

    Args:
        cpu: the one CPU it and its children may use.
        timeout: seconds after which its process group is killed; the exit status shows that.
        memory: limit that it joins before it starts.
        traffic: what the server has counted so far.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before, started = traffic(), time.monotonic()

        def prepare() -> None:
            if cpu is not None:
                os.sched_setaffinity(0, {cpu})
            if memory is not None:
                memory.join()

        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=dict(env),
            preexec_fn=prepare,
            start_new_session=True,
        )
        with _Peak(child.pid) as peak, _killer(child.pid, timeout):
            _pid, status, usage = os.wait4(child.pid, 0)
            wall = time.monotonic() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        moved = traffic() - before
        said, tail = _read(out), _read(err)
    return Usage(
        wall=wall,
        user=usage.ru_utime,
        system=usage.ru_stime,
        peak=peak.bytes or usage.ru_maxrss * 1024,
        exit=child.returncode,
        received=moved.received,
        sent=moved.sent,
        said=_document(said),
        tail=(tail or said).strip()[-_TAIL:],
    )


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def _document(text: str) -> dict[str, Any]:
    lines = text.strip().splitlines()
    if lines:
        with contextlib.suppress(ValueError):
            found = json.loads(lines[-1])
            return found if isinstance(found, dict) else {}
    return {}


@contextlib.contextmanager
def _killer(pid: int, timeout: float) -> Any:
    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    timer = threading.Timer(timeout, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # Nothing that it started may disturb the next run.
        kill()


class _Peak:
    """Samples the memory of a process tree in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes = 0

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_EVERY):
            self.bytes = max(self.bytes, sum(_high_water(pid) for pid in _tree(self._pid)))


def _tree(pid: int) -> list[int]:
    found = [pid]
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += _tree(int(child))
    return found


def _high_water(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0
