"""A light S3 look-alike for benchmarks: it must cost less than what is measured against it.

``rclone serve s3`` hashes every file for its ETag; this one sends files by ``sendfile`` and throws
uploads away. It checks no signature. HEAD, GET with ranges, PUT, multipart uploads, copies and
deletions are answered as far as s5cmd, boto3, obstore and our own backends ask for them.

    python -m statelift.bench.light_server ROOT [--delay 0.03] [--rate BYTES] [--certificate CHAIN --key KEY]
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from ..backends.wire.loop import READ, WRITE, Loop
from ..backends.wire.tls import Tls
from ..s5cmd_integration.child import die_with_parent

_BUFFER = 1 << 20
_CHUNK = 4 << 20
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_FOREVER = 1e12
# AWS and Go's servers choose AES-128 of what a client offers; OpenSSL would choose what the client
# names first, so that clients would be compared by their ciphers. Python's ssl cannot say it.
_PREFERENCES = """
openssl_conf = init
[init]
ssl_conf = modules
[modules]
system_default = defaults
[defaults]
Ciphersuites = TLS_AES_128_GCM_SHA256
"""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Args:
    delay: seconds before the first byte of every answer.
    rate: bytes per second of one connection.
    """

    delay: float = 0.0
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Stored:
    fd: int
    size: int
    etag: str
    data: mmap.mmap | None


class Store:
    """Files below a directory, opened once."""

    def __init__(self, root: Path, *, mapped: bool) -> None:
        self._root = root
        self._mapped = mapped
        self._found: dict[str, Stored] = {}
        self._uploaded: dict[str, int] = {}

    def find(self, path: str) -> Stored | None:
        if path not in self._found:
            try:
                fd = os.open(self._root / unquote(path).lstrip("/"), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return None
            state = os.fstat(fd)
            size = state.st_size if os.path.isfile(f"/proc/self/fd/{fd}") else 0
            data = mmap.mmap(fd, size, prot=mmap.PROT_READ) if self._mapped and size else None
            self._found[path] = Stored(fd, size, f'"{state.st_ino:x}-{state.st_mtime_ns:x}"', data)
        return self._found[path]

    def is_there(self, path: str) -> bool:
        return (self._root / unquote(path).strip("/").partition("/")[0]).is_dir()

    def uploaded(self, path: str, size: int) -> None:
        self._uploaded[path] = size

    def uploaded_size(self, path: str) -> int | None:
        return self._uploaded.get(path)


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
        try:
            if self.server.context is not None:
                await self._shake_hands(self.server.context)
            while await self._answer_one():
                pass
        except OSError:
            pass
        finally:
            self.loop.remove(self.fd)
            self.plain.close()

    async def _shake_hands(self, context: ssl.SSLContext) -> None:
        tls = Tls(self.plain, context)
        while True:
            try:
                tls.handshake(self.server.scratch)
                break
            except BlockingIOError:
                await self.loop.wait(self.fd, READ | WRITE, _FOREVER)
        self.tls = tls

    async def _receive(self) -> memoryview:
        buffer = self.server.buffer
        while True:
            try:
                count = self.tls.receive(buffer, self.server.scratch) if self.tls else self.plain.recv_into(buffer)
                return buffer[:count]
            except BlockingIOError:
                await self.loop.wait(self.fd, READ, _FOREVER)

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
        while left > 0:
            if self.tls:
                count = len(await self._receive())
            else:
                try:
                    count = self.plain.recv_into(self.server.buffer, min(left, _BUFFER), socket.MSG_TRUNC)
                except BlockingIOError:
                    await self.loop.wait(self.fd, READ, _FOREVER)
                    continue
            if count == 0:
                raise ConnectionResetError
            left -= count
        return size

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
                await self.loop.wait(self.fd, WRITE, _FOREVER)
        while self.tls:
            try:
                self.tls.flush()
                break
            except BlockingIOError:
                await self.loop.wait(self.fd, WRITE, _FOREVER)

    async def _send_file(self, found: Stored, first: int, end: int) -> None:
        rate = self.server.behaviour.rate
        started, offset = time.monotonic(), first
        chunk = min(_CHUNK, max(1 << 16, int(rate / 100))) if rate else _CHUNK
        while offset < end:
            count = min(chunk, end - offset)
            if found.data is not None and self.tls:
                count = min(count, _BUFFER)
                await self.send(memoryview(found.data)[offset : offset + count])
            else:
                try:
                    count = os.sendfile(self.fd, found.fd, offset, count)
                except BlockingIOError:
                    await self.loop.wait(self.fd, WRITE, _FOREVER)
                    continue
            offset += count
            ahead = (offset - first) / rate - (time.monotonic() - started) if rate else 0.0
            if ahead > 0:
                await self.loop.sleep(ahead)
            else:
                await self.loop.turn()


class LightServer:
    """Listens on loopback and serves until it is killed."""

    def __init__(self, root: Path, behaviour: Behaviour, context: ssl.SSLContext | None) -> None:
        self.behaviour = behaviour
        self.context = context
        self.store = Store(root, mapped=context is not None)
        self.loop = Loop()
        self.buffer = memoryview(bytearray(_BUFFER))
        self.scratch = memoryview(bytearray(256 << 10))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def run(self) -> None:
        self.loop.add(self._listener.fileno())
        self.loop.spawn(self._accept())
        self.loop.run()

    async def _accept(self) -> None:
        while True:
            try:
                plain, _address = self._listener.accept()
            except BlockingIOError:
                await self.loop.wait(self._listener.fileno(), READ, _FOREVER)
                continue
            plain.setblocking(False)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.loop.spawn(Peer(self, plain).serve())


@contextmanager
def serve_light(
    root: Path,
    *,
    cpus: set[int] | None = None,
    certificate: tuple[Path, Path] | None = None,
    delay: float = 0.0,
    rate: float = 0.0,
) -> Iterator[str]:
    """Run the server in a process of its own. Yields its endpoint; buckets are the folders of ``root``.

    Args:
        cpus: pin the server to these CPUs.
        certificate: (chain, key) as PEM files turn TLS on; the host is ``localhost`` then.
        delay: seconds before the first byte of every answer.
        rate: bytes per second of one connection.
    """
    command = [sys.executable, "-m", "statelift.bench.light_server", str(root), f"--delay={delay}", f"--rate={rate}"]
    if certificate:
        command += ["--certificate", str(certificate[0]), "--key", str(certificate[1])]
    with tempfile.NamedTemporaryFile("w", suffix=".cnf") as preferences:
        preferences.write(_PREFERENCES)
        preferences.flush()
        environment = {**os.environ, "OPENSSL_CONF": preferences.name}
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent, env=environment
        )
        line = child.stdout.readline() if child.stdout else ""
    try:
        if cpus and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(child.pid, cpus)
        if not line:
            raise RuntimeError("the light server did not start")
        yield line.strip()
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        if child.stdout:
            child.stdout.close()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    given: Any = parser.parse_args(argv)
    context = None
    if given.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(given.certificate, given.key)
    server = LightServer(given.root, Behaviour(given.delay, given.rate), context)
    scheme, host = ("https", "localhost") if context else ("http", "127.0.0.1")
    print(f"{scheme}://{host}:{server.port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()


if __name__ == "__main__":
    main()
