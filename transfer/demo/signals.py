"""Ctrl-C and SIGTERM end a block by an exception, so that everything in it is cleaned up."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """A block that the first SIGINT or SIGTERM ends, by `KeyboardInterrupt` or `SystemExit`.

    Python drops an exception that a handler raises while a finalizer runs: call `check` between
    the steps. In any thread but the main one, which alone gets signals, it does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._received: int | None = None
        self._hook = sys.unraisablehook

    def __enter__(self) -> Self:
        self.arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        sys.unraisablehook = self._hook
        if self._received is not None:
            logging.disable(logging.NOTSET)

    def arm(self) -> None:
        """Take the signals; again after PySpark took them."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.signal(number, self._handle)
                self._before.setdefault(number, before)

    def check(self) -> None:
        """Raise, if a signal came."""
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received is not None:
            raise SystemExit(128 + self._received)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._received is not None:
            # Cleaning up is on its way, and short.
            return
        self._received = number
        # py4j logs its interrupted calls at length, and to the root logger.
        logging.disable(logging.CRITICAL)
        sys.unraisablehook = lambda _: None
        self.check()
