"""Copies by s5cmd child processes: fast, native, watched, and checked.

::

    file_system   the interface          copying    one batch, every request a coroutine
    items         requests as s5cmd needs them      tuning     workers and parts from sizes, CPUs, descriptors
    fleet         when a process is started, fed, ended          runs       one process: lines, results, watchdog
    process       pipes and signals      child, guard   no child outlives us      cpulimit   the CPU limit
    command, arguments   what s5cmd is told      output, failures, masking   what s5cmd says
    checks, store        what is asked of the store, before and after      leftovers   what the dead left there
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .file_system import S5cmdFileSystem
    from .options import S5cmdOptions

__all__ = ["S5cmdFileSystem", "S5cmdOptions"]


def __getattr__(name: str) -> object:
    """Import on first use (PEP 562): whoever asks for the options alone must not wait for asyncio."""
    if name == "S5cmdFileSystem":
        from .file_system import S5cmdFileSystem

        return S5cmdFileSystem
    if name == "S5cmdOptions":
        from .options import S5cmdOptions

        return S5cmdOptions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
