"""HTTP/1.1 messages as the servers of the tests read and write them (RFC 9112), as far as S3 needs."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field, replace
from typing import TypeAlias

_LIMIT = 1 << 16
Headers: TypeAlias = list[tuple[str, str]]


class Hangup(Exception):
    """The client or the server closed the connection."""


def header(headers: Headers, name: str) -> str | None:
    return next((value for key, value in headers if key.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came from the client.

    Args:
        connection: number of the client's connection, from 0.
        body: without decoding a chunked transfer-encoding.
        raw: the head, to be sent on unchanged.
    """

    method: str
    target: str
    headers: Headers
    body: bytes
    connection: int
    raw: bytes = field(repr=False)
    at: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    @property
    def range(self) -> str | None:
        return self.header("range")

    def header(self, name: str) -> str | None:
        return header(self.headers, name)


@dataclass(slots=True)
class Answer:
    """An answer to give; ``body`` is what ``Content-Length`` counts."""

    status: int
    reason: str
    headers: Headers
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return header(self.headers, name)

    def replace(self, name: str, value: str | None) -> None:
        """Set a header once, or drop it."""
        self.headers = [each for each in self.headers if each[0].lower() != name.lower()]
        if value is not None:
            self.headers.append((name, value))

    @property
    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {self.reason}", *(f"{key}: {value}" for key, value in self.headers)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Reader:
    """HTTP/1.1 messages from a socket (RFC 9112), as far as S3 clients and rclone use them."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._buffer = bytearray()

    def request(self, connection: int, client: socket.socket) -> Request | None:
        """The head of the next request; None at the end of the connection."""
        raw = self._head()
        if raw is None:
            return None
        first, headers = _parse(raw)
        method, target, _version = first.split(" ", 2)
        if (header(headers, "expect") or "").lower() == "100-continue":
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(method, target, headers, b"", connection, raw)

    def with_body(self, request: Request) -> Request:
        """The request with its body, which comes behind its head."""
        return replace(request, body=self._body(request.headers, raw_chunks=True, to_end=False))

    def answer(self, method: str) -> Answer:
        """The final answer to a request of this method; interim ones (1xx) are skipped."""
        status = 100
        while 100 <= status < 200:
            raw = self._head()
            if raw is None:
                raise Hangup
            first, headers = _parse(raw)
            _version, code, *reason = first.split(" ", 2)
            status = int(code)
        answer = Answer(status, reason[0] if reason else "", headers)
        if method != "HEAD" and status not in {204, 304}:
            answer.body = self._body(headers, raw_chunks=False, to_end=True)
            answer.replace("Transfer-Encoding", None)
            answer.replace("Content-Length", str(len(answer.body)))
        answer.replace("Connection", None)
        return answer

    def _more(self) -> bool:
        data = self._source.recv(1 << 18)
        self._buffer += data
        return bool(data)

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _until(self, mark: bytes) -> bytes | None:
        while (found := self._buffer.find(mark)) < 0:
            if len(self._buffer) > _LIMIT or not self._more():
                return None
        return self._take(found + len(mark))

    def exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            if not self._more():
                raise Hangup
        return self._take(count)

    def _head(self) -> bytes | None:
        return self._until(b"\r\n\r\n")

    def _body(self, headers: Headers, *, raw_chunks: bool, to_end: bool) -> bytes:
        if (header(headers, "transfer-encoding") or "").lower() == "chunked":
            return b"".join(self._chunks(raw=raw_chunks))
        length = header(headers, "content-length")
        if length is not None:
            return self.exactly(int(length))
        if to_end:
            while self._more():
                pass
            return self._take(len(self._buffer))
        return b""

    def _chunks(self, *, raw: bool) -> list[bytes]:
        parts = []
        while True:
            line = self._until(b"\r\n")
            if line is None:
                raise Hangup
            size = int(line.split(b";")[0], 16)
            data = self.exactly(size + 2)
            parts.append(line + data if raw else data[:-2])
            if size == 0:
                return parts


def _parse(raw: bytes) -> tuple[str, Headers]:
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, [(name.strip(), value.strip()) for name, _colon, value in pairs]
