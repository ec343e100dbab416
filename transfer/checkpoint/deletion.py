"""Deletes in the background, in order, retried, never in the way of a checkpoint."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Protocol

from ...backends.batch import backoff
from ...backends.errors import TransferError

_LOG = logging.getLogger("statelift")
_ATTEMPTS = 4


class Deletes(Protocol):
    """What can delete: `transfer.objects.Objects`, or a stand-in."""

    def delete(self, uris: Sequence[str]) -> None: ...


class Deleter:
    """A queue of deletions and the one thread that works through it.

    A job is a sequence of groups; a group is only begun when the one before it is gone, so that a
    checkpoint's metadata goes before the files it names. What cannot be deleted is logged and left
    to the orphan sweep.
    """

    def __init__(self, objects: Deletes, *, background: bool = True) -> None:
        self._objects = objects
        self._background = background
        self._jobs: queue.Queue[list[list[str]] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.failed: list[str] = []

    def submit(self, *groups: Sequence[str]) -> None:
        """Delete these groups of URIs, one group after the other."""
        job = [list(group) for group in groups if group]
        if not job:
            return
        if not self._background or self._stopped.is_set():
            self._run(job)
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="statelift-deleter", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run(job)

    def _run(self, job: list[list[str]]) -> None:
        for group in job:
            if not self._delete(group):
                return

    def _delete(self, group: list[str]) -> bool:
        for attempt in range(_ATTEMPTS):
            try:
                self._objects.delete(group)
            except TransferError as error:
                if attempt + 1 < _ATTEMPTS and error.transient:
                    self._stopped.wait(backoff(attempt))
                    continue
                _LOG.warning("could not delete %d files, first %s: %s", len(group), group[0], error)
                self.failed.extend(group)
                return False
            return True
        return False

    def close(self) -> None:
        """Finish what was submitted."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()
        self._stopped.set()
