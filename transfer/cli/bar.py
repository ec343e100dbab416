"""A progress bar on stderr, where that is a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...backends.report import Progress
from ...backends.request import CopyRequest
from .text import size_text


@contextmanager
def progress_bar(title: str, total: int | None, *, quiet: bool = False) -> Iterator[Progress | None]:
    """A callback that moves the bar; None where there is no terminal, or rich is not installed.

    Args:
        total: bytes expected, where known.
    """
    made = None if quiet or not sys.stderr.isatty() else _Bar.make(title, total)
    if made is None:
        yield None
        return
    with made.progress:
        yield made
        made.show()


def total_of(requests: Iterable[CopyRequest]) -> int | None:
    """Bytes of a batch, if every size is known."""
    sizes = [request.expected for request in requests]
    return None if None in sizes else sum(size for size in sizes if size is not None)


class _Bar:
    """Counts in the copying threads, draws in rich's own."""

    def __init__(self, progress: Any, task: Any) -> None:
        self.progress = progress
        self._task = task
        self._lock = threading.Lock()
        self._bytes = 0

    @classmethod
    def make(cls, title: str, total: int | None) -> _Bar | None:
        try:
            from rich import progress
            from rich.console import Console
        except ImportError:
            return None
        columns: Sequence[Any] = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(binary_units=True),
            progress.TextColumn("{task.fields[rate]:>9}"),
            progress.TimeRemainingColumn(compact=True),
        )

        class Counted(progress.Progress):
            def get_renderables(self) -> Any:
                if bar:
                    bar[0].show()
                return super().get_renderables()

        bar: list[_Bar] = []
        shown = Counted(*columns, console=Console(stderr=True), transient=True, refresh_per_second=8)
        bar.append(cls(shown, shown.add_task(title, total=total, rate="")))
        return bar[0]

    def __call__(self, _request: CopyRequest, count: int) -> None:
        with self._lock:
            self._bytes += count

    def show(self) -> None:
        task = self.progress.tasks[0]
        # rich's own column counts in powers of 1000, unlike everything else here.
        rate = f"{size_text(task.speed)}/s" if task.speed else ""
        self.progress.update(self._task, completed=self._bytes, rate=rate)
