"""What a child process must do so that it never outlives the process that started it."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


@functools.cache
def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


# Loaded in the parent: between fork and exec a child may not load libraries.
_LIBC = _libc()


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the starting thread ends (prctl(2), PR_SET_PDEATHSIG).

    For ``preexec_fn``. The signal follows the *thread* that forked, so that thread must live as
    long as the child. A parent that is already gone by now would never be noticed: then end at once.
    """
    if _LIBC is not None:
        parent = os.getppid()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
