"""A memory limit for one child process tree: a cgroup where one can be made, else RLIMIT_DATA."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOTS = {"v1": Path("/sys/fs/cgroup/memory"), "v2": Path("/sys/fs/cgroup")}


@dataclass(frozen=True)
class MemoryLimit:
    """A limit that a process joins; ``how`` says by which means."""

    bytes: int
    how: str
    group: Path | None = None

    def join(self) -> None:
        """Put the calling process under the limit. For ``preexec_fn``."""
        if self.group is not None:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
        else:
            # Not RLIMIT_AS: Go and the JVM reserve address space that they never touch.
            resource.setrlimit(resource.RLIMIT_DATA, (self.bytes, self.bytes))


@contextmanager
def limited(size: int) -> Iterator[MemoryLimit]:
    """A limit of ``size`` bytes, page cache and child processes included where it is a cgroup."""
    group = _new_group(size)
    try:
        yield MemoryLimit(size, "cgroup" if group else "RLIMIT_DATA", group)
    finally:
        if group is not None:
            with contextlib.suppress(OSError):
                group.rmdir()


def _new_group(size: int) -> Path | None:
    for version, root in _ROOTS.items():
        group = root / f"statelift-bench-{os.getpid()}"
        name = "memory.limit_in_bytes" if version == "v1" else "memory.max"
        try:
            group.mkdir()
            (group / name).write_text(str(size))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        return group
    return None
