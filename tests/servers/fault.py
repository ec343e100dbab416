"""A scripted fault proxy in front of a real S3 server.

Every request goes to the upstream byte for byte as the client signed it (SigV4 covers the Host
header, so it is not rewritten), unless a `Rule` matches it: then the rule's action decides what
the client gets. The actions are in `fault_actions`.

    with FaultServer(s3.endpoint) as server:
        server.add(Rule("GET *big", action=reset(after=1000), times=2))
        ...copy from server.endpoint...
        assert [request.range for request in server.requests] == [...]
"""

from __future__ import annotations

import contextlib
import fnmatch
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias
from urllib.parse import urlsplit

_TIMEOUT = 60.0
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


Action: TypeAlias = "Callable[[Exchange], None]"
Match: TypeAlias = "str | Callable[[Request], bool]"


@dataclass
class Rule:
    """Which requests get which answer.

    Args:
        match: a shell pattern over ``METHOD /path?query``, or a function of the request.
        times: how many matching requests get the action; None for all.
        after: how many matching requests go through before.
    """

    match: Match
    action: Action
    times: int | None = 1
    after: int = 0
    seen: int = 0
    used: int = 0

    def takes(self, request: Request) -> bool:
        if not self._matches(request):
            return False
        self.seen += 1
        if self.seen <= self.after or (self.times is not None and self.used >= self.times):
            return False
        self.used += 1
        return True

    def _matches(self, request: Request) -> bool:
        if callable(self.match):
            return self.match(request)
        return fnmatch.fnmatchcase(f"{request.method} {request.target}", self.match)


class Exchange:
    """One request and what an action may do about it."""

    def __init__(self, server: FaultServer, client: socket.socket, request: Request) -> None:
        self.server = server
        self.request = request
        self.keep = (request.header("connection") or "").lower() != "close"
        self._client = client

    def forward(self) -> Answer:
        """The upstream's answer, read to its end."""
        return self.server.ask_upstream(self.request)

    def send(self, data: bytes) -> None:
        try:
            self._client.sendall(data)
        except OSError as error:
            raise Hangup from error

    def answer(self, answer: Answer) -> None:
        self.send(answer.head + (b"" if self.request.method == "HEAD" else answer.body))

    def hang_up(self) -> None:
        """Close in good order: the client reads what was sent, then the end."""
        raise Hangup

    def reset(self) -> None:
        """Close with a RST segment."""
        with contextlib.suppress(OSError):
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Hangup

    def wait(self, seconds: float = float("inf")) -> None:
        """Do nothing; end early, and hang up, when the client goes or the server is closed."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.server.closing.is_set() or _is_gone(self._client):
                raise Hangup
            time.sleep(min(left, 0.02))


def _is_gone(client: socket.socket) -> bool:
    """Whether the peer closed; what it sent before (a TLS close_notify) may still be unread."""
    poll = select.poll()
    try:
        poll.register(client, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


class FaultServer:
    """The proxy; one thread per client connection, all of them gone when the block ends.

    Args:
        upstream: endpoint of the real server, plain HTTP.
        certificate: (chain, key) as PEM files turn TLS on towards the client.

    Attributes:
        rules: tried in order; the first that takes a request wins.
        requests: every request, in order of arrival.
    """

    def __init__(self, upstream: str, *, certificate: tuple[Path, Path] | None = None) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._tls = _tls(certificate) if certificate else None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._clients: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.closing = threading.Event()
        self.rules: list[Rule] = []
        self.requests: list[Request] = []
        self.connections = 0

    @property
    def endpoint(self) -> str:
        port = self._listener.getsockname()[1]
        return f"https://localhost:{port}" if self._tls else f"http://127.0.0.1:{port}"

    @property
    def open_connections(self) -> int:
        """Client connections that neither side has closed."""
        with self._lock:
            return sum(not _is_gone(client) for client in self._clients)

    def add(self, *rules: Rule) -> None:
        self.rules.extend(rules)

    def clear(self) -> None:
        """Forget the rules and the log."""
        self.rules.clear()
        self.requests.clear()

    def __enter__(self) -> Self:
        self._start(self._accept, "fault-accept")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        # A thread that blocks in accept() is woken by shutdown, not by close.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), thread.name

    def _start(self, target: Callable[..., None], name: str, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                client, _address = self._listener.accept()
            except OSError:
                return
            number, self.connections = self.connections, self.connections + 1
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._start(self._serve, f"fault-{number}", client, number)

    def _serve(self, client: socket.socket, number: int) -> None:
        with contextlib.ExitStack() as stack:
            client.settimeout(_TIMEOUT)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                try:
                    client = self._tls.wrap_socket(client, server_side=True)
                except OSError:
                    client.close()
                    return
            with self._lock:
                self._clients.add(client)
            stack.callback(self._drop, client)
            with contextlib.suppress(Hangup, OSError):
                reader = Reader(client)
                while not self.closing.is_set() and self._exchange(client, reader, number):
                    pass

    def _drop(self, client: socket.socket) -> None:
        with self._lock:
            self._clients.discard(client)
        client.close()

    def _exchange(self, client: socket.socket, reader: Reader, number: int) -> bool:
        request = reader.request(number, client)
        if request is None:
            return False
        exchange = Exchange(self, client, request)
        with self._lock:
            self.requests.append(request)
            rule = next((rule for rule in self.rules if rule.takes(request)), None)
        if rule:
            rule.action(exchange)
        else:
            exchange.answer(exchange.forward())
        return exchange.keep

    def ask_upstream(self, request: Request) -> Answer:
        with socket.create_connection(self._upstream, timeout=_TIMEOUT) as upstream:
            upstream.sendall(request.raw)
            upstream.sendall(request.body)
            return Reader(upstream).answer(request.method)


def _tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


class Reader:
    """HTTP/1.1 messages from a socket (RFC 9112), as far as S3 clients and rclone use them."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._buffer = bytearray()

    def request(self, connection: int, client: socket.socket) -> Request | None:
        """The next request; None at the end of the connection."""
        raw = self._head()
        if raw is None:
            return None
        first, headers = _parse(raw)
        method, target, _version = first.split(" ", 2)
        if (header(headers, "expect") or "").lower() == "100-continue":
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self._body(headers, raw_chunks=True, to_end=False)
        return Request(method, target, headers, body, connection, raw)

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

    def _exactly(self, count: int) -> bytes:
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
            return self._exactly(int(length))
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
            data = self._exactly(size + 2)
            parts.append(line + data if raw else data[:-2])
            if size == 0:
                return parts


def _parse(raw: bytes) -> tuple[str, Headers]:
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, [(name.strip(), value.strip()) for name, _colon, value in pairs]
