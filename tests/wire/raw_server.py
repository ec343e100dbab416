"""A server that answers each request by a function of it, for what no real store does on cue."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeAlias


@dataclass(frozen=True)
class Asked:
    """One request: its first line, headers and body, and the number of its connection."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


#: The whole answer as bytes; None closes the connection.
Answering: TypeAlias = Callable[[Asked], bytes | None]


def answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class RawServer:
    """Serves until the block ends; ``asked`` has every request.

    Args:
        reads_bodies: otherwise the answer is sent as soon as a request's head has come, the end behind it, and the
            body is left unread until the client has had time to notice; ``drained`` counts what it sent.
    """

    def __init__(self, answering: Answering, *, host: str = "127.0.0.1", reads_bodies: bool = True) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._answering = answering
        self._reads_bodies = reads_bodies
        self._threads: list[threading.Thread] = []
        self._peers: list[socket.socket] = []
        self.asked: list[Asked] = []
        self.drained = 0
        shown = f"[{host}]" if ":" in host else host
        self.endpoint = f"http://{shown}:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._listener, *self._peers):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="fault-raw", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _address = self._listener.accept()
                self._peers.append(peer)
                self._start(self._serve, peer, len(self._peers))

    def _serve(self, peer: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError, ValueError), peer, peer.makefile("rb") as reader:
            while line := reader.readline().decode().strip():
                headers = {}
                while header := reader.readline().decode().strip():
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = reader.read(int(headers.get("content-length", "0"))) if self._reads_bodies else b""
                asked = Asked(line, headers, body, number)
                self.asked.append(asked)
                given = self._answering(asked)
                if given is None:
                    return
                peer.sendall(given)
                if not self._reads_bodies:
                    self._leave_unread(peer)
                    return

    def _leave_unread(self, peer: socket.socket) -> None:
        # Closed with bytes unread, the socket would send a RST, which may overtake the answer.
        peer.shutdown(socket.SHUT_WR)
        time.sleep(0.3)
        while data := peer.recv(1 << 20):
            self.drained += len(data)
