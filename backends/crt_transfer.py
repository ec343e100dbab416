"""One transfer of s3transfer's CRT manager: begun, watched, ended with its registry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from .closeables import CloseableRegistry
from .crt_client import CrtClient
from .crt_errors import translating_crt
from .errors import CopyCancelled, StalledTransfer
from .request import CopyRequest
from .tcp_counters import bytes_moved

_LOOK = 0.2
#: Bytes that must move within the stall timeout where no part arrives: less is no transfer.
_SIGN_OF_LIFE = 4096
Advance = Callable[[int], None]


class Life:
    """Whether anything still moves: parts that arrive, or bytes on the connections between two parts."""

    def __init__(self, port: int, seconds: float) -> None:
        self.seconds = seconds
        self._port = port
        self._lock = threading.Lock()
        self._at = time.monotonic()
        self._looked = 0.0
        self._moved = 0

    def beat(self) -> None:
        self._at = time.monotonic()

    def stalled(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if now - self._looked > min(1.0, self.seconds / 4):
                self._looked = now
                self._note(bytes_moved(self._port), now)
            return now - self._at > self.seconds

    def _note(self, moved: int | None, now: float) -> None:
        if moved is not None and not self._moved <= moved < self._moved + _SIGN_OF_LIFE:
            # Fewer than before: a connection was closed, which is none.
            self._at = now if moved > self._moved else self._at
            self._moved = moved


class CrtTransfer:
    """One request of s3transfer's CRT manager."""

    def __init__(
        self,
        client: CrtClient,
        life: Life,
        registry: CloseableRegistry,
        request: CopyRequest,
        advance: Advance,
        *,
        validate: bool,
    ) -> None:
        self._client = client
        self._life = life
        self._registry = registry
        self._request = request
        self._advance = advance
        self._validate = validate
        self.done = threading.Event()
        self._headers: dict[str, str] = {}
        self._moved = 0
        self._trouble: Exception | None = None

    def run(self, direction: str, where: dict[str, str], path: str, extra: dict[str, Any]) -> dict[str, str]:
        """Headers of the answer, by lower-case name; returns when the CRT has done with the file."""
        self._registry.check()
        self._life.beat()
        begin = getattr(_manager(self, self._client.serializer()), direction)
        names = {"bucket": where["Bucket"], "key": where["Key"]}
        try:
            with self._translating(direction):
                future = begin(fileobj=path, **names, extra_args=extra, subscribers=[_subscriber_class()(self)])
                self._await(future)
                self._finish(future)
        except BaseException:
            self._advance(-self._moved)
            raise
        return self._headers

    @contextmanager
    def _translating(self, direction: str) -> Iterator[None]:
        request = self._request
        local, uri = request.destination, request.source
        if direction == "upload":
            local, uri = uri, local
        try:
            with translating_crt(uri, local, request):
                yield
        except Exception:
            self._registry.check()
            raise

    def _await(self, future: Any) -> None:
        try:
            with self._registry.registered(future.cancel):
                while not self.done.wait(_LOOK):
                    if self._life.stalled() and self._trouble is None:
                        seconds = self._life.seconds
                        self._trouble = StalledTransfer(f"{self._request.source}: no byte moved for {seconds:g} s")
                    if self._trouble:
                        future.cancel()
        except CopyCancelled:
            # The registry was closed just before.
            future.cancel()
            self.done.wait()

    def _finish(self, future: Any) -> None:
        try:
            future.result()
        except Exception:
            if self._trouble is None:
                raise
        if self._trouble:
            raise self._trouble

    def progress(self, count: int) -> None:
        self._life.beat()
        self._moved += count
        try:
            self._advance(count)
        except Exception as error:
            # This is a thread of the CRT, which has no use for it.
            self._trouble = error

    def make_request(self, **arguments: Any) -> Any:
        """What the manager takes for its client: keeps the answer's head, and chooses what is validated."""
        if not self._validate:
            arguments["checksum_config"] = None
        return self._client.make_request(**arguments, on_headers=self._keep)

    def _keep(self, headers: list[tuple[str, str]], **_: Any) -> None:
        self._headers = {name.lower(): value for name, value in headers}


def _manager(transfer: CrtTransfer, serializer: Any) -> Any:
    """A manager of one transfer. It writes to a temporary name beside the staged file, within our directory."""
    from s3transfer.crt import CRTTransferManager

    manager: Any = CRTTransferManager(transfer, serializer)
    manager.ALLOWED_DOWNLOAD_ARGS = [*manager.ALLOWED_DOWNLOAD_ARGS, "Range", "IfMatch"]
    return manager


@cache
def _subscriber_class() -> Any:
    """Made once: s3transfer inspects the methods of every new class."""
    from s3transfer.subscribers import BaseSubscriber

    class Subscriber(BaseSubscriber):
        def __init__(self, transfer: CrtTransfer) -> None:
            self._transfer = transfer

        def on_progress(self, future: Any, bytes_transferred: int, **_: Any) -> None:  # noqa: ARG002
            self._transfer.progress(bytes_transferred)

        def on_done(self, future: Any, **_: Any) -> None:  # noqa: ARG002
            self._transfer.done.set()

    return Subscriber
