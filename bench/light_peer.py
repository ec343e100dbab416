"""One client's connection to the light server: requests in, answers out."""

from __future__ import annotations

import os
import re
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from ..backends.wire.poller import READ, WRITE
from ..backends.wire.tls import Tls
from .light_store import Stored

if TYPE_CHECKING:
    from .light_server import LightServer

BUFFER = 1 << 20
_CHUNK = 4 << 20
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
FOREVER = 1e12
_TCP_INFO = 136


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that clients received and sent: heads and TLS records included, TCP's own headers not."""

    received: int = 0
    sent: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.received + other.received, self.sent + other.sent)

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.received - other.received, self.sent - other.sent)


def traffic_of(connection: socket.socket) -> Traffic:
    """What the other side has acknowledged, and what came from it (tcp_info of linux/tcp.h)."""
    if not hasattr(socket, "TCP_INFO"):
        return Traffic()
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO)
    acknowledged, received = (int.from_bytes(info[start : start + 8], sys.byteorder) for start in (120, 128))
    return Traffic(acknowledged, received)


class Peer:
    """One client connection."""

    def __init__(self, server: LightServer, plain: socket.socket) -> None:
        self.server = server
        self.loop = server.loop
        self.plain = plain
        self.fd = plain.fileno()
        self.tls: Tls | None = None
        self.unread = b""

    async def serve(self) -> None:
        self.loop.add(self.fd)
        self.server.peers.add(self)
        try:
            if self.server.context is not None:
                await self._shake_hands(self.server.context)
            while await self._answer_one():
                pass
        except OSError:
            pass
        finally:
            self.loop.remove(self.fd)
            self.server.leave(self)
            self.plain.close()

    async def _shake_hands(self, context: ssl.SSLContext) -> None:
        tls = Tls(self.plain, context)
        while True:
            try:
                tls.handshake(self.server.scratch)
                break
            except BlockingIOError:
                await self.loop.wait(self.fd, READ | WRITE, FOREVER)
        self.tls = tls

    async def _receive(self) -> memoryview:
        buffer = self.server.buffer
        while True:
            try:
                count = self.tls.receive(buffer, self.server.scratch) if self.tls else self.plain.recv_into(buffer)
                return buffer[:count]
            except BlockingIOError:
                await self.loop.wait(self.fd, READ, FOREVER)

    async def _answer_one(self) -> bool:
        while b"\r\n\r\n" not in self.unread:
            data = await self._receive()
            if not data:
                return False
            self.unread += bytes(data)
        raw, _, self.unread = self.unread.partition(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")
        method, target, _version = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        path, _, query = target.partition("?")
        if headers.get("expect", "").lower() == "100-continue":
            await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        size = await self._drop_body(int(headers.get("content-length", "0")))
        if self.server.behaviour.delay:
            await self.loop.sleep(self.server.behaviour.delay)
        await self._answer(method, path, parse_qs(query, keep_blank_values=True), headers, size)
        return True

    async def _drop_body(self, left: int) -> int:
        """Read a request's body. Returns its size; the kernel throws plain bytes away uncopied."""
        size = left
        left -= len(self.unread)
        self.unread = b""
        started = time.monotonic()
        while left > 0:
            if self.tls:
                count = len(await self._receive())
            else:
                try:
                    count = self.plain.recv_into(self.server.buffer, min(left, BUFFER), socket.MSG_TRUNC)
                except BlockingIOError:
                    await self.loop.wait(self.fd, READ, FOREVER)
                    continue
            if count == 0:
                raise ConnectionResetError
            left -= count
            if self.server.behaviour.rate:
                await self._keep_to_rate(size - left, started)
        return size

    async def _keep_to_rate(self, count: int, started: float) -> None:
        rate = self.server.behaviour.rate
        ahead = count / rate - (time.monotonic() - started) if rate else 0.0
        if ahead > 0:
            await self.loop.sleep(ahead)
        else:
            await self.loop.turn()

    async def _answer(
        self, method: str, path: str, query: dict[str, list[str]], headers: dict[str, str], size: int
    ) -> None:
        if method in {"GET", "HEAD"} and path.strip("/").count("/"):
            await self._answer_object(method, path, headers)
        elif method in {"GET", "HEAD"}:
            await self._answer_bucket(method, path)
        elif method == "PUT":
            await self._answer_put(path, headers, size)
        elif method == "POST" and "uploads" in query:
            await self._text("<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
        elif method == "POST":
            await self._text('<CompleteMultipartUploadResult><ETag>"1-1"</ETag></CompleteMultipartUploadResult>')
        else:
            await self.send(b"HTTP/1.1 204 No Content\r\n\r\n")

    async def _answer_object(self, method: str, path: str, headers: dict[str, str]) -> None:
        found = self.server.store.find(path)
        if found is None:
            size = self.server.store.uploaded_size(path)
            if size is not None and method == "HEAD":
                await self.send(f'HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: "1"\r\n\r\n'.encode())
                return
            await self._missing(method)
            return
        first, end, status = 0, found.size, "200 OK"
        extra = ""
        match = _RANGE.fullmatch(headers.get("range", ""))
        if match:
            first = int(match[1])
            end = min(found.size, int(match[2]) + 1) if match[2] else found.size
            status, extra = "206 Partial Content", f"Content-Range: bytes {first}-{end - 1}/{found.size}\r\n"
        head = (
            f"HTTP/1.1 {status}\r\nContent-Length: {end - first}\r\nETag: {found.etag}\r\n{extra}"
            "Accept-Ranges: bytes\r\nContent-Type: application/octet-stream\r\n"
            "Last-Modified: Mon, 06 Jan 2025 00:00:00 GMT\r\nServer: light\r\n\r\n"
        )
        more = socket.MSG_MORE if method == "GET" and end > first and hasattr(socket, "MSG_MORE") else 0
        await self.send(head.encode(), more)
        if method == "GET":
            await self._send_file(found, first, end)

    async def _answer_bucket(self, method: str, path: str) -> None:
        if not self.server.store.is_there(path):
            await self._missing(method)
        else:
            await self._text("<LocationConstraint></LocationConstraint>", body=method == "GET")

    async def _answer_put(self, path: str, headers: dict[str, str], size: int) -> None:
        if "x-amz-copy-source" in headers:
            await self._text("<CopyObjectResult><ETag>&quot;1&quot;</ETag></CopyObjectResult>")
            return
        self.server.store.uploaded(path, int(headers.get("x-amz-decoded-content-length", size)))
        await self.send(b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: "1"\r\n\r\n')

    async def _missing(self, method: str) -> None:
        await self._text("<Error><Code>NoSuchKey</Code></Error>", status="404 Not Found", body=method == "GET")

    async def _text(self, text: str, *, status: str = "200 OK", body: bool = True) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n\r\n"
        await self.send((head + (text if body else "")).encode())

    async def send(self, data: bytes | memoryview, flags: int = 0) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[(self.tls.send(view) if self.tls else self.plain.send(view, flags)) :]
            except BlockingIOError:
                await self.loop.wait(self.fd, WRITE, FOREVER)
        while self.tls:
            try:
                self.tls.flush()
                break
            except BlockingIOError:
                await self.loop.wait(self.fd, WRITE, FOREVER)

    async def _send_file(self, found: Stored, first: int, end: int) -> None:
        rate = self.server.behaviour.rate
        started, offset = time.monotonic(), first
        chunk = min(_CHUNK, max(1 << 16, int(rate / 100))) if rate else _CHUNK
        while offset < end:
            count = min(chunk, end - offset)
            if found.data is not None and self.tls:
                count = min(count, BUFFER)
                await self.send(memoryview(found.data)[offset : offset + count])
            else:
                try:
                    count = os.sendfile(self.fd, found.fd, offset, count)
                except BlockingIOError:
                    await self.loop.wait(self.fd, WRITE, FOREVER)
                    continue
            offset += count
            await self._keep_to_rate(offset - first, started)
