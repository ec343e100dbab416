"""What a copy did: byte counts and timings per file, totals per batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from .request import CopyRequest

#: Called from worker threads as bytes arrive; a restarted part reports a negative number.
Progress: TypeAlias = Callable[[CopyRequest, int], None]

#: Methods that give a file its bytes without moving them through this machine.
UNMOVED = frozenset({"hard-link", "reflink", "server-side", "reuse"})


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """One request that is done: verified and published.

    Args:
        method: how, e.g. ``wire``, ``s5cmd``, ``sdk``, ``stream``, ``hard-link``, ``server-side``.
        bytes: size of the destination.
        seconds: from the start of this file's copy to its publication.
        verified: the strongest check that it passed: ``size``, ``crc32c`` or ``crc64nvme``.
        crc64nvme: of the copied bytes, where the backend computed it.
        etag: of the destination where the store gave one.
    """

    request: CopyRequest
    method: str
    bytes: int
    seconds: float
    verified: str = "size"
    crc64nvme: int | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class CopyReport:
    """A batch in which every request succeeded. ``files`` are in the order of completion."""

    files: tuple[CopiedFile, ...] = ()
    seconds: float = 0.0

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def bytes_moved(self) -> int:
        """Bytes that crossed the network or were rewritten on disk."""
        return sum(file.bytes for file in self.files if file.method not in UNMOVED)

    @property
    def methods(self) -> dict[str, int]:
        """Number of files per method."""
        return dict(Counter(file.method for file in self.files))

    @classmethod
    def joined(cls, reports: Iterable[CopyReport], *, seconds: float) -> CopyReport:
        return cls(tuple(file for report in reports for file in report.files), seconds)
