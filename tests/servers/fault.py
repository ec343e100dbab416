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
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias
from urllib.parse import urlsplit

from .messages import Answer, Hangup, Headers, Reader, Request, header

__all__ = ["Action", "Answer", "Exchange", "FaultServer", "Hangup", "Headers", "Match", "Request", "Rule", "header"]

_TIMEOUT = 60.0


Action: TypeAlias = "Callable[[Exchange], None]"
Match: TypeAlias = "str | Callable[[Request], bool]"


@dataclass
class Rule:
    """Which requests get which answer.

    Args:
        match: a shell pattern over ``METHOD /path?query``, or a function of the request.
        times: how many matching requests get the action; None for all.
        after: how many matching requests go through before.
        early: the action begins when the head has come, and takes of the body what it wants.
    """

    match: Match
    action: Action
    times: int | None = 1
    after: int = 0
    early: bool = False
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

    def __init__(self, server: FaultServer, client: socket.socket, request: Request, reader: Reader) -> None:
        self.server = server
        self.request = request
        self._reader = reader
        self.keep = (request.header("connection") or "").lower() != "close"
        self._client = client

    def take(self, count: int) -> bytes:
        """The next bytes of a request's body, in an early action."""
        return self._reader.exactly(count)

    def read_body(self) -> None:
        """The rest of a request's body, in an early action."""
        self.request = self._reader.with_body(self.request)

    def forward(self, body: bytes | None = None) -> Answer:
        """The upstream's answer, read to its end.

        Args:
            body: instead of the request's own.
        """
        return self.server.ask_upstream(self.request if body is None else replace(self.request, body=body))

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
        rule = self._rule(request, early=True)
        if rule is None:
            request = reader.with_body(request)
            rule = self._rule(request, early=False)
        exchange = Exchange(self, client, request, reader)
        with self._lock:
            self.requests.append(request)
        if rule:
            rule.action(exchange)
        else:
            exchange.answer(exchange.forward())
        return exchange.keep

    def _rule(self, request: Request, *, early: bool) -> Rule | None:
        with self._lock:
            return next((rule for rule in self.rules if rule.early == early and rule.takes(request)), None)

    def ask_upstream(self, request: Request) -> Answer:
        with socket.create_connection(self._upstream, timeout=_TIMEOUT) as upstream:
            upstream.sendall(request.raw)
            upstream.sendall(request.body)
            return Reader(upstream).answer(request.method)


def _tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context
