"""One s5cmd process: pipes that never block, a group that is killed as a whole.

Both outputs are pipes, because s5cmd stops for ever when nobody drains it. The process is started
and watched by the thread that runs the copy: the parent-death signal follows that thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

from ..backends.errors import BackendUnavailable
from .child import start_child
from .guard import Guard, is_script

_READ = 1 << 16
_LONGEST_LINE = 1 << 20
_TAIL_LINES = 20
_KILL_TIMEOUT = 10.0
_POLL = 0.001


class Process:
    """A running program that takes lines and gives lines.

    Attributes:
        pid: of the process, and of its group.
        tail: its last lines that say nothing of a file, unmasked.

    Raises:
        BackendUnavailable: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        try:
            self._popen = start_child(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=dict(environment),
            )
        except OSError as error:
            raise BackendUnavailable(f"{argv[0]} cannot be started: {error.strerror}", backend="s5cmd") from error
        self.pid = self._popen.pid
        self._guard = _guard(argv[0], self.pid)
        self._reaping = threading.Lock()
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._streams = [each for each in (self._popen.stdin, self._popen.stdout, self._popen.stderr) if each]
        first, *outputs = [stream.fileno() for stream in self._streams]
        self._input: int | None = first
        self._pending = bytearray()
        self._closing = False
        self._partial = {fd: bytearray() for fd in outputs}
        for fd in (self._input, *self._partial):
            os.set_blocking(fd, False)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Descriptors to read from that have not ended."""
        return tuple(self._partial)

    @property
    def input(self) -> int | None:
        """The descriptor to write to; None once it is closed."""
        return self._input

    @property
    def blocked(self) -> bool:
        """Whether input waits until the process reads."""
        return self._input is not None and bool(self._pending)

    def write(self, data: bytes) -> None:
        """Give it input now, or, as far as the pipe is full, at `flush`."""
        self._pending += data
        self.flush()

    def flush(self) -> None:
        if self._input is None:
            return
        try:
            while self._pending:
                del self._pending[: os.write(self._input, self._pending)]
        except BlockingIOError:
            return
        except OSError:
            # It does not read any more: what becomes of its lines is told by its end.
            self._pending.clear()
            self._closing = True
        if self._closing:
            self._close_input()

    def finish(self) -> None:
        """End its input as soon as all of it is written."""
        self._closing = True
        self.flush()

    def _close_input(self) -> None:
        if self._input is not None:
            self._input = None
            with contextlib.suppress(OSError):
                self._streams[0].close()

    def read(self, fd: int) -> list[bytes]:
        """Complete lines that one of `outputs` has; at its end what is left, and it is one of them no more.

        Raises:
            BlockingIOError: it has nothing now.
        """
        partial = self._partial[fd]
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            raise
        except OSError:
            data = b""
        if not data:
            del self._partial[fd]
            return [bytes(partial)] if partial else []
        partial += data
        if b"\n" not in data and len(partial) < _LONGEST_LINE:
            return []
        *lines, rest = bytes(partial).split(b"\n")
        if len(rest) >= _LONGEST_LINE:
            lines, rest = [*lines, rest[:_READ]], b""
        partial[:] = rest
        return [line for line in lines if line]

    @property
    def ended(self) -> bool:
        """Whether the process is gone, whoever else may still hold its pipes.

        It is left a zombie until `close`, so that its pid, the number of its group, is no other's.
        """
        if self._popen.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def signal(self, number: int) -> None:
        """Send a signal to the whole group. May come from any thread."""
        with self._reaping:
            if self._popen.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def terminate(self) -> None:
        """Ask the group to end. An s5cmd that waits for input ignores the signal alone; a stopped one sleeps on."""
        self._pending.clear()
        self._close_input()
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the whole group at once, also where the process has ended and left a child of its own in it."""
        self._close_input()
        self.signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for a process that was killed or has ended. Returns its exit code, negative for a signal."""
        if self._guard is not None:
            # It has nothing left to kill, and must not meet a pid that is free to be another's.
            self._guard.stop()
            self._guard = None
        until = time.monotonic() + _KILL_TIMEOUT
        while not self.ended:
            if time.monotonic() > until:
                # In the kernel, on a dead disk: nothing can end it, and waiting would hang the copy.
                return -int(signal.SIGKILL)
            time.sleep(_POLL)
        # A signal must never meet a pid that is free to be another's.
        with self._reaping:
            return self._popen.wait()

    def close(self) -> None:
        """Close the pipes."""
        self._close_input()
        for stream in self._streams[1:]:
            stream.close()
        self._partial.clear()


def _guard(program: str, group: int) -> Guard | None:
    with contextlib.suppress(OSError):
        return Guard(group) if is_script(program) else None
    return None
