"""Limiting the CPU that a process uses, by stopping and continuing it.

The ``cpulimit`` program does it where it is installed; else a thread here, by psutil, on the same
duty cycle. The program is not made the parent of s5cmd (``cpulimit -l 50 -- s5cmd ...``): then s5cmd
would be a grandchild that no parent-death signal reaches. It is a second child of ours and is told the pid.

A stopped process that is killed dies all the same, so whatever ends us ends a stopped child too;
and a limit that ends lets its process run on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from typing import Any, Protocol

from .child import start_child

_STOP_TIMEOUT = 1.0
#: How long a process runs before its CPU time is looked at: the kernel counts it in steps of 10 ms.
_SLICE = 0.02
_LONGEST_STOP = 0.25
#: Seconds of unused allowance that may be used later, so that a pause for the network is not lost.
_BURST = 0.1


class CpuLimit(Protocol):
    """A limit that holds until it is stopped."""

    @property
    def alive(self) -> bool:
        """Whether it still limits; also False once the process is gone."""
        ...

    def stop(self) -> None:
        """End the limit and let the process run on. Idempotent."""
        ...


def limit_cpu(pid: int, percent: float) -> CpuLimit:
    """Hold a child of ours to ``percent`` of one CPU.

    The child must not be waited for before the limit is stopped, so that its pid stays its own.
    """
    program = shutil.which("cpulimit")
    if program is not None:
        with contextlib.suppress(OSError):
            return ProgramLimit(program, pid, percent)
    return DutyCycle(pid, percent)


class ProgramLimit:
    """The ``cpulimit`` program.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, program: str, pid: int, percent: float) -> None:
        self._pid = pid
        # --lazy: end when the process does, instead of waiting for another one of that pid.
        argv = [program, "--pid", str(pid), "--limit", str(max(1, round(percent))), "--lazy", "--quiet"]
        silent = subprocess.DEVNULL
        self._popen = start_child(argv, stdin=silent, stdout=silent, stderr=silent)

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def stop(self) -> None:
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        # It may have ended between stopping the process and letting it run.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._pid, signal.SIGCONT)


class DutyCycle:
    """A thread that suspends a process whenever it is ahead of its allowance, and resumes it in time."""

    def __init__(self, pid: int, percent: float) -> None:
        import psutil

        self._share = percent / 100
        self._gone: type[Exception] = psutil.Error
        self._ended = threading.Event()
        self._process: Any = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)
        self._thread = threading.Thread(target=self._run, name="statelift-s5cmd-cpulimit", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        if self._process is None:
            return
        try:
            self._limit()
        except self._gone:
            return
        finally:
            with contextlib.suppress(self._gone):
                self._process.resume()

    def _limit(self) -> None:
        began, offset = time.monotonic(), self._used()
        while not self._ended.wait(_SLICE):
            allowed = (time.monotonic() - began) * self._share
            ahead = self._used() - offset - allowed
            if ahead < -_BURST * self._share:
                began += (-ahead - _BURST * self._share) / self._share
            elif ahead > 0:
                self._process.suspend()
                self._ended.wait(min(ahead / self._share, _LONGEST_STOP))
                self._process.resume()

    def _used(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)
