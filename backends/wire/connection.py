"""One keep-alive connection to a server, perhaps through a proxy, perhaps over TLS."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

from ..errors import ConnectionFailed, StalledTransfer
from .endpoint import Server
from .loop import Loop
from .poller import READ, WRITE
from .response import BadResponse, ResponseReader

_LOW_WATER = 512 << 10
_WORTH_IT = 128 << 10
_SENDFILE = sys.platform == "linux" and hasattr(os, "sendfile")
_SENDFILE_MOST = 8 << 20


class Connection:
    """A connected non-blocking socket in a loop.

    Attributes:
        drained: the last `receive` emptied the socket, so that the next may wait first.
        exchanges: answers that were read completely.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.exchanges = 0
        self.drained = True
        self.idle_since = 0.0
        self._socket: socket.socket | None = None
        self._loop: Loop | None = None
        self._tls: Any = None
        self._fd = -1
        self._low_water = 1

    # Opening and closing.

    async def open(
        self,
        loop: Loop,
        addresses: list[tuple[Any, ...]],
        *,
        timeout: float,
        scratch: memoryview,
        wrap: Callable[[socket.socket], Any] | None,
    ) -> None:
        """Connect to the first address that answers.

        Args:
            addresses: (family, socket address) pairs.
            wrap: makes the `Tls` of a connected socket.

        Raises:
            ConnectionFailed: refused, unreachable, or not trusted.
            StalledTransfer: ``timeout`` seconds have passed.
        """
        until = time.monotonic() + timeout
        error: Exception | None = None
        for family, address in addresses:
            try:
                await self._connect(loop, family, address, until)
                if self.server.tunnels:
                    await self._tunnel(until, scratch)
                if wrap is not None:
                    await self._handshake(wrap, until, scratch)
                return
            except (OSError, BadResponse) as failure:
                self.close()
                error = failure
            except BaseException:
                self.close()
                raise
            if isinstance(error, ssl.SSLCertVerificationError):
                break
        raise self._open_error(error) from error

    def _open_error(self, error: Exception | None) -> ConnectionFailed | StalledTransfer:
        where = self.server.authority
        if isinstance(error, TimeoutError):
            return StalledTransfer(f"no connection to {where} in time", remedy="check s3.endpoint")
        if isinstance(error, ssl.SSLCertVerificationError):
            return ConnectionFailed(
                f"{where}: the certificate is not trusted: {error.verify_message}",
                remedy="set s3.ca-bundle to the authority's PEM file",
                transient=False,
            )
        if isinstance(error, ssl.SSLError):
            reason = error.reason or "handshake failed"
            return ConnectionFailed(f"{where}: TLS: {reason}", remedy="check s3.endpoint", transient=False)
        return ConnectionFailed(f"{where}: {error}", remedy="check s3.endpoint")

    async def _connect(self, loop: Loop, family: int, address: Any, until: float) -> None:
        plain = socket.socket(family, socket.SOCK_STREAM)
        self._socket, self._fd, self._loop = plain, plain.fileno(), loop
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = plain.connect_ex(address)
        loop.add(self._fd)
        if code in {errno.EINPROGRESS, errno.EAGAIN}:
            await self._wait(WRITE, until)
            code = plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    async def _tunnel(self, until: float, scratch: memoryview) -> None:
        proxy = self.server.proxy
        name = f"[{self.server.host}]" if ":" in self.server.host else self.server.host
        target = f"{name}:{self.server.port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"host: {target}"]
        if proxy is not None and proxy.authorization:
            lines.append(f"proxy-authorization: {proxy.authorization}")
        await self.send(("\r\n".join(lines) + "\r\n\r\n").encode(), until)
        # A successful answer to CONNECT has no body, like one to HEAD (RFC 9110, 9.3.6).
        reader = ResponseReader("HEAD")
        while reader.head is None:
            count = await self.receive_some(scratch, until)
            if count == 0:
                raise ConnectionResetError("the proxy closed the connection")
            reader.feed(scratch[:count])
        if reader.head.status != 200:
            raise ConnectionRefusedError(f"the proxy answered {reader.head.status} {reader.head.reason[:60]}")

    async def _handshake(self, wrap: Callable[[socket.socket], Any], until: float, scratch: memoryview) -> None:
        tls = wrap(self._plain)
        while True:
            try:
                tls.handshake(scratch)
                break
            except BlockingIOError:
                await self._wait(READ | WRITE, until)
        self._tls = tls

    @property
    def _plain(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionResetError("the connection is closed")
        return self._socket

    @property
    def tls(self) -> Any:
        return self._tls

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def fd(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._socket is not None:
            self.detach()
            self._socket.close()
            self._socket = None

    def detach(self) -> None:
        """Leave the loop, to idle until `attach`."""
        if self._loop is not None:
            self._loop.remove(self._fd)
            self._loop = None

    def belongs_to(self, loop: Loop) -> bool:
        return self._loop is loop

    def abandon(self) -> None:
        """Close the descriptor only: the loop is another process's."""
        self._loop = None
        self.close()

    def attach(self, loop: Loop) -> bool:
        """Enter a loop. Returns False where the peer has closed or sent something unasked."""
        if self._loop is not loop:
            # It may idle in the loop of another thread's batch.
            self.detach()
            self._loop = loop
            loop.add(self._fd)
        try:
            self._plain.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        # TLS 1.3 sends session tickets unasked: decrypt them, and see whether there was more.
        return self._tls is not None and self._only_tickets()

    def _only_tickets(self) -> bool:
        try:
            self._tls.receive(memoryview(bytearray(1)), memoryview(bytearray(16 << 10)))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    async def _wait(self, mask: int, until: float) -> int:
        if self._loop is None:
            raise ConnectionResetError("the connection is closed")
        ready = await self._loop.wait(self._fd, mask, until)
        if not ready and time.monotonic() >= until:
            raise TimeoutError("timed out")
        return ready

    # Receiving.

    def receive(self, buffer: memoryview, scratch: memoryview) -> int:
        """What has come, at most a buffer full; 0 at the end.

        Raises:
            BlockingIOError: nothing has come.
        """
        count = int(self._tls.receive(buffer, scratch)) if self._tls else self._plain.recv_into(buffer)
        self.drained = count < len(buffer)
        return count

    async def receive_some(self, buffer: memoryview, until: float) -> int:
        """At least one byte, or 0 at the end, waiting for it.

        Raises:
            TimeoutError: nothing has come until then.
        """
        while True:
            try:
                return self.receive(buffer, buffer)
            except BlockingIOError:
                await self._wait(READ, until)

    async def readable(self, until: float) -> None:
        """Wait until there may be something to `receive`, or until then; raises nothing."""
        if self._loop is not None:
            await self._loop.wait(self._fd, READ, until)

    def expect(self, count: int) -> None:
        """Announce that at least ``count`` bytes will come: the kernel then wakes us for large pieces.

        By SO_RCVLOWAT, as socket(7) tells of Linux; the end of the stream wakes all the same.
        """
        if self._tls is not None:
            count -= self._tls.undecrypted
        low_water = min(_LOW_WATER, count) if count >= _WORTH_IT else 1
        if low_water != self._low_water:
            self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
            self._low_water = low_water

    # Sending.

    async def send(self, data: bytes | memoryview, until: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.send_some(view) :]
            except BlockingIOError:
                await self._wait(WRITE, until)
        await self.flush(until)

    def send_some(self, view: memoryview) -> int:
        return int(self._tls.send(view)) if self._tls is not None else self._plain.send(view)

    async def flush(self, until: float) -> None:
        """Have everything leave this process."""
        while self._tls is not None:
            try:
                self._tls.flush()
                return
            except BlockingIOError:
                await self._wait(WRITE, until)

    @property
    def can_sendfile(self) -> bool:
        return _SENDFILE and self._tls is None

    def sendfile(self, source: int, offset: int, count: int) -> int:
        return os.sendfile(self._fd, source, offset, min(count, _SENDFILE_MOST))

    async def writable_or_readable(self, until: float) -> int:
        """Which of READ and WRITE; 0 where ``until`` has passed."""
        if self._loop is None:
            raise ConnectionResetError("the connection is closed")
        return await self._loop.wait(self._fd, READ | WRITE, until)
