"""Ctrl-C and SIGTERM: end the work in order, clean up, then exit with the signal's code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from ...backends.closeables import CloseableRegistry
from ...backends.errors import CopyCancelled, CopyFailed
from ...backends.report import CopiedFile

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal ended the command.

    Args:
        done: the files that had been copied by then.
    """

    def __init__(self, number: int, done: Sequence[CopiedFile] = ()) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.code = 128 + number
        self.done = tuple(done)


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """Have either signal raise `Interrupted` in this block. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def closing_on_interrupt(closeables: CloseableRegistry) -> Iterator[None]:
    """Have the first signal close the registry, so that the copy ends as if cancelled; a second one raises.

    Raises:
        Interrupted: a signal came and the work has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def close(number: int, _frame: FrameType | None) -> None:
        if received:
            raise Interrupted(number)
        received.append(number)
        # Not here: this thread may hold the registry's lock right now.
        threading.Thread(target=closeables.close, args=[f"interrupted by {signal.Signals(number).name}"]).start()

    before = {number: signal.signal(number, close) for number in _SIGNALS}
    try:
        yield
    except (CopyCancelled, CopyFailed) as error:
        if received:
            raise Interrupted(received[0], error.done) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
