"""The interface that every backend implements, and its duties.

An implementation

* copies as far as ``can_copy_paths`` says yes, and treats an empty list as a no-op;
* gives a destination all of its bytes or does not touch it: temporary file on the same file
  system under a name that no scan for state files matches, then rename; existing files are
  replaced; parent directories are made; what a killed process left is swept at the next start;
* checks sizes always, and checksums whenever the request carries one or the store returns one;
* returns or raises only when no thread, socket or child of it still works;
* ends within 1 s when the registry is closed, from any thread, and leaves no temporary file;
* notices a transfer without progress within seconds, treats a full disk as fatal at once,
  and keeps to the batch's deadline;
* works in a forked process: pools and clients are made on first use and belong to one pid;
* is picklable, without clients and without secrets.

``tests/contract.py`` holds every implementation to this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .closeables import CloseableRegistry
from .report import CopyReport, Progress
from .request import CopyRequest


@runtime_checkable
class PathsCopyingFileSystem(Protocol):
    """Copies files that it is given the paths of, natively and in batch."""

    @property
    def name(self) -> str:
        """The backend's name in options, reports and errors."""
        ...

    def can_copy_paths(self, source: str, destination: str) -> bool:
        """Whether this implementation can copy this pair at all. Asks no server."""
        ...

    def copy_files(
        self,
        requests: Sequence[CopyRequest],
        closeables: CloseableRegistry,
        *,
        progress: Progress | None = None,
        deadline: float | None = None,
        fail_fast: bool = True,
    ) -> CopyReport:
        """Copy all requests.

        Args:
            closeables: closing it, from any thread, ends the copy.
            progress: called with a request and the number of bytes that arrived.
            deadline: seconds from now within which the batch must end.
            fail_fast: end the batch at the first failure that every other way of copying would
                share (``error.shared``); otherwise run every request. A full disk always ends it.

        Raises:
            CopyFailed: at least one request failed; names those that failed and those done.
            CopyCancelled: the registry was closed.
        """
        ...

    def close(self) -> None:
        """Release pools and connections; the next copy makes new ones."""
        ...
