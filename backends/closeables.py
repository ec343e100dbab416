"""Cancellation as a value that is handed down: closing it ends what was registered with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .errors import CopyCancelled

_CALLABLE_ENDS_WITHIN = 1.0


class CloseableRegistry:
    """Callables that end some work, to be called when the work is cancelled.

    Closing is idempotent and may come from any thread; the first reason is kept. Callables run
    with no lock held, the youngest first; registering with a closed registry raises at once.
    A child closes with its parent, never the parent with its child.

    Callables end work and return; they do not wait for it: the end of the block that registered
    one waits for it, so that it never meets what came after (a descriptor or pid used again).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._callables: dict[int, Callable[[], object]] = {}
        self._running: dict[int, threading.Event] = {}
        self._closer: int | None = None
        self._next = 0
        self._reason = "the copy was cancelled"

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    @property
    def reason(self) -> str:
        return self._reason

    def check(self) -> None:
        """Raise ``CopyCancelled`` if closed. Long loops call it once per chunk."""
        if self._closed.is_set():
            raise CopyCancelled(self._reason)

    def wait(self, seconds: float) -> None:
        """Sleep, but raise ``CopyCancelled`` as soon as the registry is closed."""
        if self._closed.wait(seconds):
            raise CopyCancelled(self._reason)

    @contextmanager
    def registered(self, close: Callable[[], object]) -> Iterator[None]:
        """Have ``close`` called if the registry is closed within this block."""
        with self._lock:
            self.check()
            token = self._next
            self._next += 1
            self._callables[token] = close
        try:
            yield
        finally:
            with self._lock:
                self._callables.pop(token, None)
                running = self._running.get(token)
            # Bounded: a callable that waits for this block must not become a deadlock.
            if running is not None and self._closer != threading.get_ident():
                running.wait(_CALLABLE_ENDS_WITHIN)

    @contextmanager
    def child(self) -> Iterator[CloseableRegistry]:
        """A registry that closes with this one and can be closed alone."""
        registry = CloseableRegistry()
        with self.registered(lambda: registry.close(self._reason)):
            yield registry

    def close(self, reason: str | None = None) -> None:
        """End everything registered. Errors of the callables are raised, as a group, after all ran."""
        with self._lock:
            if self._closed.is_set():
                return
            if reason:
                self._reason = reason
            self._closer = threading.get_ident()
            self._running = {token: threading.Event() for token in self._callables}
            callables = [(token, self._callables.pop(token)) for token in sorted(self._callables, reverse=True)]
            self._closed.set()
        errors = [error for token, close in callables if (error := self._call(token, close))]
        if errors:
            raise BaseExceptionGroup("closing failed", errors)

    def _call(self, token: int, close: Callable[[], object]) -> BaseException | None:
        try:
            close()
        except BaseException as error:
            return error
        finally:
            self._running[token].set()
        return None
