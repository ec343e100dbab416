"""Ending the children of a child when this process dies.

The parent-death signal reaches the program that was started, not what that starts in turn. s5cmd
starts nothing; a wrapper script that does not ``exec`` it does. For scripts, and only for those, a
shell waits on a pipe that nobody but this process holds: at its end, however we ended, it kills the group.
"""

from __future__ import annotations

import contextlib
import subprocess

_SHELL = "/bin/sh"


def is_script(program: str) -> bool:
    """Whether the program is run by an interpreter (execve(2), ``#!``)."""
    with open(program, "rb") as file:
        return file.read(2) == b"#!"


class Guard:
    """Kills a process group with SIGKILL as soon as this process is gone.

    Raises:
        OSError: there is no shell.
    """

    def __init__(self, group: int) -> None:
        self._popen = subprocess.Popen(
            [_SHELL, "-c", f"read -r _; kill -9 -{int(group)}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        """End the guard itself. Before its pipe: it must not act any more."""
        self._popen.kill()
        self._popen.wait()
        if self._popen.stdin:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
