"""Open connections of one process: kept between copies, limited, made anew after a fork."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import threading
import time
from typing import Any

from ..errors import ConnectionFailed
from ..s3_access import S3Access
from .connection import Connection
from .endpoint import Server
from .limits import Slots, state_directory
from .loop import Loop
from .options import WireOptions
from .tls import Tls, make_context

# Servers drop idle connections after 5 s or more; asking costs less than finding that out.
_IDLE_MOST = 20.0
_POLL = 0.02
_NAME_LIFETIME = 30.0


class Pool:
    """Connections by server. Belongs to one process; several loops of it may share it."""

    def __init__(self, access: S3Access, options: WireOptions) -> None:
        self.pid = os.getpid()
        self._access = access
        self._options = options
        self._lock = threading.Lock()
        self._idle: dict[Server, list[Connection]] = {}
        self._open = 0
        self._names: dict[tuple[str, int], tuple[float, list[tuple[Any, ...]]]] = {}
        self._context: ssl.SSLContext | None = None
        self._sessions: dict[Server, ssl.SSLSession] = {}
        self._slots = self._make_slots()
        self._tokens: dict[Connection, int] = {}

    def _make_slots(self) -> Slots | None:
        if not self._options.host_limits:
            return None
        directory = state_directory(self._options.state_directory) / "connections"
        return Slots(directory, self._options.connections)

    async def acquire(self, loop: Loop, server: Server, scratch: memoryview, *, fresh: bool = False) -> Connection:
        """A connection to ``server``, kept or new; give it back by `release` or `discard`.

        Args:
            fresh: not one that was kept.

        Raises:
            ConnectionFailed, StalledTransfer: it cannot be opened.
        """
        while True:
            connection = None if fresh else self._kept(loop, server)
            if connection is not None:
                return connection
            if self._reserve(server):
                return await self._new(loop, server, scratch)
            await loop.sleep(_POLL)

    def _kept(self, loop: Loop, server: Server) -> Connection | None:
        while True:
            with self._lock:
                idle = self._idle.get(server)
                if not idle:
                    return None
                connection = idle.pop()
            if time.monotonic() - connection.idle_since < _IDLE_MOST and connection.attach(loop):
                return connection
            self.discard(connection)

    def _reserve(self, server: Server) -> bool:
        with self._lock:
            if self._open >= self._options.connection_limit(tls=server.tls):
                # Connections that idle for another server make room.
                victim = next((idle.pop() for each, idle in self._idle.items() if each != server and idle), None)
                if victim is None:
                    return False
                self._drop(victim)
            self._open += 1
            return True

    async def _new(self, loop: Loop, server: Server, scratch: memoryview) -> Connection:
        connection = Connection(server)
        try:
            await self._take_slot(loop, connection)
            addresses = await self._resolve(loop, server.address)
            timeout = self._access.transfer.connect_timeout
            wrap = (lambda plain: self._wrap(plain, server)) if server.tls else None
            await connection.open(loop, addresses, timeout=timeout, scratch=scratch, wrap=wrap)
        except BaseException:
            self.discard(connection)
            raise
        return connection

    async def _take_slot(self, loop: Loop, connection: Connection) -> None:
        while self._slots is not None and connection not in self._tokens:
            token = self._slots.acquire()
            if token is not None:
                self._tokens[connection] = token
            else:
                await loop.sleep(_POLL * random.uniform(0.5, 1.5))

    def _wrap(self, plain: socket.socket, server: Server) -> Tls:
        with self._lock:
            if self._context is None:
                self._context = make_context(self._access.options.ca_bundle)
        return Tls(plain, self._context, server.host, self._sessions.get(server))

    async def _resolve(self, loop: Loop, address: tuple[str, int]) -> list[tuple[Any, ...]]:
        """Addresses of a name, in another order each time, so that load spreads over a store's many."""
        expires, found = self._names.get(address, (0.0, []))
        if time.monotonic() > expires:
            host, port = address
            try:
                if _is_number(host) or host == "localhost":
                    raw = _look_up(host, port)
                else:
                    timeout = self._access.transfer.connect_timeout
                    raw = await loop.in_thread(lambda: _look_up(host, port), timeout=timeout)
            except (OSError, UnicodeError) as error:
                raise ConnectionFailed(f"cannot resolve {host}: {error}", remedy="check s3.endpoint") from error
            found = [(each[0], each[4]) for each in raw]
            self._names[address] = (time.monotonic() + _NAME_LIFETIME, found)
        return random.sample(found, len(found))

    def release(self, connection: Connection) -> None:
        """Keep a connection whose last answer was read to its end."""
        # Once per server: asking OpenSSL for the session costs a millisecond.
        if connection.tls is not None and connection.server not in self._sessions:
            session = connection.tls.session
            if session is not None:
                self._sessions[connection.server] = session
        connection.exchanges += 1
        connection.idle_since = time.monotonic()
        with self._lock:
            self._idle.setdefault(connection.server, []).append(connection)

    def discard(self, connection: Connection) -> None:
        with self._lock:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._open -= 1
        token = self._tokens.pop(connection, None)
        if token is not None and self._slots is not None:
            self._slots.release(token)

    def leave(self, loop: Loop, *, keep: bool) -> None:
        """Take the kept connections out of a loop that ends; close them unless they may be used again."""
        with self._lock:
            for idle in self._idle.values():
                mine = [connection for connection in idle if connection.belongs_to(loop)]
                for connection in mine:
                    connection.detach()
                    if not keep or self._slots is not None:
                        idle.remove(connection)
                        self._drop(connection)

    def close(self) -> None:
        with self._lock:
            for idle in self._idle.values():
                while idle:
                    self._drop(idle.pop())

    def forget(self) -> None:
        """In a forked child: close the copies of the parent's descriptors, say nothing to the servers."""
        with contextlib.suppress(OSError):
            for idle in self._idle.values():
                for connection in idle:
                    connection.abandon()


def _is_number(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _look_up(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
