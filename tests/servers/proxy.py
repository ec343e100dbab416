"""A TCP proxy that lets only so many bytes a second through: makes any server slow, TLS too."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_CHUNK = 1 << 16
_TICK = 0.01


class SlowProxy:
    """Forwards connections to ``endpoint``; all of them together move ``rate`` bytes a second.

    Both may change while it runs: ``rate = 0`` holds every byte back, ``rate = None`` none.

    Attributes:
        endpoint: where clients connect to.
        moved: payload bytes that went through, both directions together.
        connections: how many clients have connected.
    """

    def __init__(self, endpoint: str, *, rate: float | None) -> None:
        parts = urlsplit(endpoint)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.rate = rate
        self.moved = 0
        self.connections = 0
        self._budget = 0.0
        self._filled = time.monotonic()
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        # Certificates and signatures name the host: keep the one that the server goes by.
        self.endpoint = f"{parts.scheme}://{parts.hostname}:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._sockets:
                _close(each)
        for thread in list(self._threads):
            thread.join()

    def wait_until_moved(self, count: int, *, timeout: float = 30.0) -> None:
        """Return once ``count`` bytes went through."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.moved >= count, timeout):
                raise TimeoutError(f"only {self.moved} of {count} bytes went through the proxy")

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="slow-proxy", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _address = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                if self._closing.is_set():
                    _close(client)
                    _close(server)
                    return
                self._sockets += [client, server]
            self._start(self._forward, client, server)
            self._start(self._forward, server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(_CHUNK):
                self._send(target, memoryview(data))
        except OSError:
            pass
        finally:
            # Half-closed: the other direction may still be answering.
            for each, how in ((source, socket.SHUT_RD), (target, socket.SHUT_WR)):
                with contextlib.suppress(OSError):
                    each.shutdown(how)

    def _send(self, target: socket.socket, data: memoryview) -> None:
        while data:
            count = self._allowance(len(data))
            if count == 0:
                if self._closing.wait(_TICK):
                    raise ConnectionAbortedError
                continue
            target.sendall(data[:count])
            data = data[count:]
            with self._changed:
                self.moved += count
                self._changed.notify_all()

    def _allowance(self, wanted: int) -> int:
        with self._lock:
            now = time.monotonic()
            elapsed, self._filled = now - self._filled, now
            if self.rate is None:
                return wanted
            # At most a few ticks' worth is saved up: idle time must not become a burst.
            self._budget = min(self._budget + elapsed * self.rate, self.rate * 5 * _TICK + 1)
            count = min(wanted, int(self._budget))
            self._budget -= count
            return count


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextmanager
def slow_proxy(endpoint: str, *, rate: float) -> Iterator[str]:
    """An endpoint that leads to ``endpoint`` at ``rate`` bytes per second."""
    with SlowProxy(endpoint, rate=rate) as proxy:
        yield proxy.endpoint
